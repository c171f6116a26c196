"""IN_PROGRESS: the gang starts, runs, finishes, or somebody falls."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.effects import CheckNode, Notify, StartTask, StopTask
from ecs_gpu_recovery.core.events import TaskEnded, TaskStarted
from ecs_gpu_recovery.core.model import Exit, JobStatus, NodeStatus, TaskStatus, Verdict
from tests.core.story import (
    MINUTE,
    OOM,
    POLICY,
    T0,
    a_job_in_its_second_attempt,
    a_new_job,
    a_running_job,
    like,
)


def test_a_started_rank_is_in_progress_on_its_node() -> None:
    job = a_new_job(nodes=2).starts(0, running=False)
    assert job.rank(0).task_status is TaskStatus.IN_PROGRESS
    assert job.node_statuses == [NodeStatus.IN_PROGRESS, NodeStatus.ASSIGNED]
    assert job.outbox == [like(StartTask, rank=1)], "its start is not sent again"


def test_a_rank_has_its_start_deadline_until_it_really_runs() -> None:
    job = a_new_job(nodes=1).starts(0, running=False)
    assert job.rank(0).deadline == T0 + POLICY.start_timeout
    assert job.starts(0, running=True).rank(0).deadline is None


def test_a_job_whose_ranks_all_end_with_0_is_complete() -> None:
    job = a_running_job(nodes=3).finishes(0, 2)
    assert job.status is JobStatus.IN_PROGRESS
    job.finishes(1)
    assert job.status is JobStatus.COMPLETE
    assert [rank.task_status for rank in job.job.ranks] == [TaskStatus.COMPLETE] * 3
    assert job.node_statuses == [NodeStatus.AVAILABLE] * 3
    assert job.orders == [], "nobody needs to be told"


def test_one_dead_rank_stops_the_gang_and_its_own_node_is_examined_at_once() -> None:
    job = a_running_job(nodes=4).fails(2)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert job.rank(2).task_status is TaskStatus.TERMINATED
    assert job.orders == [
        like(StopTask, rank=0, task_id="t0.0.1"),
        like(StopTask, rank=1, task_id="t1.0.1"),
        like(CheckNode, rank=2, node="n2", attempt=0),
        like(StopTask, rank=3, task_id="t3.0.1"),
    ]
    assert job.node_statuses == [NodeStatus.PENDING] * 4


def test_our_own_stops_say_whose_they_are() -> None:
    stop = a_running_job(nodes=2).fails(0).orders[1]
    assert isinstance(stop, StopTask)
    assert stop.reason.startswith("gpu-recovery j/0:")


def test_a_rank_that_finished_does_not_save_the_job() -> None:
    job = a_running_job(nodes=2).finishes(0).fails(1)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert job.orders == [like(CheckNode, rank=0), like(CheckNode, rank=1)], (
        "the finished rank's node is examined too"
    )


def test_exit_codes_that_start_a_check_are_a_matter_of_policy() -> None:
    assert a_running_job(nodes=2).ends(0, 1).status is JobStatus.PENDING_HEALTHCHECK
    job = a_running_job(nodes=2).ends(0, 139)
    assert (job.status, job.orders) == (JobStatus.IN_PROGRESS, [like(StopTask, rank=1)])


@pytest.mark.parametrize(
    ("exit_code", "reason", "stop_code"),
    [
        (137, OOM, "EssentialContainerExited"),
        (1, OOM, "EssentialContainerExited"),
        (None, "CannotPullContainerError: no such image", "TaskFailedToStart"),
        (None, "ResourceInitializationError: no such secret", "TaskFailedToStart"),
        (139, "", "EssentialContainerExited"),
        (2, "", "EssentialContainerExited"),
    ],
)
def test_an_end_that_no_reboot_cures_stops_the_gang_and_fails_the_job(
    exit_code: int | None, reason: str, stop_code: str
) -> None:
    job = a_running_job(nodes=2).ends(0, exit_code, reason, stop_code)
    assert (job.status, job.orders) == (JobStatus.IN_PROGRESS, [like(StopTask, rank=1)]), (
        "it ends when all have stopped"
    )
    job.stops()
    assert job.status is JobStatus.FAILED
    assert job.orders == [like(Notify, key="j/notify/failed")]
    assert job.node_statuses == [NodeStatus.AVAILABLE] * 2
    assert job.job.attempt == 0


def test_a_suspect_exit_that_arrives_while_the_job_fails_of_another_one_is_examined_after_all() -> None:
    job = a_running_job(nodes=3).ends(0, 139).fails(1)
    assert job.status is JobStatus.PENDING_HEALTHCHECK


def test_out_of_memory_is_not_examined_whatever_else_arrives() -> None:
    job = a_running_job(nodes=3).ends(0, 1, OOM).fails(1).stops()
    assert job.status is JobStatus.FAILED
    assert "out of memory" in job.job.outcome


def test_a_person_who_stops_one_rank_stops_the_job() -> None:
    job = a_running_job(nodes=3).is_stopped_by_a_person(1)
    assert (job.status, job.orders) == (
        JobStatus.IN_PROGRESS,
        [like(StopTask, rank=0), like(StopTask, rank=2)],
    )
    assert job.stops(0).status is JobStatus.IN_PROGRESS
    job.stops(2)
    assert job.status is JobStatus.USER_STOPPED
    assert job.node_statuses == [NodeStatus.AVAILABLE] * 3


def test_a_person_who_stops_the_job_stops_every_rank() -> None:
    job = a_running_job(nodes=2).person_stops_it(by="ann", why="wrong data")
    assert job.orders == [like(StopTask, rank=0), like(StopTask, rank=1)]
    job.stops()
    assert (job.status, job.job.outcome) == (JobStatus.USER_STOPPED, "stopped by ann: wrong data")


def test_a_suspect_exit_after_a_person_asked_for_the_end_changes_nothing() -> None:
    assert a_running_job(nodes=2).person_stops_it().fails(0).stops().status is JobStatus.USER_STOPPED


def test_a_gang_that_does_not_stop_in_time_is_given_up_and_somebody_is_told() -> None:
    job = a_running_job(nodes=2).person_stops_it().stops(0).after(POLICY.stop_timeout)
    assert job.status is JobStatus.USER_STOPPED
    assert job.rank(1).exit is Exit.LOST
    assert job.node_statuses == [NodeStatus.AVAILABLE, NodeStatus.UNKNOWN]
    assert job.orders == [like(Notify, key="j/notify/unresponsive", node="n1")]


def test_a_task_that_would_not_stop_is_never_restarted_over() -> None:
    """Its end was not confirmed, so it may still run: the job fails instead of starting a second gang beside it."""
    job = a_running_job(nodes=2).ends(0, 139).after(POLICY.stop_timeout)
    assert job.status is JobStatus.FAILED
    assert job.node_statuses == [NodeStatus.AVAILABLE, NodeStatus.UNKNOWN]


def test_a_start_that_is_withdrawn_is_stopped_by_its_token() -> None:
    job = a_new_job(nodes=2).starts(0)
    token = job.outbox[0].token  # type: ignore[union-attr]
    job.fails(0)
    assert job.orders == [like(CheckNode, rank=0), like(StopTask, rank=1, task_id="", token=token)]
    assert not [o for o in job.outbox if isinstance(o, StartTask)]


def test_a_withdrawn_start_that_came_through_after_all_is_stopped_by_its_id() -> None:
    """The stop by token may have looked before the cluster knew the task."""
    job = a_new_job(nodes=2).starts(0).person_stops_it().starts(1)
    assert job.rank(1).task_status is TaskStatus.IN_PROGRESS
    assert job.orders == [like(StopTask, task_id="t1.0.1", node="n1")]
    assert job.stops().status is JobStatus.USER_STOPPED


def test_a_stop_that_finds_no_task_ends_the_rank() -> None:
    job = a_new_job(nodes=2).starts(0).person_stops_it().stops(0)
    nothing = TaskEnded(
        at=T0,
        task_id="",
        attempt=0,
        rank=1,
        exit_code=None,
        reason="gpu-recovery j/0: stopped",
        stop_code="UserInitiated",
    )
    assert job.hears(nothing).status is JobStatus.USER_STOPPED


def test_an_end_that_arrives_before_the_start_is_taken_for_both() -> None:
    job = a_new_job(nodes=2).starts(0).ends(1, 0)
    assert job.rank(1).task_status is TaskStatus.COMPLETE
    assert job.finishes(0).status is JobStatus.COMPLETE


# -- starts that do not work ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["AGENT", "RESOURCE:GPU", "RESOURCE:MEMORY"])
def test_a_start_refused_for_a_passing_reason_is_tried_again_later_and_later(reason: str) -> None:
    job = a_new_job(nodes=1).cannot_start(0, reason)
    assert job.status is JobStatus.IN_PROGRESS
    assert job.orders == [], "the sweeper sends it when it is due"
    assert job.order(StartTask).due == T0 + POLICY.backoff_first
    job.now += POLICY.backoff_first
    job.cannot_start(0, reason)
    assert job.order(StartTask).due == job.now + 2 * POLICY.backoff_first


def test_a_start_refused_for_any_other_reason_fails_the_job() -> None:
    job = a_new_job(nodes=2).starts(0).cannot_start(1, "ATTRIBUTE")
    assert job.orders == [like(StopTask, rank=0)]
    assert job.rank(1).task_status is TaskStatus.TERMINATED
    assert job.stops().status is JobStatus.FAILED
    assert "ATTRIBUTE" in job.job.outcome


def test_a_start_that_is_refused_until_its_deadline_fails_the_job_with_the_reason() -> None:
    job = a_new_job(nodes=1).cannot_start(0, "AGENT").after(POLICY.start_timeout)
    assert job.orders == [like(StopTask, rank=0, task_id="")], "in case it got through"
    assert job.stops(0).status is JobStatus.FAILED
    assert "AGENT" in job.job.outcome


def test_a_task_that_never_gets_to_run_fails_the_job() -> None:
    job = a_new_job(nodes=2).starts(0).starts(1, running=False).after(POLICY.start_timeout)
    assert job.orders == [like(StopTask, rank=0), like(StopTask, rank=1)]
    assert job.stops().status is JobStatus.FAILED


def test_a_task_that_failed_to_start_for_a_passing_reason_is_started_again_under_a_new_name() -> None:
    job = a_new_job(nodes=2).starts(0)
    first = job.order(StartTask, rank=1).effect.token  # type: ignore[union-attr]
    job.ends(1, None, "TaskFailedToStart: RESOURCE:GPU", "TaskFailedToStart")
    second = job.order(StartTask, rank=1)
    assert job.status is JobStatus.IN_PROGRESS
    assert second.effect.token != first  # type: ignore[union-attr]
    assert second.due > job.now
    assert job.rank(1).deadline == T0 + POLICY.start_timeout, "all tries share one deadline"


def test_news_of_a_task_that_never_ran_is_not_taken_for_news_of_the_next_one() -> None:
    job = a_new_job(nodes=2).starts(0)
    dead = job.ended(1, None, "TaskFailedToStart: RESOURCE:GPU", "TaskFailedToStart")
    job.hears(dead)
    again = job.job
    assert job.hears(dead).job is again, "told twice is told once"
    job.hears(TaskStarted(at=T0, task_id=dead.task_id, attempt=0, rank=1, running=True))
    assert job.rank(1).task_status is None, "it still waits for the second task"
    assert job.starts(1).rank(1).task_id == "t1.0.2"


# -- nodes that go away ----------------------------------------------------------------------------------------------


def test_a_single_disconnect_means_nothing() -> None:
    job = a_running_job(nodes=2).is_seen(0, connected=False).after(POLICY.node_lost_after - MINUTE)
    assert (job.status, job.orders) == (JobStatus.IN_PROGRESS, [])
    assert job.is_seen(0).after(POLICY.node_lost_after).status is JobStatus.IN_PROGRESS


def test_a_node_that_stays_away_is_lost_and_the_others_are_examined() -> None:
    job = a_running_job(nodes=2).loses(0)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert job.rank(0).verdict is Verdict.LOST
    assert job.node_statuses == [NodeStatus.UNKNOWN, NodeStatus.PENDING]
    assert job.orders == [like(StopTask, rank=0), like(StopTask, rank=1)]
    assert job.rank(0).live, "its task may still run somewhere out of sight"


def test_a_terminated_instance_is_lost_at_once() -> None:
    job = a_running_job(nodes=2).is_seen(0, connected=False, gone=True, why="terminated")
    assert job.rank(0).verdict is Verdict.LOST
    assert job.orders == [like(StopTask, rank=0), like(StopTask, rank=1)]


@pytest.mark.parametrize("stop_code", ["SpotInterruption", "TerminationNotice"])
def test_a_task_that_ends_with_its_host_is_lost_and_not_examined(stop_code: str) -> None:
    job = a_running_job(nodes=2).ends(0, None, "Host EC2 (instance i-1) terminated.", stop_code)
    assert job.rank(0).verdict is Verdict.LOST
    assert job.orders == [like(StopTask, rank=1)]


# -- exit code 0 is not always a success (the node restarted under the task) ---------------------------------------


def test_an_exit_0_after_the_node_restarted_under_the_task_is_no_success() -> None:
    job = a_running_job(nodes=2).is_seen(0, boot_id="boot-2").finishes(0)
    assert job.rank(0).exit is Exit.LOST
    assert job.status is JobStatus.PENDING_HEALTHCHECK


def test_an_exit_0_after_a_restart_that_was_seen_before_the_task_was_known_is_no_success() -> None:
    job = a_new_job(nodes=2).is_seen(0, boot_id="boot-2").starts().finishes(0)
    assert job.rank(0).exit is Exit.LOST


def test_a_restart_before_a_refused_start_hits_nothing() -> None:
    job = a_new_job(nodes=1).is_seen(0, boot_id="boot-2").cannot_start(0, "AGENT").starts(0).finishes(0)
    assert job.status is JobStatus.COMPLETE


def test_a_flap_of_a_node_that_tells_its_boot_id_casts_no_doubt() -> None:
    job = (
        a_running_job(nodes=1)
        .is_seen(0, connected=False, boot_id="boot-1")
        .is_seen(0, boot_id="boot-1")
        .finishes(0)
    )
    assert job.status is JobStatus.COMPLETE


def test_a_flap_of_a_node_without_a_boot_id_casts_doubt_until_its_task_is_seen_running_again() -> None:
    job = a_running_job(nodes=1, boot_id="").is_seen(0, connected=False)
    job.now += MINUTE
    job.is_seen(0)
    assert job.rank(0).doubted
    old_news = TaskStarted(at=T0, task_id="t0.0.1", attempt=0, rank=0, running=True)
    assert job.hears(old_news).rank(0).doubted, "seen running before the flap proves nothing about after"
    job.now += POLICY.agent_report
    assert job.starts(0).finishes(0).status is JobStatus.COMPLETE


def test_a_success_that_a_restart_faked_is_not_believed_for_a_look_before_the_agent_has_reported() -> None:
    """The agent is back, the cluster still calls the dead task running, and then its end is told with exit code 0."""
    job = a_running_job(nodes=2, boot_id="").is_seen(0, connected=False)
    job.now += MINUTE
    job.is_seen(0)
    job.now += POLICY.agent_report / 2
    assert job.starts(0).rank(0).doubted
    assert job.finishes(0).rank(0).exit is Exit.LOST
    assert job.status is JobStatus.PENDING_HEALTHCHECK


def test_a_rank_that_nobody_sees_running_while_the_others_have_finished_is_lost_in_the_end() -> None:
    job = a_running_job(nodes=2).finishes(0)
    for _ in range(3):
        job.now += POLICY.start_timeout * 0.9
        job.starts(1).after(MINUTE)
        assert job.status is JobStatus.IN_PROGRESS, "it takes its time, and is seen to"
    job.after(POLICY.start_timeout)
    assert (job.status, job.rank(1).exit) == (JobStatus.PENDING_HEALTHCHECK, Exit.LOST)


def test_looks_at_a_rank_that_runs_longer_than_the_others_are_not_written_down_each_time() -> None:
    job = a_running_job(nodes=2).finishes(0)
    before = job.job
    job.now += MINUTE
    assert job.starts(1).job is before


def test_a_doubted_exit_0_is_lost() -> None:
    job = a_running_job(nodes=2, boot_id="").is_seen(0, connected=False).is_seen(0).finishes(0)
    assert job.rank(0).exit is Exit.LOST


def test_the_boot_id_of_an_ordered_reboot_is_no_restart_under_the_next_task() -> None:
    job = a_job_in_its_second_attempt(nodes=2)
    job.is_seen(0, boot_id="boot-2").finishes(0, 1)
    assert job.status is JobStatus.COMPLETE


# -- strangers -----------------------------------------------------------------------------------------------------


def test_a_task_that_only_says_it_is_ours_is_stopped() -> None:
    job = a_running_job(nodes=2).hears(
        TaskStarted(at=T0, task_id="stranger", attempt=0, rank=1, running=True)
    )
    assert job.orders == [like(StopTask, task_id="stranger", node="n1", rank=-1)]
    assert job.rank(1).task_id == "t1.0.1"


@pytest.mark.parametrize(("attempt", "rank"), [(0, 7), (3, 0), (0, -1)])
def test_an_end_of_nobody_we_know_changes_nothing(attempt: int, rank: int) -> None:
    job = a_running_job(nodes=2)
    before = job.job
    job.hears(TaskEnded(at=T0, task_id="stranger", attempt=attempt, rank=rank, exit_code=1))
    assert job.job is before


def test_an_end_of_the_first_attempt_that_arrives_in_the_second_changes_nothing() -> None:
    job = a_running_job(nodes=2)
    old = job.ended(0, 1)
    second = a_job_in_its_second_attempt(nodes=2)
    before = second.job
    assert second.hears(old).job is before
