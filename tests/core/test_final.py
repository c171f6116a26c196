"""COMPLETE, FAILED, USER_STOPPED: nothing changes by itself any more, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ecs_gpu_recovery.core.effects import Notify, StopTask
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.events import (
    CheckRefused,
    CheckStarted,
    Fact,
    FaultSeen,
    NodeChecked,
    NodeGivenUp,
    NodeRepaired,
    NodeSeen,
    StartRefused,
    TaskEnded,
    TaskStarted,
    Tick,
)
from ecs_gpu_recovery.core.job.draft import GHOSTS
from ecs_gpu_recovery.core.model import JobStatus, MachineRecord, NodeStatus, Verdict
from tests.core.story import (
    POLICY,
    T0,
    Story,
    a_job_in_its_second_attempt,
    a_job_under_test,
    a_running_job,
    like,
)


def complete() -> Story:
    return a_running_job(nodes=2).finishes()


def failed() -> Story:
    return a_job_under_test(nodes=2).check_says(Verdict.HEALTHY)


def user_stopped() -> Story:
    return a_running_job(nodes=2).person_stops_it().stops()


ENDINGS = pytest.mark.parametrize("ended", [complete, failed, user_stopped])
LATE_NEWS: list[Fact] = [
    TaskStarted(at=T0, task_id="t0.0.1", attempt=0, rank=0, running=True),
    TaskEnded(at=T0, task_id="t0.0.1", attempt=0, rank=0, exit_code=1),
    TaskEnded(at=T0, task_id="stranger", attempt=0, rank=1, exit_code=1),
    StartRefused(at=T0, attempt=0, rank=0, reason="AGENT"),
    CheckStarted(at=T0, node="n0", check_id="c0.1", check_try=1),
    CheckRefused(at=T0, node="n0", check_try=1, reason="AGENT"),
    NodeChecked(at=T0, node="n0", check_id="c0.1", check_try=1, verdict=Verdict.REBOOT),
    NodeRepaired(at=T0, node="n0", key="j/1/0/reboot", machine=MachineRecord()),
    NodeGivenUp(at=T0, node="n0", key="j/1/0/reboot", reason="late"),
    NodeSeen(at=T0, node="n0", connected=False, gone=True),
    FaultSeen(at=T0, node="n0", evidence="Xid 79"),
    Tick(at=T0 + 100 * POLICY.reboot_timeout),
]


@ENDINGS
@pytest.mark.parametrize("fact", LATE_NEWS, ids=lambda fact: type(fact).__name__)
def test_late_news_changes_nothing(ended: Callable[[], Story], fact: Fact) -> None:
    job = ended()
    before = job.job
    assert job.hears(fact).job is before


@ENDINGS
def test_a_person_who_stops_an_ended_job_is_told_that_it_is_over(ended: Callable[[], Story]) -> None:
    with pytest.raises(Refused, match="already ended"):
        ended().person_stops_it()


@ENDINGS
def test_the_nodes_are_given_back(ended: Callable[[], Story]) -> None:
    assert ended().node_statuses == [NodeStatus.AVAILABLE] * 2


@ENDINGS
def test_a_task_that_turns_up_afterwards_is_stopped(ended: Callable[[], Story]) -> None:
    job = ended().hears(TaskStarted(at=T0, task_id="ghost", attempt=0, rank=1, running=True))
    assert job.orders == [like(StopTask, task_id="ghost", node="n1")]


def test_however_many_tasks_turn_up_the_record_stays_small() -> None:
    """The token of a task can be read by whoever may describe tasks in the account."""
    job = failed()
    known = len(job.outbox)
    for number in range(2 * GHOSTS):
        job.hears(TaskStarted(at=T0, task_id=f"ghost{number}", attempt=0, rank=1, running=True))
    assert len(job.outbox) - known == GHOSTS + len(job.job.ranks)


def test_a_task_that_never_confirmed_its_stop_is_stopped_again_when_it_shows_itself() -> None:
    job = a_running_job(nodes=2).person_stops_it().stops(0).after(POLICY.stop_timeout)
    assert job.status is JobStatus.USER_STOPPED
    job.hears(TaskStarted(at=T0, task_id="t1.0.1", attempt=0, rank=1, running=True))
    assert job.orders == [like(StopTask, task_id="t1.0.1", node="n1")]


def test_every_failed_job_tells_somebody_once() -> None:
    job = failed()
    assert [o for o in job.outbox if isinstance(o, Notify)] == [like(Notify, key="j/notify/failed")]
    job.sent("j/notify/failed").after(POLICY.reboot_timeout)
    assert [o for o in job.outbox if isinstance(o, Notify)] == []


@pytest.mark.parametrize("ended", [complete, user_stopped])
def test_a_job_that_ended_as_wished_bothers_nobody(ended: Callable[[], Story]) -> None:
    assert [o for o in ended().outbox if isinstance(o, Notify)] == []


def test_the_message_says_what_happened_the_evidence_what_was_done_and_what_to_do_next() -> None:
    job = (
        a_job_in_its_second_attempt(nodes=2)
        .fails(0)
        .stops()
        .check_says(Verdict.REBOOT, 0, findings="Xid 79")
        .check_says(Verdict.HEALTHY, 1)
    )
    (message,) = job.orders
    assert isinstance(message, Notify)
    assert message.node == "n0"
    assert "no restart is left" in message.subject
    assert "Xid 79" in message.evidence
    assert "n1 released" in message.done
    assert "n0 marked failed" in message.done
    assert "gpu-recovery node reboot n0 --why '...' --wait" in message.next
    assert "node release" not in message.next  # the fault would still be there


def test_an_order_that_is_still_to_be_sent_is_not_forgotten_when_the_job_ends() -> None:
    job = failed()
    assert job.job.wake_at(POLICY.node_lost_after) is not None
    job.sent(*(order.key for order in job.job.outbox))
    assert job.job.wake_at(POLICY.node_lost_after) is None
