"""A fatal GPU fault under a rank that does not end: the gang is stopped and examined as if it had died."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ecs_gpu_recovery.core.effects import StopTask
from ecs_gpu_recovery.core.events import FaultSeen, Tick
from ecs_gpu_recovery.core.guard import for_stop
from ecs_gpu_recovery.core.job.rules import HELD
from ecs_gpu_recovery.core.messages import permit_wanted
from ecs_gpu_recovery.core.model import JobStatus, Verdict
from tests.core.story import MINUTE, POLICY, Story, a_job_in_its_second_attempt, a_running_job, like

GRACE = POLICY.fault_grace


def fault(story: Story, rank: int = 1, *, fatal: bool = True, ago: timedelta = timedelta(0)) -> Story:
    what = "GSP timeout | Xid 119"
    return story.hears(FaultSeen(at=story.now - ago, node=f"n{rank}", evidence=what, fatal=fatal))


def test_a_rank_that_neither_ends_nor_gets_further_is_frozen() -> None:
    story = fault(a_running_job(2))
    assert story.job.wake_at(POLICY.node_lost_after) == story.now + GRACE
    assert story.after(GRACE - timedelta(seconds=1)).status is JobStatus.IN_PROGRESS
    story.after(timedelta(seconds=1))
    assert story.status is JobStatus.PENDING_HEALTHCHECK
    assert story.orders == [like(StopTask, node="n0"), like(StopTask, node="n1")]
    said = next(e for e in story.job.timeline if e.after == JobStatus.PENDING_HEALTHCHECK)
    assert said.why == "rank 1 on n1 froze after a GPU fault"


def test_without_a_permit_it_runs_on_and_people_are_told_once() -> None:
    story = fault(a_running_job(2))
    wanted = permit_wanted(for_stop("j", "j/0/halt", story.now, why="Xid 119", since=story.now))
    for _ in range(3):
        story.now += GRACE + POLICY.lease
        held = Tick(at=story.now, may_stop=False, why="waits for a thaw", tell=wanted)
        story.hears(held)
        assert story.status is JobStatus.IN_PROGRESS
        assert story.job.ranks[1].frozen_at == story.now + POLICY.lease, "it is looked at again"
    said = [entry.evidence for entry in story.job.timeline if entry.why == HELD]
    assert said == ["waits for a thaw"]
    assert [order.effect for order in story.job.outbox] == [wanted]
    assert story.after(POLICY.lease).status is JobStatus.PENDING_HEALTHCHECK


def test_it_is_recovered_like_one_that_died() -> None:
    story = fault(a_running_job(2)).after(GRACE).stops().check_starts(0, 1)
    story.check_says(Verdict.HEALTHY, 0).check_says(Verdict.REBOOT, 1).reboots(1).starts()
    assert (story.status, story.job.attempt) == (JobStatus.IN_PROGRESS, 1)
    assert all(rank.frozen_at is None for rank in story.job.ranks)


def test_one_that_dies_of_the_fault_is_not_waited_for() -> None:
    story = fault(a_running_job(2)).ends(1, 1)
    assert story.status is JobStatus.PENDING_HEALTHCHECK
    assert story.rank(1).exit_code == 1


def test_a_gang_that_gets_further_is_left_alone() -> None:
    story = fault(a_running_job(2))
    for step in range(1, 10):
        story.gets_to(step).after(GRACE / 2)
        assert story.status is JobStatus.IN_PROGRESS
    assert story.after(GRACE).status is JobStatus.PENDING_HEALTHCHECK


@pytest.mark.parametrize(
    "harmless",
    [{"fatal": False}, {"ago": timedelta(days=1)}],
    ids=["not fatal", "older than the job"],
)
def test_a_fault_that_is_not_fatal_or_not_of_this_attempt_stops_nothing(harmless: dict[str, object]) -> None:
    story = fault(a_running_job(2), **harmless).after(10 * GRACE)  # type: ignore[arg-type]
    assert story.status is JobStatus.IN_PROGRESS


def test_the_fault_of_the_attempt_before_stops_nothing() -> None:
    story = a_job_in_its_second_attempt(2).after(MINUTE)
    assert fault(story, ago=2 * MINUTE).after(10 * GRACE).status is JobStatus.IN_PROGRESS


def test_the_same_fault_told_again_does_not_give_more_time() -> None:
    story = fault(a_running_job(2)).after(GRACE / 2)
    fault(story, ago=GRACE / 2)
    assert story.after(GRACE / 2).status is JobStatus.PENDING_HEALTHCHECK
