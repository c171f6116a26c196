"""The outbox: what was committed is sent at least once, and sending it twice is sending it once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.core.effects import (
    Archive,
    CheckNode,
    Notify,
    StartTask,
    StopTask,
)
from ecs_gpu_recovery.core.events import FaultSeen, OrderSent
from ecs_gpu_recovery.core.keys import token
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from tests.core.story import (
    MINUTE,
    POLICY,
    T0,
    a_job_awaiting_reboot,
    a_job_in_its_second_attempt,
    a_job_under_test,
    a_new_job,
    a_running_job,
    like,
    with_retries,
)


def test_a_new_order_belongs_to_its_sender_until_the_lease_ends() -> None:
    assert a_new_job(nodes=1).order(StartTask).due == T0 + POLICY.lease


def test_a_start_stays_in_the_outbox_until_its_task_is_known() -> None:
    job = a_new_job(nodes=1)
    key = job.order(StartTask).key
    assert job.sent(key).outbox == [like(StartTask)], "sent is not started"
    assert job.starts(0).outbox == []


def test_a_check_stays_in_the_outbox_until_it_is_known() -> None:
    job = a_running_job(nodes=1).fails(0)
    assert job.sent(job.order(CheckNode).key).outbox == [like(CheckNode)]
    assert job.check_starts(0).outbox == []


def test_a_verdict_takes_a_check_out_of_the_outbox_even_if_nobody_saw_it_start() -> None:
    job = a_running_job(nodes=2).fails(0)
    job.check_says(Verdict.REBOOT, 0)
    assert not [o for o in job.outbox if isinstance(o, CheckNode)]


def test_a_stop_leaves_the_outbox_when_it_is_sent() -> None:
    job = a_running_job(nodes=2).fails(0)
    job.sent(job.order(StopTask).key)
    assert not [o for o in job.outbox if isinstance(o, StopTask)]


def test_an_order_that_could_not_be_sent_is_tried_again_and_the_wait_grows_to_a_limit() -> None:
    job = a_running_job(nodes=2).fails(0)
    key = job.order(StopTask).key
    waits = []
    for _ in range(6):
        job.could_not_send(key)
        waits.append((job.order(StopTask).due - job.now).total_seconds())
    assert waits == [10, 20, 40, 80, 120, 120]
    assert job.order(StopTask).error == "no answer"


def test_an_order_that_keeps_failing_is_told_to_a_person_once() -> None:
    job = a_running_job(nodes=2).fails(0)
    key = job.order(StopTask).key
    told = []
    for _ in range(3 * POLICY.alarm_tries):
        told += job.could_not_send(key).orders
    assert told == [like(Notify, key=f"{key}/stuck")]
    assert like(StopTask) in job.outbox, "and it is still tried"


@pytest.mark.parametrize("key", ["", "j/0/0/start/9", "j/rows/1", "other"])
def test_news_of_an_order_that_is_not_pending_changes_nothing(key: str) -> None:
    job = a_running_job(nodes=1)
    before = job.job
    assert job.hears(OrderSent(at=T0, key=key)).could_not_send(key).job is before


def test_every_task_and_check_of_a_job_has_a_token_of_its_own() -> None:
    job = a_new_job(nodes=2, policy=with_retries(1))
    seen = [o.token for o in job.outbox if isinstance(o, StartTask | CheckNode)]
    job = a_job_under_test(nodes=2)
    again = a_job_in_its_second_attempt(nodes=2).fails(0).stops()
    seen += [token(f"j/{r}/check/1") for r in (0, 1)]
    seen += [o.token for o in again.outbox if isinstance(o, CheckNode)]
    assert len(set(seen)) == len(seen) == 6


def test_no_two_orders_of_a_job_share_a_key() -> None:
    keys = [order.key for order in a_job_awaiting_reboot(nodes=3, bad=(0, 1)).job.outbox]
    assert len(set(keys)) == len(keys)


def test_a_sighting_that_changes_nothing_costs_no_write() -> None:
    job = a_running_job(nodes=1)
    before = job.job
    assert job.is_seen(0, gpus=8, boot_id="boot-1", version=7).job is before


def test_an_older_sighting_does_not_undo_a_newer_one() -> None:
    job = a_running_job(nodes=1).is_seen(0, connected=False, version=5)
    before = job.job
    assert job.is_seen(0, connected=True, version=4).job is before


def test_reported_faults_are_evidence_and_nothing_else() -> None:
    job = a_running_job(nodes=1)
    fault = FaultSeen(at=T0, node="n0", evidence="Xid 79 on GPU 3")
    job.hears(fault)
    assert (job.status, job.orders, job.node_statuses) == (
        JobStatus.IN_PROGRESS,
        [],
        [NodeStatus.IN_PROGRESS],
    )
    assert job.job.timeline[-1].evidence == "Xid 79 on GPU 3"
    before = job.job
    assert job.hears(fault).job is before, "told twice is told once"
    assert job.hears(replace(fault, at=T0 + MINUTE)).job is not before


def test_a_node_whose_clock_is_ahead_does_not_take_the_job_s_clock_along() -> None:
    """A fault is told under the time of the node's own log. No deadline may hang on that."""
    ahead = T0 + timedelta(days=365)
    job = a_running_job(nodes=2).hears(FaultSeen(at=ahead, node="n0", evidence="Xid 79 on GPU 3"))
    assert job.job.timeline[-1].at == ahead, "the evidence says what it says"
    assert job.job.updated_at == T0
    job.fails(0)
    assert job.rank(1).deadline == T0 + POLICY.stop_timeout
    assert job.job.timeline[-1].at == T0


def test_a_fault_told_twice_is_told_once_however_far_the_job_has_come() -> None:
    fault = FaultSeen(at=T0 + MINUTE, node="n0", evidence="Xid 79 on GPU 3")
    job = a_running_job(nodes=2).hears(fault)
    job.now += 5 * MINUTE
    job.fails(0)
    before = job.job
    assert job.hears(fault).job is before


def test_the_timeline_stays_short_and_what_leaves_it_goes_to_the_log() -> None:
    job = a_running_job(nodes=4, policy=replace(POLICY, timeline_limit=6)).fails(0)
    kept = job.job.timeline
    assert len(kept) == 4, "half of it goes at once, but for the job's last move"
    gone = [line for o in job.outbox if isinstance(o, Archive) for line in o.lines]
    full = a_running_job(nodes=4).fails(0).job.timeline
    assert len(gone) + 4 == len(full), "nothing is lost"
    assert any("submitted" in line for line in gone)


def test_a_job_of_many_nodes_keeps_its_own_moves_longest() -> None:
    job = a_job_awaiting_reboot(nodes=64).job
    assert len(job.timeline) <= POLICY.timeline_limit
    assert [(e.before, e.after) for e in job.timeline if e.subject == "job"] == [
        ("", "IN_PROGRESS"),
        ("IN_PROGRESS", "PENDING_HEALTHCHECK"),
        ("PENDING_HEALTHCHECK", "PENDING_RESTART"),
    ]


def test_the_same_arguments_always_give_the_same_answer() -> None:
    assert a_job_awaiting_reboot(nodes=3).job == a_job_awaiting_reboot(nodes=3).job


def test_the_next_moment_to_look_is_the_earliest_deadline_or_due_order() -> None:
    job = a_new_job(nodes=1)
    assert job.job.wake_at(POLICY.node_lost_after) == T0 + POLICY.lease
    job.starts(0).sent(*(o.key for o in job.job.outbox))
    assert job.job.wake_at(POLICY.node_lost_after) is None
    assert job.is_seen(0, connected=False).job.wake_at(POLICY.node_lost_after) == T0 + POLICY.node_lost_after
