"""Dead letters: all four forms are read, a letter leaves the queue only when its event was handled."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from ecs_gpu_recovery.aws.dead_letters import LOOK_S, MOST, DeadLetters, Letter, read_letter
from ecs_gpu_recovery.core.errors import NotFound, Refused, Transient
from tests.aws.event_builders import TRAIN, event, stopped
from tests.aws.letter_queue import (
    HANDLER,
    STACK,
    URL,
    Called,
    Queue,
    function_arn,
    of_function,
    of_queue,
    of_rule,
    of_schedule,
)

TICK = event("Scheduled Event", {}, "aws.scheduler")
ENDED = stopped(env=TRAIN)


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def called() -> Called:
    return Called()


@pytest.fixture
def letters(queue: Queue, called: Called) -> DeadLetters:
    return DeadLetters(queue, called, URL, stack=STACK)


# -- reading ---------------------------------------------------------------------------------------------------


def test_a_rule_leaves_the_event_and_tells_the_rest_in_attributes() -> None:
    found = read_letter({"MessageId": "m1", **of_rule(ENDED)})
    assert (found.id, found.sender, found.function) == ("m1", f"rule {STACK}-RulesTrainingTask", HANDLER)
    assert found.error == "NO_PERMISSIONS: not authorized to send to the queue"
    assert found.event == ENDED
    assert found.understood.startswith("task: rank 2 of job j1, attempt 1, ")


def test_a_queue_leaves_what_its_function_failed_on_each_time() -> None:
    letter = read_letter(of_queue(ENDED))
    assert (letter.sender, letter.function) == (f"queue {HANDLER}", HANDLER)
    assert (letter.event, "its log says why" in letter.error) == (ENDED, True)


def test_a_function_that_failed_leaves_an_account_of_the_call() -> None:
    found = read_letter({"MessageId": "m1", **of_function(ENDED)})
    assert (found.sender, found.function) == (f"function {HANDLER}", HANDLER)
    assert found.error == "NotFound: no table"
    assert found.event == ENDED
    assert found.at == datetime(2026, 11, 15, 2, 3, 4, 567000, tzinfo=UTC)


def test_an_event_that_grew_too_old_has_no_answer_to_tell_of() -> None:
    context = {"functionArn": function_arn(), "condition": "EventAgeExceeded"}
    found = read_letter(of_function(ENDED, requestContext=context, responsePayload=None))
    assert (found.error, found.function) == ("EventAgeExceeded", HANDLER)


def test_a_schedule_leaves_a_minute_of_the_sweeper() -> None:
    found = read_letter(of_schedule(TICK))
    assert found.sender == f"schedule default/{STACK}-RecoverySweeper"
    assert found.function == f"{STACK}-RecoverySweeper"
    assert found.understood == "tick: time to look at the deadlines"
    assert found.at == datetime(2026, 11, 15, 2, 0, tzinfo=UTC)


def test_when_it_was_left_is_what_the_queue_says() -> None:
    found = read_letter({**of_rule(ENDED), "Attributes": {"SentTimestamp": "1794708000500"}})
    assert found.at == datetime.fromtimestamp(1794708000.5, UTC)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"Body": "not JSON"},
        {"Body": "[" * 100_000},
        {"Body": "null", "MessageAttributes": None},
        {"Body": json.dumps({"requestPayload": 1, "requestContext": [], "responsePayload": "x"})},
        {"Body": "{}", "MessageAttributes": {"RULE_ARN": "x", "TARGET_ARN": {"BinaryValue": b"x"}}},
        {"Body": "{}", "Attributes": {"SentTimestamp": "9" * 40}},
    ],
)
def test_whatever_is_in_the_queue_can_be_shown_and_is_given_to_nobody(
    message: dict[str, Any], queue: Queue, called: Called, letters: DeadLetters
) -> None:
    assert read_letter(message).understood.startswith("malformed: ")
    name = queue.put(message)
    (sent,) = letters.send_again(name)
    assert (sent.done, called.given, list(queue.kept)) == (False, [], [name])


# -- the queue -------------------------------------------------------------------------------------------------


def test_looking_leaves_everything_where_it_was(queue: Queue, letters: DeadLetters) -> None:
    names = [queue.put(of_rule(ENDED)) for _ in range(25)]
    for _ in range(2):
        seen = letters.seen()
        assert ([letter.id for letter in seen.letters], seen.more) == (names, 0)
    assert list(queue.kept) == names


def test_an_empty_queue_holds_no_letters(letters: DeadLetters) -> None:
    assert letters.seen().letters == ()
    assert letters.send_again() == []


def test_of_many_letters_some_are_shown_and_the_rest_are_counted(queue: Queue, letters: DeadLetters) -> None:
    for _ in range(MOST + 5):
        queue.put(of_rule(ENDED))
    seen = letters.seen()
    assert (len(seen.letters), seen.more) == (MOST, 5)


def test_what_somebody_else_has_in_hand_is_counted_and_comes_back(queue: Queue, letters: DeadLetters) -> None:
    name = queue.put(of_rule(ENDED))
    queue.hidden[name] = LOOK_S
    assert letters.seen().more == 1
    with pytest.raises(NotFound, match="somebody is looking at it"):
        letters.send_again(name)
    queue.now = LOOK_S
    assert [letter.id for letter in letters.seen().letters] == [name]


def test_a_letter_whose_event_was_handled_is_gone(queue: Queue, called: Called, letters: DeadLetters) -> None:
    queue.put(of_rule(TICK))
    name = queue.put(of_function(ENDED))
    (sent,) = letters.send_again(name)
    assert (sent.done, sent.said) == (True, "taken: rank 2 of job j1 has stopped")
    assert called.given == [(HANDLER, ENDED)]
    assert name not in queue.kept
    assert len(letters.seen().letters) == 1


def test_a_letter_that_its_function_fails_on_stays(
    queue: Queue, called: Called, letters: DeadLetters
) -> None:
    called.failing.add(HANDLER)
    name = queue.put(of_rule(ENDED))
    (sent,) = letters.send_again(name)
    assert (sent.done, sent.said) == (False, f"{HANDLER} failed again: NotFound: still no table")
    assert [letter.id for letter in letters.seen().letters] == [name]


def test_all_letters_are_sent_oldest_first_and_one_that_fails_stops_none(
    queue: Queue, called: Called, letters: DeadLetters
) -> None:
    called.failing.add(HANDLER)
    first, *_ = [queue.put(message) for message in (of_rule(ENDED), of_schedule(TICK), of_schedule(TICK))]
    assert [sent.done for sent in letters.send_again()] == [False, True, True]
    assert [name for name, _ in called.given] == [HANDLER, *[f"{STACK}-RecoverySweeper"] * 2]
    assert list(queue.kept) == [first]


def test_a_letter_that_is_named_twice_is_sent_once(
    queue: Queue, called: Called, letters: DeadLetters
) -> None:
    name = queue.put(of_rule(ENDED))
    assert len(letters.send_again(name, name[:8])) == len(called.given) == 1


def test_a_letter_that_names_a_stranger_calls_nobody(
    queue: Queue, called: Called, letters: DeadLetters
) -> None:
    name = queue.put(of_rule(ENDED, TARGET_ARN=function_arn("payroll")))
    (sent,) = letters.send_again(name)
    assert not sent.done
    assert "payroll is no function of this deployment" in sent.said
    assert (called.given, list(queue.kept)) == ([], [name])


def test_who_may_not_call_the_function_leaves_the_letter_in_sight(queue: Queue, letters: DeadLetters) -> None:
    class Denied(Exception):
        pass

    def refuse(**request: object) -> None:
        raise Denied

    name = queue.put(of_rule(ENDED))
    letters._functions.invoke = refuse
    with pytest.raises(Denied):
        letters.send_again(name)
    assert [letter.id for letter in letters.seen().letters] == [name]


def test_a_discarded_letter_is_noted_given_back_and_gone(
    queue: Queue, called: Called, letters: DeadLetters
) -> None:
    name, noted = queue.put(of_rule(ENDED)), list[Letter]()
    assert letters.discard(name[:8], noted.append).event == ENDED
    assert ([letter.id for letter in noted], queue.kept, called.given) == ([name], {}, [])
    with pytest.raises(NotFound):
        letters.discard(name, noted.append)


def test_a_letter_that_cannot_be_noted_is_not_discarded(queue: Queue, letters: DeadLetters) -> None:
    name = queue.put(of_rule(ENDED))

    def refuse(letter: Letter) -> None:
        raise Transient("nobody answers")

    with pytest.raises(Transient):
        letters.discard(name, refuse)
    assert [letter.id for letter in letters.seen().letters] == [name]


def test_a_beginning_that_two_letters_share_names_neither(queue: Queue, letters: DeadLetters) -> None:
    queue.put(of_rule(ENDED), id="aaaa-1")
    queue.put(of_rule(ENDED), id="aaaa-2")
    with pytest.raises(Refused, match="2 letters begin with aaaa"):
        letters.discard("aaaa", lambda letter: None)
    assert len(queue.kept) == 2
