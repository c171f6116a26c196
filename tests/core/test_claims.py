"""Orders that the sweeper takes over, and machines that are taken away."""

from __future__ import annotations

from datetime import timedelta

from ecs_gpu_recovery.core.effects import Notify, StartTask
from ecs_gpu_recovery.core.events import OrderFailed, OrdersClaimed
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from tests.core.story import a_new_job, a_running_job


def test_a_claimed_order_is_due_a_lease_after_it_was_claimed_however_old_the_news_behind_it() -> None:
    job = a_new_job(nodes=2)
    order = job.order(StartTask, rank=0)
    seen = order.due + timedelta(hours=1)
    job.hears(OrdersClaimed(at=seen, keys=(order.key, "no such order")))
    claimed = job.order(StartTask, rank=0)
    assert (claimed.due, claimed.tries) == (seen + job.policy.lease, 1)


def test_a_message_that_cannot_be_sent_orders_no_second_message_about_itself() -> None:
    job = a_running_job(nodes=2).ends(0, 137, "OutOfMemoryError: killed").stops(1)
    message = job.order(Notify)
    for _ in range(job.policy.alarm_tries + 3):
        job.hears(OrderFailed(at=job.job.updated_at, key=message.key, error="no answer"))
    assert [type(effect) for effect in job.outbox].count(Notify) == 1


def test_a_terminated_host_must_be_seen_again_before_the_gang_restarts() -> None:
    job = (
        a_running_job(nodes=2)
        .ends(0, None, "Host EC2 (instance i-1) terminated.", "TerminationNotice")
        .stops(1)
    )
    job.check_says(Verdict.HEALTHY, 1)
    assert job.status is JobStatus.PENDING_RESTART
    assert job.node_statuses[0] is NodeStatus.UNKNOWN
    job.is_seen(0, connected=True)
    assert job.status is JobStatus.RESTARTING
