"""Waits begin when a fact is handled, and when the order behind them was sent; its own time is for the story."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ecs_gpu_recovery.core.effects import CheckNode, RebootNode, StartTask, StopTask
from ecs_gpu_recovery.core.events import NodeAsked, NodeSeen, OrderSent, TaskEnded, Tick
from ecs_gpu_recovery.core.job.table import decide
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from tests.core.story import (
    POLICY,
    T0,
    Story,
    a_job_awaiting_reboot,
    a_job_under_test,
    a_new_job,
    a_running_job,
    like,
    some_nodes,
)

LATE = timedelta(minutes=6)


def test_an_event_that_is_handled_late_keeps_its_time_and_leaves_its_siblings_all_of_theirs() -> None:
    died = TaskEnded(at=T0, task_id="t0.0.1", attempt=0, rank=0, exit_code=1)
    step = decide(a_running_job(nodes=3).job, died, POLICY, T0 + LATE)
    assert step.job.timeline[-1].at == step.job.updated_at == T0
    assert [rank.deadline for rank in step.job.ranks[1:]] == [T0 + LATE + POLICY.stop_timeout] * 2
    assert {order.due for order in step.orders} == {T0 + LATE + POLICY.lease}
    later = decide(step.job, Tick(at=T0 + LATE), POLICY, T0 + LATE)
    assert later.job is step.job, "nothing has run out"


def test_a_clock_behind_the_event_shortens_no_wait() -> None:
    died = TaskEnded(at=T0 + LATE, task_id="t0.0.1", attempt=0, rank=0, exit_code=1)
    step = decide(a_running_job(nodes=2).job, died, POLICY, T0)
    assert step.job.ranks[1].deadline == T0 + LATE + POLICY.stop_timeout


def test_a_node_that_was_seen_to_go_long_ago_is_away_since_it_was_heard() -> None:
    away = NodeSeen(at=T0, node="n0", connected=False)
    assert decide(a_running_job(nodes=1).job, away, POLICY, T0 + LATE).job.ranks[0].away_since == T0 + LATE
    assert decide_node(some_nodes(1)[0], away, POLICY, T0 + LATE).node.away_since == T0 + LATE


def test_a_check_of_a_node_that_was_asked_for_long_ago_has_all_its_time() -> None:
    ask = NodeAsked(at=T0, node="n0", ask="check", by="ann", why="")
    assert (
        decide_node(some_nodes(1)[0], ask, POLICY, T0 + LATE).node.deadline
        == T0 + LATE + POLICY.check_timeout
    )


UNSENT = {
    "a start": (lambda: a_new_job(nodes=1), StartTask, POLICY.start_timeout),
    "a stop": (lambda: a_running_job(nodes=2).fails(0), StopTask, POLICY.stop_timeout),
    "a stop for good": (lambda: a_running_job(nodes=1).person_stops_it(), StopTask, POLICY.stop_timeout),
    "a check": (lambda: a_running_job(nodes=1).fails(0), CheckNode, POLICY.check_timeout),
    "a reboot": (lambda: a_job_awaiting_reboot(nodes=1), RebootNode, POLICY.reboot_timeout),
}


@pytest.mark.parametrize("what", UNSENT)
def test_what_was_never_sent_does_not_run_out(what: str) -> None:
    story, kind, wait = UNSENT[what]
    job: Story = story()
    before = job.status, job.node_statuses, [rank.verdict for rank in job.job.ranks]
    job.sweeps_after(wait)
    assert (job.status, job.node_statuses, [rank.verdict for rank in job.job.ranks]) == before
    assert like(kind) in job.outbox, "it is still to be sent"


@pytest.mark.parametrize("what", UNSENT)
def test_what_can_never_be_sent_is_not_waited_for_without_end(what: str) -> None:
    story, _, wait = UNSENT[what]
    job: Story = story()
    before = job.status
    for _ in range(POLICY.alarm_tries * 3):
        job.sweeps_after(wait)
    assert job.status is not before


def test_a_stop_has_all_its_time_from_when_it_was_sent() -> None:
    job = a_running_job(nodes=2).fails(0)
    job.now += POLICY.stop_timeout - timedelta(seconds=1)
    job.sent("j/0/1/stop/1").sweeps_after(POLICY.stop_timeout - timedelta(seconds=1))
    assert job.node_statuses[1] is NodeStatus.PENDING
    assert job.sweeps_after(timedelta(seconds=1)).rank(1).verdict is Verdict.LOST


def test_a_reboot_has_all_its_time_from_when_it_was_sent() -> None:
    job = a_job_awaiting_reboot(nodes=1)
    job.now += POLICY.reboot_timeout - timedelta(seconds=1)
    job.sent("j/1/0/reboot").sweeps_after(POLICY.reboot_timeout - timedelta(seconds=1))
    assert job.status is JobStatus.PENDING_RESTART
    assert job.sweeps_after(timedelta(seconds=1)).status is JobStatus.FAILED


def test_a_start_and_a_check_have_all_their_time_from_when_they_began() -> None:
    job = a_new_job(nodes=1)
    job.now += POLICY.start_timeout - timedelta(seconds=1)
    job.starts(running=False)
    assert job.rank(0).deadline == job.now + POLICY.start_timeout
    job = a_job_under_test(nodes=1)
    assert job.rank(0).deadline == job.now + POLICY.check_timeout


def test_a_stop_that_was_sent_after_its_task_had_ended_gives_the_check_no_other_deadline() -> None:
    job = a_running_job(nodes=2).fails(0).stops(1)
    job.now += POLICY.check_timeout
    before = job.rank(1).deadline
    assert job.hears(OrderSent(at=job.now, key="j/0/1/stop/1")).rank(1).deadline == before
