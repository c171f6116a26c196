"""Jobs that go on: restarts that progress gives back, and what happens when no node is at fault."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.core.codec import CODEC
from ecs_gpu_recovery.core.model import JobStatus, Verdict
from ecs_gpu_recovery.core.policy import Policy
from tests.core.story import MINUTE, POLICY, Story, a_running_job

GOES_ON = Policy(post_reboot_check=False)
SEEDS = POLICY


def killed(story: Story, rank: int = 0, code: int = 137) -> Story:
    """A rank dies, the gang stops, and every node is healthy."""
    story.ends(rank, code).stops()
    return story.check_starts(*range(len(story.job.ranks))).check_says(Verdict.HEALTHY)


def broken(story: Story, rank: int = 0) -> Story:
    """A GPU fault, and the reboot that cures it, if there is one."""
    story.fails(rank).stops().check_starts(*range(len(story.job.ranks)))
    others = [r.index for r in story.job.ranks if r.index != rank]
    story.check_says(Verdict.HEALTHY, *others).check_says(Verdict.REBOOT, rank)
    if story.status is JobStatus.PENDING_RESTART:
        story.reboots(rank, boot_id=f"boot-{story.job.attempt + 1}").starts()
    return story


# -- a rank is killed, and no node is at fault --------------------------------------------------------------------


def test_a_killed_rank_does_not_end_a_job_that_got_somewhere() -> None:
    story = killed(a_running_job(2, policy=GOES_ON).gets_to(4200), rank=1)
    assert story.status is JobStatus.RESTARTING
    assert story.job.attempt == 1
    said = next(e.why for e in story.job.timeline if e.after == JobStatus.PENDING_RESTART)
    assert said == "rank 1 on n1 was killed (SIGKILL); GPUs healthy; restarted after step 4,200"
    assert story.starts().gets_to(4300).finishes().status is JobStatus.COMPLETE


def test_it_is_restarted_again_and_again_while_it_gets_further() -> None:
    story = a_running_job(2, policy=GOES_ON)
    for attempt in range(1, 21):
        story = killed(story.gets_to(attempt * 100)).starts()
        assert (story.status, story.job.attempt) == (JobStatus.IN_PROGRESS, attempt)


def test_the_same_step_twice_ends_it_with_that_reason() -> None:
    story = killed(killed(a_running_job(2, policy=GOES_ON).gets_to(70)).starts().gets_to(70))
    assert story.status is JobStatus.FAILED
    assert "the same step twice: look at the data or the checkpoint" in story.job.outcome
    assert story.job.outcome.startswith("rank 0 on n0 was killed (SIGKILL); no GPU fault found")


def test_steps_that_are_trained_again_are_no_progress() -> None:
    story = killed(a_running_job(2, policy=GOES_ON).gets_to(70)).starts()
    assert killed(story.gets_to(60).gets_to(69)).status is JobStatus.FAILED


@pytest.mark.parametrize("code", [1, 134, 137, 139, 143])
def test_signals_and_exit_code_1_are_examined_and_survived(code: int) -> None:
    assert killed(a_running_job(2, policy=GOES_ON).gets_to(5), code=code).status is JobStatus.RESTARTING


def test_a_code_of_the_program_itself_ends_it_at_once() -> None:
    assert a_running_job(2, policy=GOES_ON).gets_to(5).ends(0, 2).stops().status is JobStatus.FAILED


def test_where_it_shall_never_restart_a_killed_rank_ends_it_without_a_check() -> None:
    story = a_running_job(2, policy=SEEDS).gets_to(4200).ends(0, 137).stops()
    assert story.status is JobStatus.FAILED
    assert "was killed (SIGKILL), which no reboot cures" in story.job.outcome


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_without_a_marker_it_is_restarted_so_often_in_its_whole_life(retries: int) -> None:
    story = a_running_job(2, policy=replace(GOES_ON, max_retries=retries))
    for _ in range(retries):
        story = killed(story).starts()
        assert story.status is JobStatus.IN_PROGRESS
    assert killed(story).status is JobStatus.FAILED
    assert story.job.attempt == retries


def test_without_a_marker_a_reboot_that_held_gives_no_second_restart_on_healthy_nodes() -> None:
    story = broken(killed(a_running_job(2, policy=replace(GOES_ON, max_retries=2))).starts(), 1)
    assert story.status is JobStatus.IN_PROGRESS
    story.after(timedelta(hours=1))
    assert killed(story).starts().status is JobStatus.IN_PROGRESS
    assert killed(story).status is JobStatus.FAILED, "two in its whole life"


def test_a_node_that_could_not_be_tested_is_named() -> None:
    story = a_running_job(2, policy=GOES_ON).gets_to(7).ends(0, 137).stops().check_starts(0, 1)
    story.check_says(Verdict.HEALTHY, 0).check_says(Verdict.INCONCLUSIVE, 1)
    story.check_starts(1).check_says(Verdict.INCONCLUSIVE, 1)
    assert story.status is JobStatus.RESTARTING
    said = next(e.why for e in story.job.timeline if e.after == JobStatus.PENDING_RESTART)
    assert said == "rank 0 on n0 was killed (SIGKILL); n1 could not be tested; restarted after step 7"


# -- the budget ---------------------------------------------------------------------------------------------------


def test_a_gpu_fault_after_progress_is_not_held_against_the_job() -> None:
    story = a_running_job(2, policy=SEEDS)
    for attempt, bad in enumerate((0, 1, 0, 1), 1):
        story = broken(story.gets_to(attempt * 10), bad)
        assert (story.status, story.job.restarts_left) == (JobStatus.IN_PROGRESS, 0)
    assert story.gets_to(99).job.restarts_left == 1


def test_a_second_fault_without_progress_ends_it() -> None:
    story = broken(broken(a_running_job(2, policy=SEEDS).gets_to(10)), 1)
    assert story.status is JobStatus.FAILED
    assert story.job.outcome == (
        "GPU fault on n1; no restart is left (1 of 1 used); the same step twice: look at the data or the checkpoint"
    )


def test_a_budget_that_is_never_refilled_counts_every_restart() -> None:
    story = broken(a_running_job(2, policy=replace(SEEDS, retry_refill="never")).gets_to(10)).gets_to(20)
    assert story.job.restarts_left == 0
    assert broken(story, 1).status is JobStatus.FAILED


def test_all_restarts_together_have_a_limit() -> None:
    story = a_running_job(2, policy=replace(SEEDS, max_attempts=2))
    story = broken(broken(story.gets_to(1)).gets_to(2), 1)
    assert broken(story.gets_to(3)).status is JobStatus.FAILED
    assert "no restart is left (2 of 2 in all)" in story.job.outcome


@pytest.mark.parametrize(("minutes", "status"), [(29, JobStatus.FAILED), (31, JobStatus.IN_PROGRESS)])
def test_without_a_marker_a_repair_that_held_half_an_hour_is_forgiven(
    minutes: int, status: JobStatus
) -> None:
    story = broken(a_running_job(2, policy=SEEDS)).after(minutes * MINUTE)
    assert broken(story, 1).status is status


def test_the_time_that_a_restart_takes_is_no_time_that_the_repair_has_held() -> None:
    story = a_running_job(2, policy=SEEDS).fails(0).stops().check_starts(0, 1)
    story.check_says(Verdict.HEALTHY, 1).check_says(Verdict.REBOOT, 0).reboots(0)
    assert story.status is JobStatus.RESTARTING
    story.now += 20 * MINUTE
    assert broken(story.starts().after(11 * MINUTE), 1).status is JobStatus.FAILED


def test_with_a_marker_time_gives_nothing_back() -> None:
    story = broken(a_running_job(2, policy=SEEDS).gets_to(10)).after(timedelta(days=1))
    assert broken(story, 1).status is JobStatus.FAILED


# -- what counts as progress --------------------------------------------------------------------------------------


def test_what_was_there_before_the_job_is_no_progress_of_it() -> None:
    story = a_running_job(2, policy=GOES_ON)
    story.gets_to(4200, reached=story.job.created_at - MINUTE)
    assert story.job.restarts_left == 1
    assert killed(story).status is JobStatus.FAILED
    assert story.job.outcome.endswith("it made no progress")


def test_progress_that_is_told_late_counts_for_the_attempt_that_made_it() -> None:
    story = broken(a_running_job(2, policy=SEEDS)).gets_to(50, attempt=0)
    assert story.job.restarts_left == 0, "the restart since then brought none"
    assert story.gets_to(51, attempt=1).job.restarts_left == 1


def test_progress_that_is_told_between_two_attempts_is_that_of_the_first() -> None:
    story = a_running_job(2, policy=SEEDS).fails(0).stops().check_starts(0, 1)
    story.check_says(Verdict.REBOOT, 0).check_says(Verdict.HEALTHY, 1).gets_to(50)
    assert (story.status, story.job.restarts_left) == (JobStatus.PENDING_RESTART, 0)


def test_a_checkpoint_counts_by_its_name_and_only_upwards() -> None:
    story = broken(a_running_job(2, policy=SEEDS).gets_to(checkpoint="step-900"))
    for name, left in (("step-900", 0), ("step-80", 0), ("step-1000", 1)):
        assert story.gets_to(checkpoint=name).job.restarts_left == left
    said = str(story.job.marker)
    assert said == "checkpoint step-1000"


def test_a_checkpoint_from_before_the_restart_is_of_the_attempt_before() -> None:
    story = broken(a_running_job(2, policy=SEEDS).gets_to(checkpoint="c1").after(MINUTE))
    story.gets_to(checkpoint="c2", reached=story.job.created_at)
    assert story.job.restarts_left == 0
    assert story.gets_to(checkpoint="c3", reached=story.now).job.restarts_left == 1


@pytest.mark.parametrize("attempt", [-3, 0, 7])
def test_whatever_a_program_says_of_its_attempt_the_record_stays_sound(attempt: int) -> None:
    story = broken(a_running_job(2, policy=SEEDS)).gets_to(5, attempt=attempt)
    assert story.job.marker is not None
    assert 0 <= story.job.marker.attempt <= story.job.attempt


# -- records of before --------------------------------------------------------------------------------------------


def test_a_job_of_an_older_release_has_charged_every_restart_and_ends_on_healthy_nodes() -> None:
    old = replace(broken(a_running_job(2, policy=SEEDS)).job, budget=None)
    read = CODEC.job(old.id, CODEC.text(old))
    assert (read.restarts_left, read.restart_when_healthy) == (0, "never")
