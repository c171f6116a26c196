"""A reboot that waits for its permit: nothing is lost, no clock runs, and old evidence is renewed first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.effects import CheckNode, Notify, RebootNode
from ecs_gpu_recovery.core.events import NodeAsked, PermitWithheld
from ecs_gpu_recovery.core.guard import Answer, FleetGuard, Request
from ecs_gpu_recovery.core.messages import fleet_frozen, permit_wanted
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from tests.core.story import POLICY, T0, Story, a_job_awaiting_reboot, like, some_nodes

DAY = timedelta(days=1)
HELD, EXAMINE, REFUSED = Answer.HELD, Answer.EXAMINE, Answer.REFUSED
KEY = "j/1/0/reboot"


def a_held_reboot() -> Story:
    return a_job_awaiting_reboot(nodes=1).permit_is(HELD)


def test_a_held_node_stays_where_it_was_examined_and_its_order_is_kept() -> None:
    job = a_held_reboot()
    assert (job.status, job.node(0).status) == (JobStatus.PENDING_RESTART, NodeStatus.PENDING_HEALTHCHECK)
    assert job.outbox == [like(RebootNode, key=KEY)]
    assert job.node(0).timeline[-1].why == "its reboot waits for a permit"
    assert job.node(0).timeline[-1].evidence == "frozen"


def test_no_deadline_runs_while_it_waits() -> None:
    job = a_held_reboot().sweeps_after(30 * DAY)
    assert (job.status, job.node(0).status) == (JobStatus.PENDING_RESTART, NodeStatus.PENDING_HEALTHCHECK)
    assert job.node(0).deadline is None


def test_the_wait_for_the_node_begins_when_its_reboot_was_sent() -> None:
    job = a_held_reboot().sweeps_after(DAY).sent(KEY)
    assert job.node(0).status is NodeStatus.REBOOTING
    assert job.node(0).deadline == T0 + DAY + POLICY.reboot_timeout
    assert job.reboots(0).status is JobStatus.RESTARTING


def test_a_reboot_that_is_proven_before_its_sender_told_of_it_counts() -> None:
    assert a_held_reboot().reboots(0).status is JobStatus.RESTARTING


def test_a_reboot_that_fails_before_its_sender_told_of_it_counts() -> None:
    job = a_held_reboot().reboot_fails(0, "not managed")
    assert (job.status, job.node(0).status) == (JobStatus.FAILED, NodeStatus.FAILED)


def test_people_are_told_once_however_often_it_must_wait() -> None:
    wanted = permit_wanted(Request(key=KEY, node="n0", at=T0, since=T0))
    job = a_job_awaiting_reboot(nodes=1).permit_is(HELD, tell=wanted)
    assert job.orders == [wanted]
    job.sent(wanted.key).permit_is(HELD, tell=wanted)
    assert like(Notify) not in job.orders


def test_people_are_told_when_the_guard_can_be_asked_again() -> None:
    """At first nobody could say what the reboot waits for."""
    wanted = permit_wanted(Request(key=KEY, node="n0", at=T0, since=T0))
    job = a_held_reboot().permit_is(HELD, tell=wanted)
    assert job.orders == [wanted]


def test_a_fault_that_nobody_repairs_and_that_froze_the_fleet_tells_of_it_once() -> None:
    (node,) = some_nodes(1)
    node = replace(node, status=NodeStatus.FAILED)
    tell = fleet_frozen(FleetGuard(cluster="c", trips=1))
    fact = PermitWithheld(at=T0, key=keys.node_condemned("n0", T0), answer=HELD, why="4 nodes", tell=tell)
    step = decide_node(node, fact, POLICY)
    assert [order.effect for order in step.orders] == [tell]
    assert not decide_node(step.node, fact, POLICY).changed
    next_trip = replace(fact, tell=fleet_frozen(FleetGuard(cluster="c", trips=2)))
    assert decide_node(step.node, next_trip, POLICY).changed


def test_a_person_says_no_and_the_node_is_out_of_use() -> None:
    job = a_held_reboot().permit_is(REFUSED, why="refused by ann: its owner works on it")
    assert (job.status, job.node(0).status) == (JobStatus.FAILED, NodeStatus.FAILED)
    assert like(RebootNode) not in job.outbox
    assert "its reboot was refused: refused by ann: its owner works on it" in job.job.outcome


def test_what_waited_long_is_examined_again_first() -> None:
    job = a_held_reboot().permit_is(EXAMINE)
    assert job.orders == [like(CheckNode, node="n0")]
    assert like(RebootNode) not in job.outbox
    assert job.check_says(Verdict.HEALTHY, 0).status is JobStatus.RESTARTING


def test_a_fault_that_is_still_there_is_repaired_under_the_same_key() -> None:
    job = a_held_reboot().permit_is(EXAMINE)
    job.now += timedelta(hours=1)
    job.check_says(Verdict.REBOOT, 0, findings="Xid 79")
    assert like(RebootNode, key=KEY) in job.orders
    (fault,) = job.node(0).condemned
    assert (fault.at, fault.findings) == (job.now, "Xid 79"), "one fault, with its newest evidence"


@pytest.mark.parametrize("verdict", [Verdict.REPLACE, Verdict.INCONCLUSIVE])
def test_any_other_answer_is_for_a_person(verdict: Verdict) -> None:
    job = a_held_reboot().permit_is(EXAMINE)
    for _ in range(POLICY.check_tries):
        job.check_says(verdict, 0)
    assert (job.status, job.node(0).status) == (JobStatus.FAILED, NodeStatus.FAILED)


def test_an_answer_to_an_order_that_is_gone_changes_nothing() -> None:
    job = a_job_awaiting_reboot(nodes=1).sent(KEY)
    for answer in (HELD, EXAMINE, REFUSED):
        fact = PermitWithheld(at=job.now, key=KEY, answer=answer, why="late")
        assert not decide_node(job.node(0), fact, POLICY).changed


def test_a_reboot_that_a_person_asked_for_waits_too() -> None:
    (node,) = some_nodes(1)
    node = replace(node, status=NodeStatus.AVAILABLE)
    asked = decide_node(node, NodeAsked(at=T0, node="n0", ask="reboot", by="ann", why="x"), POLICY).node
    held = decide_node(
        asked, PermitWithheld(at=T0, key=asked.reboot_key, answer=HELD, why="frozen"), POLICY
    ).node
    assert held.status is NodeStatus.PENDING_HEALTHCHECK
    assert [order.effect for order in held.outbox] == [like(RebootNode, node="n0")]
    assert held.refusal == "is PENDING_HEALTHCHECK", "no job gets it meanwhile"
