"""From IN_PROGRESS: what each end of a task means for the job."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.model import Exit, JobStatus, TaskStatus, Verdict
from ecs_gpu_recovery.core.policy import Policy
from tests.decisions.story import Story

S = JobStatus


def test_a_job_submitted_without_a_check_starts_every_rank_at_once() -> None:
    story = Story(3)
    assert story.job.status is S.IN_PROGRESS
    assert story.order_names() == ["StartTask n0", "StartTask n1", "StartTask n2"]
    assert story.nodes == ["ASSIGNED"] * 3


def test_a_node_is_in_progress_once_its_rank_has_started() -> None:
    assert Story().started(0).nodes == ["IN_PROGRESS", "ASSIGNED"]


def test_a_job_is_complete_when_every_rank_ended_with_success_and_its_nodes_are_free() -> None:
    story = Story().running().ended(0, 0)
    assert story.job.status is S.IN_PROGRESS
    story.ended(1, 0)
    assert story.job.status is S.COMPLETE
    assert story.nodes == ["AVAILABLE", "AVAILABLE"]
    assert story.messages() == []


def test_one_dead_rank_stops_the_gang_and_checks_its_node_first() -> None:
    story = Story(4).running().ended(2, 1)
    assert story.job.status is S.PENDING_HEALTHCHECK
    assert story.order_names() == ["StopTask n0", "StopTask n1", "CheckNode n2", "StopTask n3"]
    assert story.nodes == ["PENDING"] * 4
    assert story.job.ranks[2].task_status is TaskStatus.TERMINATED


def test_a_node_is_checked_only_when_its_old_task_has_ended() -> None:
    story = Story().running().ended(0, 1)
    story.stopped_by_us(1)
    assert story.order_names() == ["CheckNode n1"]


def test_a_rank_that_finished_does_not_save_the_job() -> None:
    story = Story().running().ended(0, 0).ended(1, 1)
    assert story.job.status is S.PENDING_HEALTHCHECK
    assert story.order_names() == ["CheckNode n0", "CheckNode n1"]


@pytest.mark.parametrize(
    ("exit_code", "reason", "stop_code", "says"),
    [
        (137, "OutOfMemoryError: Container killed due to memory usage", "EssentialContainerExited", "out of memory"),
        (1, "OutOfMemoryError: Container killed due to memory usage", "EssentialContainerExited", "out of memory"),
        (None, "CannotPullContainerError: no such image", "TaskFailedToStart", "never started"),
        (None, "ResourceInitializationError: secret", "TaskFailedToStart", "never started"),
        (134, "", "EssentialContainerExited", "exit code 134"),
        (139, "", "EssentialContainerExited", "exit code 139"),
    ],
)
def test_an_end_that_no_reboot_cures_fails_the_job_without_a_check(exit_code: int | None, reason: str, stop_code: str, says: str) -> None:
    story = Story().running().ended(0, exit_code, reason=reason, stop_code=stop_code)
    assert story.order_names() == ["StopTask n1"]
    story.stopped_by_us(1)
    assert story.job.status is S.FAILED
    assert says in story.job.outcome
    assert story.nodes == ["AVAILABLE", "AVAILABLE"]
    assert len(story.messages()) == 1


def test_the_exit_codes_that_start_a_check_are_the_policys() -> None:
    story = Story(policy=Policy(healthcheck_exit_codes=frozenset({1, 134}))).running().ended(0, 134)
    assert story.job.status is S.PENDING_HEALTHCHECK


def test_a_suspect_exit_that_arrives_while_the_gang_stops_for_another_reason_still_starts_the_check() -> None:
    story = Story(3).running().ended(0, 134).ended(1, 1)
    assert story.job.status is S.PENDING_HEALTHCHECK


def test_out_of_memory_stays_the_cause_whatever_its_neighbours_say_afterwards() -> None:
    story = Story().running().ended(0, 137, reason="OutOfMemoryError: killed").ended(1, 1)
    assert story.job.status is S.FAILED


def test_a_sibling_stopped_by_us_is_not_taken_for_the_cause_its_reason_quotes() -> None:
    story = Story().running().ended(0, 137, reason="OutOfMemoryError: killed")
    story.ended(1, 143, stop_code="UserInitiated", reason="gpu-recovery j/0: rank 0 on n0 out of memory: OutOfMemoryError: killed")
    assert story.job.ranks[1].exit is Exit.STOPPED_BY_US


def test_a_person_stopping_one_rank_stops_the_job() -> None:
    story = Story(3).running().ended(1, 143, stop_code="UserInitiated", reason="Task stopped by user")
    assert story.order_names() == ["StopTask n0", "StopTask n2"]
    assert story.job.status is S.IN_PROGRESS
    story.stopped_by_us(0, 2)
    assert story.job.status is S.USER_STOPPED
    assert story.nodes == ["AVAILABLE"] * 3


def test_a_person_may_stop_a_running_job() -> None:
    story = Story().running().asked_to_stop()
    assert story.order_names() == ["StopTask n0", "StopTask n1"]
    story.stopped_by_us(0, 1)
    assert story.job.status is S.USER_STOPPED
    assert story.job.outcome == "stopped by ann: enough"
    assert story.messages() == []


def test_exit_0_is_not_believed_when_the_node_was_away_since_the_task_started() -> None:
    story = Story().running().seen(0, connected=False).seen(0, connected=True).ended(0, 0)
    assert story.job.status is S.PENDING_HEALTHCHECK
    assert story.job.ranks[0].verdict is Verdict.LOST


def test_exit_0_is_believed_when_the_task_was_seen_running_after_the_flap() -> None:
    story = Story().running().seen(0, connected=False).seen(0, connected=True).later(seconds=1).started(0).ended(0, 0).ended(1, 0)
    assert story.job.status is S.COMPLETE


def test_exit_0_is_believed_over_a_flap_when_the_boot_id_shows_that_nothing_restarted() -> None:
    story = Story().seen(0, boot_id="b1").running().seen(0, connected=False, boot_id="b1").seen(0, boot_id="b1").ended(0, 0).ended(1, 0)
    assert story.job.status is S.COMPLETE


def test_exit_0_is_not_believed_when_the_boot_id_changed() -> None:
    story = Story().seen(0, boot_id="b1").running().seen(0, boot_id="b2").ended(0, 0)
    assert story.job.ranks[0].verdict is Verdict.LOST


def test_one_disconnect_means_nothing() -> None:
    story = Story().running().seen(0, connected=False).later(minutes=9).tick()
    assert story.job.status is S.IN_PROGRESS


def test_a_node_that_is_silent_for_too_long_is_lost_and_the_others_are_examined() -> None:
    story = Story().running().seen(0, connected=False).later(minutes=10).tick()
    assert story.job.status is S.PENDING_HEALTHCHECK
    assert story.nodes == ["UNKNOWN", "PENDING"]
    assert story.job.ranks[0].verdict is Verdict.LOST
    assert "RebootNode n0" not in story.order_names()


@pytest.mark.parametrize(
    ("reason", "stop_code"),
    [("Host EC2 (instance i-0) terminated.", "TerminationNotice"), ("Your Spot Task was interrupted.", "SpotInterruption"),
     ("No container matching saved ID found", "EssentialContainerExited")],
)  # fmt: skip
def test_a_task_that_ends_without_an_exit_code_is_a_lost_node(reason: str, stop_code: str) -> None:
    story = Story().running().ended(0, None, reason=reason, stop_code=stop_code)
    assert story.job.ranks[0].verdict is Verdict.LOST
    assert story.job.status is S.PENDING_HEALTHCHECK


def test_an_instance_that_is_gone_is_lost_at_once() -> None:
    story = Story().running().seen(0, connected=False, gone=True, why="terminated")
    assert story.job.ranks[0].verdict is Verdict.LOST


def test_an_instance_event_that_changes_nothing_writes_nothing() -> None:
    story = Story().running().seen(0, gpus=8, version=5)
    before = story.job
    story.seen(0, gpus=8, version=6)
    assert story.job is before


def test_an_older_sighting_is_ignored() -> None:
    story = Story().running().seen(0, connected=False, version=7)
    before = story.job
    assert story.seen(0, connected=True, version=6).job is before


@pytest.mark.parametrize("reason", ["AGENT", "RESOURCE:GPU", "RESOURCE:MEMORY"])
def test_a_refusal_that_passes_is_tried_again_until_the_deadline(reason: str) -> None:
    story = Story().start_refused(0, reason)
    (order,) = [o for o in story.pending("StartTask") if o.key.startswith("j/0/0/")]
    assert (order.tries, order.error) == (1, reason)
    assert order.due > story.at
    story.later(minutes=21).tick()
    assert story.job.ending is not None
    assert story.job.ending.status is S.FAILED


def test_any_other_refusal_stops_what_was_started_and_fails_the_job() -> None:
    story = Story().started(1).start_refused(0, "MISSING")
    assert story.order_names() == ["StopTask n1"]
    story.stopped_by_us(1)
    assert story.job.status is S.FAILED
    assert "MISSING" in story.job.outcome


def test_a_task_that_failed_to_start_for_want_of_its_agent_is_started_again() -> None:
    story = Story().started(0, running=False).started(1).ended(0, None, reason="TaskFailedToStart: AGENT", stop_code="TaskFailedToStart")
    assert story.job.status is S.IN_PROGRESS
    assert [o.key for o in story.pending("StartTask")] == ["j/0/0/start/2"]


def test_a_ghost_that_says_it_is_ours_is_stopped() -> None:
    from ecs_gpu_recovery.core.events import TaskStarted

    story = Story().running().tell(TaskStarted(at=Story().at, task_id="stranger", attempt=0, rank=1, running=True))
    assert story.order_names() == ["StopTask n1"]
    assert story.orders[0].task_id == "stranger"  # type: ignore[union-attr]


def test_an_event_of_an_earlier_attempt_changes_nothing() -> None:
    from ecs_gpu_recovery.core.events import TaskEnded

    story = Story().waiting_for_reboot().rebooted(0).started()
    before = story.job
    story.tell(TaskEnded(at=story.at, task_id="t0-1", attempt=0, rank=1, exit_code=1))
    assert story.job is before


def test_a_task_that_does_not_stop_in_time_leaves_its_node_unknown_and_tells_someone() -> None:
    story = Story().running().asked_to_stop().stopped_by_us(0).later(minutes=6).tick()
    assert story.job.status is S.USER_STOPPED
    assert story.nodes == ["AVAILABLE", "UNKNOWN"]
    assert [m.node for m in story.messages()] == ["n1"]


def test_evidence_of_a_fault_is_kept_and_not_acted_on() -> None:
    story = Story().running().fault_seen(0, "ACCELERATED_COMPUTE IMPAIRED XID_46")
    assert story.job.status is S.IN_PROGRESS
    assert story.job.timeline[-1].evidence == "ACCELERATED_COMPUTE IMPAIRED XID_46"
