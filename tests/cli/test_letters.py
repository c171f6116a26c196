"""Dead letters at a terminal: listed with their meaning, sent again, put away with a reason."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.aws.event_builders import TRAIN, stopped
from tests.aws.letter_queue import HANDLER, STACK, URL, of_function, of_rule
from tests.cli.aws_person import ARN, Person, a_person
from tests.cli.conftest import Command

ENDED = stopped(env=TRAIN)


@pytest.fixture(scope="module")
def someone() -> Iterator[Person]:
    with a_person(nodes=1) as made:
        yield made


@pytest.fixture
def person(someone: Person) -> Person:
    """Nothing is in the queue, and all functions work."""
    someone.queue.kept.clear()
    someone.functions.given.clear()
    someone.functions.failing.clear()
    someone.functions.environment["DEAD_LETTER_QUEUE_URL"] = URL
    return someone


def test_a_letter_is_listed_with_who_left_it_and_what_it_says(person: Person) -> None:
    name = person.queue.put(of_rule(ENDED))
    person("letters").tells(
        name, f"rule {STACK}-RulesTrainingTask", "NO_PERMISSIONS", HANDLER, "letters resend ID"
    )
    (listed,) = person.done("letters")["letters"]
    assert (listed["id"], listed["function"], listed["event"]) == (name, HANDLER, ENDED)
    assert listed["understood"].startswith("task: ")


def test_without_letters_it_says_that_all_is_well(person: Person) -> None:
    assert person("letters").out == "No dead letters: every event was handled.\n"
    assert person.done("letters") == {"letters": [], "more": 0}


def test_a_letter_is_sent_again_by_the_beginning_of_its_id(person: Person) -> None:
    first, second = (person.queue.put(of_function(ENDED)) for _ in range(2))
    told = person("letters", "resend", first[:8])
    assert (told.code, told.out) == (0, f"{first}  done, taken: rank 2 of job j1 has stopped\n")
    assert (list(person.queue.kept), person.functions.given) == ([second], [(HANDLER, ENDED)])


def test_a_letter_that_fails_again_is_kept_and_the_exit_code_says_so(person: Person) -> None:
    name = person.queue.put(of_rule(ENDED))
    person.functions.failing.add(HANDLER)
    told = person("letters", "resend", "--all", "--json")
    assert told.code == 1
    (sent,) = told.data["sent"]
    assert (sent["id"], sent["done"]) == (name, False)
    assert "failed again" in sent["said"]
    assert name in person.queue.kept


def test_a_discarded_letter_is_printed_whole_with_who_and_why(person: Person) -> None:
    name = person.queue.put(of_rule(ENDED))
    gone = person.done("letters", "discard", name, "--why", "the job is over")
    assert (gone["discarded"]["event"], gone["why"]) == (ENDED, "the job is over")
    assert ARN.rpartition(":")[2] in gone["by"]
    assert (person.queue.kept, person.functions.given) == ({}, [])
    told = person.world.messages()[-1]
    for part in (name, gone["by"], "the job is over", "NO_PERMISSIONS"):
        assert part in told, "who hears of failures hears of it"
    assert "containerInstanceArn" not in told, "not the event itself"


def test_a_letter_stays_if_nobody_can_be_told_that_it_goes(person: Person) -> None:
    name = person.queue.put(of_rule(ENDED))
    person.world.wire.fail_all["sns", "publish"] = "AuthorizationError"
    try:
        told = person("letters", "discard", name, "--why", "the job is over")
    finally:
        person.world.wire.fail_all.clear()
    assert (told.code, list(person.queue.kept)) == (4, [name])


def test_an_event_that_was_lost_is_made_up_for_and_sent_twice_it_changes_nothing() -> None:
    """The real engine takes the events here: a rank dies, no function hears of it, a person sends it again."""
    with a_person(nodes=2) as person:
        assert person.submit("--nodes", "n0,n1", "--id", "j1", "--check", "none").code == 0
        world = person.world
        person.theirs(lambda: world.pass_time(30))
        world.invocations = 0
        world.fail_rank(1)
        person.theirs(lambda: world.pass_time(5))
        lost, world.dead_letters = world.dead_letters, []
        assert lost
        assert world.job().status is JobStatus.IN_PROGRESS
        world.invocations = 3
        person.functions.take = world.deliver
        after = []
        for _ in range(2):
            for event in lost:
                person.queue.put(of_function(event))
            assert person("letters", "resend", "--all").code == 0
            after.append((world.job(), dict(world.node_statuses())))
        assert after[0][0].status is JobStatus.PENDING_HEALTHCHECK
        assert after[0] == after[1]
        assert (person.queue.kept, world.dead_letters) == ({}, [])


def test_what_is_not_there_is_not_found(person: Person) -> None:
    person("letters", "resend", "no-such").refused("no dead letter no-such", code=3)


@pytest.mark.parametrize(
    "args",
    [
        ("resend",),
        ("resend", "x", "--all"),
        ("discard", "x"),
        ("discard", "x", "--why", " "),
    ],
)
def test_a_command_that_does_not_say_what_is_refused(person: Person, args: tuple[str, ...]) -> None:
    name = person.queue.put(of_rule(ENDED))
    assert person("letters", *args).code == 2
    assert list(person.queue.kept) == [name]


def test_a_backend_before_the_command_is_not_lost_silently(command: Command) -> None:
    command("letters", "--backend", "aws", "resend", "x").refused("behind the command", code=2)


def test_a_variable_tells_where_the_queue_is(person: Person) -> None:
    del person.functions.environment["DEAD_LETTER_QUEUE_URL"]
    person("letters").refused("DEAD_LETTER_QUEUE_URL")
    with patch.dict(os.environ, {"DEAD_LETTER_QUEUE_URL": URL}):
        assert person("letters").code == 0


def test_who_may_not_look_is_told_whom_to_ask(person: Person) -> None:
    person.world.wire.fail_all["sqs", "receive_message"] = "AccessDenied"
    try:
        told = person("letters")
    finally:
        person.world.wire.fail_all.clear()
    told.refused("docs/permissions.md")


def test_the_embedded_mode_has_no_letters_and_says_why(command: Command) -> None:
    for args in (("letters",), ("letters", "resend", "--all"), ("letters", "discard", "x", "--why", "y")):
        command(*args, "--backend", "local").tells("the embedded control plane has no queue")
    assert json.loads(command("letters", "--json", "--backend", "local").out)["letters"] == []
