"""PENDING_RESTART: bad nodes reboot, lost ones are awaited, and nothing starts before all are back."""

from __future__ import annotations

from dataclasses import replace

from ecs_gpu_recovery.core.effects import CheckNode, Notify, RebootNode, StartTask, StopTask
from ecs_gpu_recovery.core.events import RebootProven, TaskEnded, TaskStarted, Tick
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus, Verdict
from tests.core.story import (
    POLICY,
    T0,
    a_job_awaiting_reboot,
    a_new_job,
    a_running_job,
    like,
)

CHECKS_AFTER = replace(POLICY, post_reboot_check=True)


def test_the_whole_gang_starts_again_when_the_rebooted_node_is_back() -> None:
    job = a_job_awaiting_reboot(nodes=3, bad=(1,)).reboots(1)
    assert (job.status, job.job.attempt) == (JobStatus.RESTARTING, 1)
    assert job.outbox[-3:] == [like(StartTask, rank=r, attempt=1) for r in range(3)]
    assert ("n1", "REBOOTING", "AVAILABLE") in job.moves
    assert [rank.task_status for rank in job.job.ranks] == [None] * 3, (
        "the tasks of the last attempt are history"
    )


def test_it_waits_for_every_node_that_reboots() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0, 1)).reboots(1)
    assert job.status is JobStatus.PENDING_RESTART
    assert job.node_statuses == [NodeStatus.REBOOTING, NodeStatus.AVAILABLE]
    assert job.reboots(0).status is JobStatus.RESTARTING


def test_a_disconnect_and_a_connect_alone_prove_no_reboot() -> None:
    job = a_job_awaiting_reboot(nodes=1).is_seen(0, connected=False).is_seen(0, boot_id="boot-2")
    assert (job.status, job.node_statuses) == (JobStatus.PENDING_RESTART, [NodeStatus.REBOOTING])


def test_a_proven_reboot_of_a_node_that_is_not_connected_yet_is_not_enough() -> None:
    job = a_job_awaiting_reboot(nodes=1).is_seen(0, connected=False)
    job.hears(RebootProven(at=T0, node="n0", key="j/1/0/reboot"))
    assert job.status is JobStatus.PENDING_RESTART
    assert job.is_seen(0).status is JobStatus.RESTARTING


def test_a_proof_for_another_order_is_no_proof() -> None:
    job = a_job_awaiting_reboot(nodes=1)
    before = job.job
    for key in ("j/2/0/reboot", "j/1/1/reboot", "other/1/0/reboot"):
        assert job.hears(RebootProven(at=T0, node="n0", key=key)).job is before


def test_a_node_that_returns_with_a_gpu_missing_is_not_used() -> None:
    job = (
        a_job_awaiting_reboot(nodes=2)
        .is_seen(0, connected=False)
        .hears(RebootProven(at=T0, node="n0", key="j/1/0/reboot"))
    )
    assert job.is_seen(0, gpus=7).status is JobStatus.PENDING_RESTART
    job.after(POLICY.reboot_timeout)
    assert (job.status, job.node_statuses) == (JobStatus.FAILED, [NodeStatus.FAILED, NodeStatus.AVAILABLE])
    assert "came back with 7 of 8 GPUs" in job.job.outcome


def test_a_healthy_node_that_loses_a_gpu_meanwhile_is_waited_for() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0,)).is_seen(1, gpus=7).reboots(0)
    assert job.status is JobStatus.PENDING_RESTART
    assert job.rank(1).deadline == T0 + POLICY.reboot_timeout
    assert job.is_seen(1, gpus=8).status is JobStatus.RESTARTING


def test_a_healthy_node_that_goes_away_meanwhile_is_waited_for() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0,)).is_seen(1, connected=False).reboots(0)
    assert job.status is JobStatus.PENDING_RESTART
    assert job.is_seen(1).status is JobStatus.RESTARTING


def test_a_healthy_node_that_goes_away_for_good_fails_the_job() -> None:
    job = (
        a_job_awaiting_reboot(nodes=2, bad=(0,))
        .is_seen(1, connected=False)
        .reboots(0)
        .after(POLICY.reboot_timeout)
    )
    assert (job.status, job.node_statuses) == (JobStatus.FAILED, [NodeStatus.AVAILABLE, NodeStatus.FAILED])
    assert job.moves[-3:-1] == [("n1", "AVAILABLE", "UNKNOWN"), ("n1", "UNKNOWN", "FAILED")]


def test_a_reboot_that_does_not_return_fails_the_node_and_the_job_and_tells_somebody() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0,)).after(POLICY.reboot_timeout)
    assert (job.status, job.node_statuses) == (JobStatus.FAILED, [NodeStatus.FAILED, NodeStatus.AVAILABLE])
    assert job.orders == [like(Notify, key="j/notify/failed", node="n0")]


def test_a_reboot_that_could_not_be_ordered_in_all_its_tries_is_never_ordered() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0,))
    assert job.outbox[-1] == like(RebootNode, node="n0")
    for _ in range(POLICY.alarm_tries):
        job.could_not_send("j/1/0/reboot")
    job.sweeps_after(POLICY.reboot_timeout)
    assert not [o for o in job.outbox if isinstance(o, RebootNode)], "the node may be in other hands by now"


def test_a_reboot_that_is_refused_fails_the_node_and_the_job() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0,)).reboot_fails(0, "not managed by SSM")
    assert (job.status, job.node_statuses) == (JobStatus.FAILED, [NodeStatus.FAILED, NodeStatus.AVAILABLE])
    assert "not managed by SSM" in job.job.outcome


def test_a_late_refusal_of_a_proven_reboot_changes_nothing() -> None:
    job = (
        a_job_awaiting_reboot(nodes=1)
        .is_seen(0, connected=False)
        .hears(RebootProven(at=T0, node="n0", key="j/1/0/reboot"))
    )
    before = job.job
    assert job.reboot_fails(0, "late").job is before


def test_the_job_fails_while_another_node_still_reboots_and_that_node_goes_on_by_itself() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0, 1)).reboot_fails(0, "refused")
    assert (job.status, job.node_statuses) == (JobStatus.FAILED, [NodeStatus.FAILED, NodeStatus.REBOOTING])
    assert job.node(1).deadline is not None, "it has its own deadline"
    assert not job.node(1).job_id


def test_a_job_of_an_older_release_that_waits_for_a_reboot_hands_its_node_over_under_the_same_key() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0,))
    reboot, deadline = job.node(0).outbox, job.node(0).deadline
    ranks = (replace(job.rank(0), handed="", handed_times=0, deadline=deadline), job.rank(1))
    job.job = replace(job.job, ranks=ranks, outbox=reboot)
    job.nodes["n0"] = replace(job.node(0), handed="", outbox=(), reboot_key="", job_version=0)
    job.hears(Tick(at=T0))
    assert [order.effect for order in job.job.outbox] == []
    assert [order.effect for order in job.node(0).outbox] == [like(RebootNode, key="j/1/0/reboot")]
    assert job.reboots(0).status is JobStatus.RESTARTING


# -- lost nodes ----------------------------------------------------------------------------------------------------


def test_a_lost_node_that_is_heard_from_again_is_used_once_its_task_has_ended() -> None:
    job = a_running_job(nodes=2).loses(0).stops(1).check_says(Verdict.HEALTHY, 1).is_seen(0)
    assert job.status is JobStatus.PENDING_RESTART, "its old task may still run"
    job.ends(0, 137)
    assert job.status is JobStatus.RESTARTING
    assert ("n0", "UNKNOWN", "AVAILABLE") in job.moves


def test_a_lost_node_that_never_returns_fails_the_job() -> None:
    job = a_running_job(nodes=2).loses(0).stops(1).check_says(Verdict.HEALTHY, 1).after(POLICY.reboot_timeout)
    assert job.status is JobStatus.PENDING_RESTART, "its task gets the time of one more stop"
    assert job.orders == [like(StopTask, rank=0)]
    job.after(POLICY.stop_timeout)
    assert (job.status, job.node_statuses) == (JobStatus.FAILED, [NodeStatus.FAILED, NodeStatus.AVAILABLE])


def test_a_task_of_the_last_attempt_that_was_never_known_is_still_recognised() -> None:
    """Its start was never confirmed before its node was lost. The retry is counted already; the task is not of it."""
    job = a_new_job(nodes=2).starts(1).loses(0)
    stop = job.order(StopTask, rank=0).effect
    job.stops(1).check_says(Verdict.HEALTHY, 1).is_seen(0)
    assert (job.status, job.job.attempt) == (JobStatus.PENDING_RESTART, 1)
    job.hears(TaskStarted(at=job.now, task_id="t0", attempt=0, rank=0, running=True))
    assert job.rank(0).task_status is TaskStatus.IN_PROGRESS
    assert job.orders == [like(StopTask, task_id="t0")]
    job.hears(TaskEnded(at=job.now, task_id="t0", attempt=0, rank=0, exit_code=137))
    assert job.status is JobStatus.RESTARTING
    assert isinstance(stop, StopTask)
    starts = [o for o in job.outbox if isinstance(o, StartTask)]
    assert stop.token not in {start.token for start in starts}, "a late stop can't hit the new attempt"


def test_a_person_ends_a_job_whose_lost_task_was_never_known_by_the_token_of_its_own_attempt() -> None:
    job = a_new_job(nodes=2).starts(1).loses(0)
    first = job.order(StopTask, rank=0).effect
    job.sent(first.key).stops(1).check_says(Verdict.HEALTHY, 1).person_stops_it()
    assert isinstance(first, StopTask)
    assert job.orders == [like(StopTask, rank=0, attempt=0, token=first.token)]
    assert job.after(POLICY.stop_timeout).status is JobStatus.USER_STOPPED


# -- people --------------------------------------------------------------------------------------------------------


def test_a_person_can_stop_a_job_that_waits_for_a_reboot() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0,)).person_stops_it()
    assert (job.status, job.node_statuses) == (
        JobStatus.USER_STOPPED,
        [NodeStatus.REBOOTING, NodeStatus.AVAILABLE],
    )
    assert job.node(0).deadline is not None, "the reboot goes on, with its deadline"


def test_a_reboot_left_behind_by_a_stopped_job_is_withdrawn_when_its_time_is_over() -> None:
    job = a_job_awaiting_reboot(nodes=1).person_stops_it().sweeps_after(POLICY.reboot_timeout)
    assert like(RebootNode, node="n0") in job.outbox, "it was not sent, so its time has not begun"
    for _ in range(POLICY.alarm_tries):
        job.sweeps_after(POLICY.reboot_timeout)
    assert like(RebootNode, node="n0") not in job.outbox
    assert job.node(0).status is NodeStatus.FAILED


# -- with a check after the reboot ---------------------------------------------------------------------------------


def test_with_a_check_after_the_reboot_the_node_is_examined_once_more() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(0,), policy=CHECKS_AFTER).reboots(0)
    assert (job.status, job.node_statuses[0]) == (JobStatus.PENDING_RESTART, NodeStatus.PENDING_HEALTHCHECK)
    assert job.outbox[-1] == like(CheckNode, node="n0", key="node/n0/check/1")
    assert job.check_says(Verdict.HEALTHY, 0).status is JobStatus.RESTARTING


def test_a_check_after_the_reboot_that_never_answers_lets_nothing_start() -> None:
    job = a_job_awaiting_reboot(nodes=1, policy=CHECKS_AFTER).reboots(0).check_starts(0)
    job.after(POLICY.check_timeout)
    assert job.orders == [like(StopTask, node="n0"), like(CheckNode, check_try=2)]
    assert job.check_starts(0).after(POLICY.check_timeout).status is JobStatus.FAILED


def test_a_job_that_is_stopped_during_the_check_after_the_reboot_leaves_the_node_to_it() -> None:
    job = a_job_awaiting_reboot(nodes=1, policy=CHECKS_AFTER).reboots(0).check_starts(0).person_stops_it()
    assert (job.status, job.node_statuses) == (JobStatus.USER_STOPPED, [NodeStatus.PENDING_HEALTHCHECK])
    assert not job.node(0).job_id
    assert job.check_says(Verdict.HEALTHY, 0).node_statuses == [NodeStatus.AVAILABLE]
