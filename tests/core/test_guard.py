"""The rule of permits: what counts, what freezes the fleet, and what people may say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ecs_gpu_recovery.core import guard
from ecs_gpu_recovery.core.errors import NotFound, Refused
from ecs_gpu_recovery.core.guard import MOST_WAITING, Answer, FleetGuard, Request
from ecs_gpu_recovery.core.messages import fleet_frozen, permit_wanted
from ecs_gpu_recovery.core.model import Verdict
from ecs_gpu_recovery.core.node_record import Condemnation, Node
from ecs_gpu_recovery.core.policy import Policy

T0 = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
AUTO, ASK = Policy(), Policy(repairs="ask")
EMPTY = FleetGuard(cluster="gpus")
GRANTED, HELD, EXAMINE, REFUSED = Answer.GRANTED, Answer.HELD, Answer.EXAMINE, Answer.REFUSED


def reboot(name: str, at: datetime = T0, since: datetime | None = None, **more: object) -> Request:
    request = Request(
        key=f"{name}/reboot", node=name, at=at, since=since or at, why="Xid 79 on GPU 0000:3b:00"
    )
    return replace(request, **more)  # type: ignore[arg-type]


def asked(
    record: FleetGuard, *requests: Request, policy: Policy = AUTO, after: timedelta = timedelta()
) -> tuple[FleetGuard, list[Answer]]:
    record, answers = guard.ask(record, requests, policy, T0 + after)
    return record, [answers[each.key] for each in requests]


def nodes(count: int, at: datetime = T0, prefix: str = "n") -> list[Request]:
    return [reboot(f"{prefix}{i}", at) for i in range(count)]


def a_frozen_fleet(*waiting: Request) -> FleetGuard:
    record = guard.freeze(EMPTY, by="ann", why="to see", at=T0)
    return asked(record, *waiting)[0]


@pytest.mark.parametrize(("together", "answers"), [(1, [GRANTED]), (3, [GRANTED] * 3), (4, [HELD] * 4)])
def test_a_batch_beyond_the_limit_gets_no_permit_at_all(together: int, answers: Sequence[Answer]) -> None:
    record, said = asked(EMPTY, *nodes(together))
    assert said == answers
    assert (record.frozen is not None) == (together > 3)


def test_one_after_the_other_the_fourth_within_ten_minutes_freezes_the_fleet() -> None:
    record = EMPTY
    for minute, name in enumerate("abc"):
        record, said = asked(record, reboot(name, T0 + minute * MINUTE), after=minute * MINUTE)
        assert said == [GRANTED]
    record, said = asked(record, reboot("d", T0 + 9 * MINUTE), after=9 * MINUTE)
    assert said == [HELD]
    assert record.frozen is not None
    assert record.frozen.why == "4 nodes to repair within 10 minutes"
    assert asked(record, reboot("e", T0 + 60 * MINUTE), after=60 * MINUTE)[1] == [HELD]


def a_node(name: str, *faults: tuple[datetime, str]) -> Node:
    condemned = tuple(
        Condemnation(at=at, verdict=Verdict.REPLACE, findings="Xid 64", repair=repair)
        for at, repair in faults
    )
    return Node(name=name, cluster="gpus", created_at=T0, updated_at=T0, condemned=condemned)


def test_faults_that_nobody_repairs_count_beside_those_that_are() -> None:
    found = [each for name in "abc" for each in guard.condemnations(a_node(name, (T0, "")), T0 - MINUTE)]
    record, said = asked(EMPTY, *found)
    assert said == [GRANTED] * 3, "they wait for nothing"
    assert record.frozen is None
    assert asked(record, reboot("d"))[1] == [HELD]
    mixed, said = asked(EMPTY, reboot("d"), reboot("e"), *found[:2])
    assert said == [HELD, HELD, GRANTED, GRANTED]
    assert mixed.frozen is not None
    assert asked(mixed, *found[:2])[0] is mixed, "each counts once"


def test_what_is_repaired_or_long_ago_is_no_condemnation_that_counts() -> None:
    node = a_node("a", (T0, "reboot"), (T0 - 20 * MINUTE, ""))
    assert guard.condemnations(node, T0 - 10 * MINUTE) == []
    (found,) = a_node("a", (T0, "")).condemned
    again = replace(node, condemned=(replace(found, asked=True),))
    assert guard.condemnations(again, T0 - 10 * MINUTE) == [], "a person looks at what has FAILED"


def test_what_is_older_than_ten_minutes_does_not_count() -> None:
    record, _ = asked(EMPTY, *nodes(3))
    assert asked(record, reboot("later", T0 + 10 * MINUTE), after=10 * MINUTE)[1] == [GRANTED]


def test_whoever_asks_again_gets_the_same_answer_and_counts_once() -> None:
    record, _ = asked(EMPTY, *nodes(3))
    again, said = asked(record, *nodes(3), after=5 * MINUTE)
    assert said == [GRANTED] * 3
    assert again is record


def test_one_node_counts_once_however_many_orders_it_has() -> None:
    some = [reboot("n0", key=f"{i}/reboot") for i in range(6)]
    assert asked(EMPTY, *some)[1] == [GRANTED] * 6


def test_gangs_that_are_stopped_count_by_jobs_and_nodes_by_nodes() -> None:
    stops = [guard.for_stop(f"j{i}", f"j{i}/hang", T0, why="silent", since=T0) for i in range(3)]
    record, said = asked(EMPTY, *nodes(3), *stops[:2])
    assert said == [GRANTED] * 5
    record, said = asked(record, stops[2])
    assert said == [HELD]
    assert record.frozen is not None
    assert record.frozen.why == "3 jobs to stop within 10 minutes"


def test_what_a_person_asks_for_is_no_sign_of_trouble_but_waits_for_a_thaw() -> None:
    wishes = [replace(each, person=True) for each in nodes(9)]
    record, said = asked(EMPTY, *wishes)
    assert said == [GRANTED] * 9
    assert asked(record, *nodes(3, prefix="m"))[1] == [GRANTED] * 3
    assert asked(a_frozen_fleet(), wishes[0])[1] == [HELD]
    assert asked(EMPTY, wishes[0], policy=ASK)[1] == [GRANTED]


def test_after_a_thaw_the_oldest_go_first_and_three_in_ten_minutes() -> None:
    record = a_frozen_fleet(*(reboot(f"n{i}", T0 + i * timedelta(seconds=1)) for i in range(7)))
    record = guard.thaw(record, by="ann", why="a cable", at=T0 + MINUTE)
    every = [reboot(f"n{i}", T0 + i * timedelta(seconds=1)) for i in range(7)]
    record, said = asked(record, *reversed(every), after=2 * MINUTE)
    assert said == [HELD] * 4 + [GRANTED] * 3
    record, said = asked(record, *every, after=11 * MINUTE)
    assert said == [GRANTED] * 3 + [HELD] * 4
    record, said = asked(record, *every, after=13 * MINUTE)
    assert said[3:] == [EXAMINE] * 3 + [HELD]
    assert record.frozen is None, "none of them counts"


def test_what_comes_after_a_thaw_is_counted_anew() -> None:
    record, _ = asked(EMPTY, *nodes(4))
    record = guard.thaw(record, by="ann", why="a cable", at=T0 + MINUTE)
    record, said = asked(record, *nodes(3, T0 + 2 * MINUTE, "m"), after=2 * MINUTE)
    assert said == [GRANTED] * 3
    assert asked(record, reboot("x", T0 + 3 * MINUTE), after=3 * MINUTE)[1] == [HELD]


def test_old_evidence_is_renewed_before_it_is_acted_on() -> None:
    record = guard.thaw(a_frozen_fleet(reboot("n0")), by="ann", why="a cable", at=T0 + 30 * MINUTE)
    for _ in range(2):  # whoever did not hear the answer gets it again
        record, said = asked(record, reboot("n0"), after=31 * MINUTE)
        assert said == [EXAMINE]
    assert asked(record, reboot("n0", since=T0 + 33 * MINUTE), after=34 * MINUTE)[1] == [GRANTED]


def test_a_person_says_yes_or_no_to_each() -> None:
    record, said = asked(EMPTY, *nodes(3), policy=ASK)
    assert said == [HELD] * 3
    record = guard.allow(record, "n0", by="ann")
    record = guard.refuse(record, "n1/reboot", by="ann", why="its owner works on it")
    record, said = asked(record, *nodes(3), policy=ASK, after=60 * MINUTE)
    assert said == [GRANTED, REFUSED, HELD]
    assert [each.node for each in record.waiting] == ["n2"]


def test_a_yes_is_worth_more_than_a_freeze() -> None:
    record = guard.allow(a_frozen_fleet(*nodes(2)), "n1", by="ben")
    assert asked(record, *nodes(2))[1] == [HELD, GRANTED]


def test_people_are_told_why_their_word_changes_nothing() -> None:
    with pytest.raises(Refused, match="not frozen"):
        guard.thaw(EMPTY, by="ann", why="x", at=T0)
    with pytest.raises(Refused, match="frozen already, by ann: to see"):
        guard.freeze(a_frozen_fleet(), by="ben", why="x", at=T0)
    with pytest.raises(NotFound, match="nothing of n9 waits"):
        guard.allow(EMPTY, "n9", by="ann")
    two = a_frozen_fleet(reboot("n0", job="j"), reboot("n1", job="j"))
    with pytest.raises(Refused, match="name one of n0/reboot, n1/reboot"):
        guard.refuse(two, "j", by="ann", why="x")


def test_the_record_stays_small() -> None:
    record, said = asked(EMPTY, *nodes(MOST_WAITING + 5))
    assert said == [HELD] * (MOST_WAITING + 5)
    assert len(record.requests) == MOST_WAITING
    record, _ = asked(EMPTY, *nodes(3))
    later = timedelta(days=2)
    record, _ = asked(record, reboot("x", T0 + later), after=later)
    assert [each.node for each in record.requests] == ["x"]


def test_an_order_that_nobody_has_any_more_holds_up_no_other() -> None:
    record = a_frozen_fleet(*nodes(3))
    assert guard.forget(record, ["n0/reboot"], T0 + MINUTE, 15 * MINUTE) is record
    left = guard.forget(record, ["n0/reboot"], T0 + 16 * MINUTE, 15 * MINUTE)
    assert [each.node for each in left.requests] == ["n0"]


def test_a_request_names_the_fault_that_is_repaired() -> None:
    node = Node(name="n0", cluster="gpus", created_at=T0, updated_at=T0, job_id="j")
    found = "Xid 79 on GPU 0000:3b:00 [GPU-1] (driver 580.95.05)"
    fault = Condemnation(at=T0 - MINUTE, verdict=Verdict.REBOOT, findings=found, repair="reboot")
    made = guard.for_reboot(replace(node, condemned=(fault,)), "k", T0, "train:3")
    assert (made.since, made.why, made.image, made.person) == (T0 - MINUTE, found, "train:3", False)
    assert made.driver == "580.95.05"
    cured = replace(fault, outcome="cured")
    assert guard.for_reboot(replace(node, condemned=(cured,)), "k", T0).person


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (["Xid 79 on GPU 0000:3b:00 (fallen off the bus)", "Xid 79 on GPU 0000:af:00"], "the fault: Xid 79"),
        (["GPU-1 is lost", "GPU-2 is lost"], "the fault: a GPU is lost"),
        (["Xid 79", "Xid 48"], "no fault in common: Xid 48; Xid 79"),
    ],
)
def test_people_are_told_what_the_cases_have_in_common(why: Sequence[str], said: str) -> None:
    some = [reboot(f"n{i}", why=text) for i, text in enumerate(why)]
    assert said in guard.in_common(some)


def test_one_message_tells_of_all_that_wait() -> None:
    record, _ = asked(EMPTY, *(replace(each, image="train:3", driver="580.95.05") for each in nodes(4)))
    told = fleet_frozen(record)
    assert told.key == "fleet/gpus/frozen/1"
    assert told.subject == "The fleet gpus is frozen: 4 nodes to repair within 10 minutes"
    assert told.evidence.startswith(
        "All have in common the fault: Xid 79, the driver: 580.95.05, the image: train:3"
    )
    assert "n0, n1, n2, n3" in told.done
    assert "gpu-recovery fleet thaw" in told.next


def test_a_message_asks_for_the_yes_with_its_evidence() -> None:
    told = permit_wanted(reboot("n0"))
    assert (told.evidence, told.node) == ("Xid 79 on GPU 0000:3b:00", "n0")
    assert "gpu-recovery allow n0" in told.next
