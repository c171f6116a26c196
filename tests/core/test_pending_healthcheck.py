"""PENDING_HEALTHCHECK: every node gets its verdict before anything is concluded."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.effects import CheckNode, Notify, RebootNode, StopTask
from ecs_gpu_recovery.core.events import NodeChecked, TaskStarted
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus, Verdict
from tests.core.story import (
    MINUTE,
    POLICY,
    T0,
    a_job_in_its_second_attempt,
    a_job_under_test,
    a_new_job,
    a_running_job,
    like,
    with_retries,
)

HEALTHY, REBOOT, REPLACE, INCONCLUSIVE = (
    Verdict.HEALTHY,
    Verdict.REBOOT,
    Verdict.REPLACE,
    Verdict.INCONCLUSIVE,
)


def test_a_node_is_examined_only_after_its_task_has_ended() -> None:
    job = a_running_job(nodes=2).fails(0)
    assert job.orders == [like(CheckNode, rank=0), like(StopTask, rank=1)]
    job.stops(1)
    assert job.orders == [like(CheckNode, rank=1, check_try=1)]
    assert job.rank(1).deadline == T0 + POLICY.check_timeout


def test_a_running_check_shows_on_the_node() -> None:
    job = a_running_job(nodes=2).fails(0)
    assert job.node_statuses == [NodeStatus.PENDING, NodeStatus.PENDING]
    assert job.check_starts(0).node_statuses == [NodeStatus.PENDING_HEALTHCHECK, NodeStatus.PENDING]


@pytest.mark.parametrize("first", [HEALTHY, REBOOT, REPLACE])
def test_nothing_is_decided_on_the_first_verdict(first: Verdict) -> None:
    job = a_job_under_test(nodes=3).check_says(first, 0)
    assert (job.status, job.orders) == (JobStatus.PENDING_HEALTHCHECK, [])
    job.check_says(first, 1)
    assert (job.status, job.orders) == (JobStatus.PENDING_HEALTHCHECK, [])


def test_a_gpu_fault_reboots_the_bad_node_only_and_spends_a_retry() -> None:
    job = a_job_under_test(nodes=3).check_says(REBOOT, 1, findings="Xid 79").check_says(HEALTHY, 0, 2)
    assert (job.status, job.job.attempt) == (JobStatus.PENDING_RESTART, 1)
    assert job.orders == [like(RebootNode, node="n1", key="j/1/1/reboot")]
    assert job.node_statuses == [NodeStatus.AVAILABLE, NodeStatus.REBOOTING, NodeStatus.AVAILABLE]
    assert job.node(1).deadline == T0 + POLICY.reboot_timeout


def test_several_bad_nodes_are_rebooted_together_for_one_retry() -> None:
    job = a_job_under_test(nodes=3).check_says(REBOOT, 0, 2).check_says(HEALTHY, 1)
    assert job.orders == [like(RebootNode, node="n0"), like(RebootNode, node="n2")]
    assert job.job.attempt == 1


def test_the_bad_node_need_not_be_the_one_whose_rank_died_first() -> None:
    job = a_job_under_test(nodes=2, failed=(0,)).check_says(HEALTHY, 0).check_says(REBOOT, 1)
    assert job.orders == [like(RebootNode, node="n1")]


def test_all_healthy_means_no_gpu_fault_the_job_fails_and_the_nodes_are_free() -> None:
    job = a_job_under_test(nodes=2).check_says(HEALTHY)
    assert (job.status, job.job.outcome) == (
        JobStatus.FAILED,
        "rank 0 on n0 died with exit code 1; no GPU fault found",
    )
    assert job.node_statuses == [NodeStatus.AVAILABLE] * 2
    assert job.orders == [like(Notify, key="j/notify/failed")]
    assert job.job.attempt == 0, "the retry is not spent"


def test_a_node_to_replace_is_failed_without_a_reboot_and_ends_the_job() -> None:
    job = (
        a_job_under_test(nodes=3)
        .check_says(REPLACE, 0, findings="SRAM threshold")
        .check_says(REBOOT, 1)
        .check_says(HEALTHY, 2)
    )
    assert job.status is JobStatus.FAILED
    assert job.orders == [like(Notify, key="j/notify/failed", node="n0")], (
        "no reboot: the job can't go on without n0"
    )
    assert job.node_statuses == [NodeStatus.FAILED, NodeStatus.FAILED, NodeStatus.AVAILABLE]


def test_a_fault_with_no_retry_left_fails_the_job_and_the_node() -> None:
    job = a_job_in_its_second_attempt(nodes=2).fails(0).stops().check_says(REBOOT, 0).check_says(HEALTHY, 1)
    assert (job.status, job.job.attempt) == (JobStatus.FAILED, 1)
    assert "GPU fault on n0; no restart is left (1 of 1 used)" in job.job.outcome
    assert job.node_statuses == [NodeStatus.FAILED, NodeStatus.AVAILABLE]
    assert job.orders == [like(Notify)]


def test_a_job_with_more_retries_is_recovered_again() -> None:
    job = (
        a_job_in_its_second_attempt(nodes=2, policy=with_retries(2))
        .fails(0)
        .stops()
        .check_says(REBOOT, 0)
        .check_says(HEALTHY, 1)
    )
    assert (job.status, job.job.attempt) == (JobStatus.PENDING_RESTART, 2)
    assert job.orders == [like(RebootNode, node="n0", key="j/2/0/reboot")]


# -- checks that don't answer --------------------------------------------------------------------------------------


def test_an_inconclusive_check_is_tried_once_more() -> None:
    job = a_job_under_test(nodes=2).check_says(INCONCLUSIVE, 0)
    assert job.orders == [like(CheckNode, rank=0, check_try=2)]
    assert job.rank(0).verdict is None


def test_twice_inconclusive_is_not_proven_bad_so_nothing_is_rebooted() -> None:
    job = (
        a_job_under_test(nodes=2)
        .check_says(HEALTHY, 1)
        .check_says(INCONCLUSIVE, 0)
        .check_says(INCONCLUSIVE, 0)
    )
    assert job.status is JobStatus.FAILED
    assert "n0 could not be tested" in job.job.outcome
    assert job.node_statuses == [NodeStatus.AVAILABLE] * 2


def test_an_untested_node_does_not_keep_a_proven_fault_from_being_repaired() -> None:
    job = (
        a_job_under_test(nodes=2)
        .check_says(REBOOT, 1)
        .check_says(INCONCLUSIVE, 0)
        .check_says(INCONCLUSIVE, 0)
    )
    assert job.orders == [like(RebootNode, node="n1")]
    assert job.node_statuses == [NodeStatus.AVAILABLE, NodeStatus.REBOOTING]


def test_a_check_that_never_answers_is_stopped_and_tried_once_more_and_then_counts_as_inconclusive() -> None:
    job = a_job_under_test(nodes=1).after(POLICY.check_timeout)
    assert job.orders == [like(StopTask, task_id="c0.1"), like(CheckNode, check_try=2)]
    job.check_starts(0).after(POLICY.check_timeout)
    assert (job.status, job.rank(0).verdict) == (JobStatus.FAILED, INCONCLUSIVE)


def test_a_check_refused_while_the_old_task_holds_its_gpus_waits_for_the_stop() -> None:
    job = a_running_job(nodes=1).fails(0).check_is_refused(0, "RESOURCE:GPU")
    assert (job.status, job.orders) == (JobStatus.PENDING_HEALTHCHECK, [])
    assert job.order(CheckNode).due == T0 + POLICY.backoff_first
    assert job.rank(0).checks_spent == 0, "a check that has not begun is not a check without an answer"


def test_a_check_that_can_never_start_counts_as_inconclusive_and_the_node_was_never_under_test() -> None:
    job = a_running_job(nodes=2).fails(0).stops().check_says(REBOOT, 1)
    job.check_is_refused(0, "ATTRIBUTE").check_is_refused(0, "ATTRIBUTE")
    assert (job.status, job.node_statuses[0]) == (JobStatus.PENDING_RESTART, NodeStatus.AVAILABLE)
    assert ("n0", "PENDING", "AVAILABLE") in job.moves


def test_a_check_that_is_refused_because_the_machine_is_gone_finds_it_lost() -> None:
    job = a_running_job(nodes=2).fails(0).stops().check_says(HEALTHY, 1).check_is_refused(0, "MISSING")
    assert (job.status, job.rank(0).verdict, job.node_statuses[0]) == (
        JobStatus.PENDING_RESTART, Verdict.LOST, NodeStatus.UNKNOWN,
    )  # fmt: skip
    assert "MISSING" in job.rank(0).findings


def test_a_verdict_of_an_earlier_examination_is_not_taken_for_one_of_this() -> None:
    """The task is still being stopped, so this attempt has not begun a check on that node."""
    job = a_job_in_its_second_attempt(nodes=2, policy=with_retries(2))
    stale = NodeChecked(at=T0, node="n1", check_id="c1.1", check_try=1, verdict=REBOOT)
    job.fails(0).hears(stale)
    assert job.rank(1).verdict is None
    assert job.rank(1).deadline is not None
    assert job.stops(1).check_says(HEALTHY).status is JobStatus.FAILED


def test_a_verdict_of_the_check_before_the_first_start_is_not_taken_for_one_of_the_failure() -> None:
    job = a_new_job(nodes=2, check=True)
    stale = job.checked(1, HEALTHY)
    job.check_says(HEALTHY).starts().fails(0).hears(stale)
    assert job.rank(1).verdict is None


def test_a_verdict_of_a_check_that_was_given_up_is_ignored() -> None:
    job = a_job_under_test(nodes=1)
    first = job.checked(0, REBOOT)
    assert job.after(POLICY.check_timeout).hears(first).rank(0).verdict is None


# -- tasks and nodes that make trouble meanwhile -------------------------------------------------------------------


def test_a_task_that_does_not_stop_in_time_makes_its_node_lost_but_still_in_the_way() -> None:
    job = a_running_job(nodes=2).fails(0).check_says(REBOOT, 0).is_seen(1, connected=False)
    job.after(POLICY.stop_timeout)
    assert (job.status, job.rank(1).verdict) == (JobStatus.PENDING_RESTART, Verdict.LOST)
    assert job.orders == [like(RebootNode, node="n0")], "a node that is only silent is not rebooted"
    assert job.node_statuses == [NodeStatus.REBOOTING, NodeStatus.UNKNOWN]
    assert job.reboots(0).status is JobStatus.PENDING_RESTART, "its task may still run"
    assert job.is_seen(1, connected=True).stops(1).status is JobStatus.RESTARTING


def test_a_job_that_can_not_be_recovered_stops_the_silent_task_once_more_before_it_ends() -> None:
    job = a_running_job(nodes=2, policy=with_retries(0)).fails(0).sent("j/0/1/stop/1")
    job.check_says(REBOOT, 0).after(POLICY.stop_timeout)
    assert (job.status, job.orders) == (JobStatus.PENDING_HEALTHCHECK, [like(StopTask, rank=1)])
    job.after(POLICY.stop_timeout)
    assert job.status is JobStatus.FAILED
    assert job.node_statuses == [NodeStatus.FAILED, NodeStatus.UNKNOWN]


def test_a_node_lost_during_the_examination_gets_its_verdict_and_its_check_is_withdrawn() -> None:
    job = a_job_under_test(nodes=2).check_says(HEALTHY, 1).loses(0)
    assert job.rank(0).verdict is Verdict.LOST
    assert job.status is JobStatus.PENDING_RESTART
    assert job.orders == [like(StopTask, node="n0", task_id="c0.1")]
    assert job.node_statuses == [NodeStatus.UNKNOWN, NodeStatus.AVAILABLE]


def test_a_lost_node_is_awaited_and_never_ordered_to_reboot() -> None:
    job = a_running_job(nodes=2).loses(0).stops(1).check_says(HEALTHY, 1)
    assert (job.status, job.job.attempt, job.orders) == (JobStatus.PENDING_RESTART, 1, [])
    assert job.node(0).deadline == job.now + POLICY.reboot_timeout


def test_an_exit_that_arrives_now_is_noted_and_changes_nothing_else() -> None:
    job = a_running_job(nodes=2).fails(0).ends(1, 139)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert job.rank(1).task_status is TaskStatus.TERMINATED


def test_a_task_that_starts_too_late_is_known_and_stopped() -> None:
    job = a_new_job(nodes=2).starts(0).fails(0).starts(1)
    assert job.rank(1).task_status is TaskStatus.IN_PROGRESS
    assert job.orders == [like(StopTask, task_id="t1.0.1", node="n1")]
    assert job.stops(1).orders == [like(CheckNode, rank=1)]


def test_a_late_word_that_a_known_task_runs_changes_nothing() -> None:
    job = a_running_job(nodes=2).fails(0)
    before = job.job
    job.hears(TaskStarted(at=T0, task_id="t1.0.1", attempt=0, rank=1, running=True))
    assert job.job is before


# -- people --------------------------------------------------------------------------------------------------------


def test_a_person_can_stop_the_job_and_its_checks_are_withdrawn() -> None:
    job = a_job_under_test(nodes=2).person_stops_it()
    assert job.status is JobStatus.USER_STOPPED
    assert job.orders == [like(StopTask, task_id="c0.1"), like(StopTask, task_id="c1.1")]
    assert job.node_statuses == [NodeStatus.AVAILABLE] * 2


def test_a_stopped_check_that_says_it_could_not_tell_is_not_asked_again() -> None:
    job = a_running_job(nodes=2).fails(0).check_starts(0).person_stops_it().check_says(INCONCLUSIVE, 0)
    assert job.orders == []
    assert job.stops(1).status is JobStatus.USER_STOPPED
    assert not [o for o in job.outbox if isinstance(o, CheckNode)]


def test_a_person_who_stopped_a_rank_before_our_stop_reached_it_stops_the_job() -> None:
    job = a_running_job(nodes=2).fails(0).is_stopped_by_a_person(1)
    assert job.status is JobStatus.USER_STOPPED


def test_a_job_that_a_person_ends_ends_although_a_node_is_lost_meanwhile() -> None:
    job = a_running_job(nodes=2).fails(0).is_seen(1, connected=False)
    job.now += POLICY.node_lost_after
    job.person_stops_it().after(MINUTE)
    assert job.status is JobStatus.PENDING_HEALTHCHECK, "it waits for the task to stop"
    assert job.after(POLICY.stop_timeout).status is JobStatus.USER_STOPPED
