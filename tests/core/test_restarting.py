"""RESTARTING: all ranks start again, or none stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.effects import CheckNode, Notify, StartTask, StopTask
from ecs_gpu_recovery.core.events import StartRefused, TaskEnded, TaskStarted
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus, Verdict
from tests.core.story import MINUTE, POLICY, T0, a_restarting_job, like, with_retries


def test_the_job_is_in_progress_again_when_every_rank_has_started() -> None:
    job = a_restarting_job(nodes=2).starts(0)
    assert (job.status, job.node_statuses) == (
        JobStatus.RESTARTING,
        [NodeStatus.IN_PROGRESS, NodeStatus.AVAILABLE],
    )
    job.starts(1)
    assert (job.status, job.job.attempt) == (JobStatus.IN_PROGRESS, 1)
    assert job.node_statuses == [NodeStatus.IN_PROGRESS] * 2
    assert [rank.task_status for rank in job.job.ranks] == [TaskStatus.IN_PROGRESS] * 2


def test_a_restarted_job_can_complete() -> None:
    assert a_restarting_job(nodes=2).starts().finishes().status is JobStatus.COMPLETE


def test_a_start_refused_by_the_agent_is_tried_again_without_sleeping() -> None:
    job = a_restarting_job(nodes=2).starts(0).cannot_start(1, "AGENT")
    assert (job.status, job.orders) == (JobStatus.RESTARTING, [])
    assert job.order(StartTask, rank=1).due == T0 + POLICY.backoff_first


def test_a_start_refused_for_good_stops_what_was_started_and_fails_the_job() -> None:
    job = a_restarting_job(nodes=2).starts(0).cannot_start(1, "MISSING")
    assert (job.status, job.orders) == (JobStatus.RESTARTING, [like(StopTask, rank=0, attempt=1)])
    job.stops(0)
    assert (job.status, job.orders) == (JobStatus.FAILED, [like(Notify)])
    assert "could not be started again: MISSING" in job.job.outcome


def test_a_start_refused_until_the_deadline_fails_the_job() -> None:
    job = a_restarting_job(nodes=2).starts(0).cannot_start(1, "RESOURCE:GPU").after(POLICY.start_timeout)
    assert job.orders == [like(StopTask, rank=0), like(StopTask, rank=1, task_id="")]
    assert job.stops().status is JobStatus.FAILED


def test_a_refusal_of_the_last_attempt_changes_nothing() -> None:
    job = a_restarting_job(nodes=2)
    before = job.job
    assert job.hears(StartRefused(at=T0, attempt=0, rank=1, reason="MISSING")).job is before


def test_a_rank_that_dies_before_the_others_have_started_is_examined_when_they_have() -> None:
    job = a_restarting_job(nodes=2, policy=with_retries(2)).starts(0).fails(0)
    assert job.status is JobStatus.RESTARTING
    job.starts(1)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert job.orders == [like(CheckNode, rank=0), like(StopTask, rank=1)]


def test_an_end_that_arrives_before_its_start_is_taken_for_both() -> None:
    job = a_restarting_job(nodes=2, policy=with_retries(2)).starts(0).fails(1)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert ("n1", "AVAILABLE", "IN_PROGRESS") in job.moves
    assert ("n1", "IN_PROGRESS", "PENDING") in job.moves


def test_a_node_lost_while_it_starts_is_recovered_like_any_other() -> None:
    job = a_restarting_job(nodes=2, policy=with_retries(2)).starts(0).cannot_start(1, "AGENT").loses(1)
    assert (job.status, job.rank(1).verdict) == (JobStatus.PENDING_HEALTHCHECK, Verdict.LOST)
    assert not [o for o in job.outbox if isinstance(o, StartTask)], "its start is withdrawn"
    assert job.orders[-1] == like(StopTask, rank=1, task_id=""), (
        "and stopped by token, in case it got through"
    )
    assert ("n1", "AVAILABLE", "UNKNOWN") in job.moves


def test_a_node_that_was_only_slow_to_answer_is_not_held_against_it() -> None:
    job = (
        a_restarting_job(nodes=3, policy=with_retries(2))
        .starts(0)
        .cannot_start(1, "AGENT")
        .cannot_start(2, "AGENT")
        .loses(1)
    )
    assert job.status is JobStatus.RESTARTING, "rank 2 may still start"
    job.is_seen(1).starts(1).starts(2)
    assert job.status is JobStatus.IN_PROGRESS


def test_a_person_can_stop_a_job_that_restarts() -> None:
    job = a_restarting_job(nodes=2).starts(0).person_stops_it()
    assert job.orders == [like(StopTask, rank=0), like(StopTask, rank=1, task_id="")]
    assert job.stops(0).status is JobStatus.RESTARTING
    job.hears(
        TaskEnded(
            at=T0,
            task_id="",
            attempt=1,
            rank=1,
            exit_code=None,
            reason="gpu-recovery j/1: stop",
            stop_code="UserInitiated",
        )
    )
    assert (job.status, job.node_statuses) == (JobStatus.USER_STOPPED, [NodeStatus.AVAILABLE] * 2)


def test_late_news_of_a_task_that_has_ended_is_old_news() -> None:
    before = a_restarting_job(nodes=2)
    assert before.rank(0).past_tasks == ("0/t0.0.1",)
    job = before.hears(TaskStarted(at=T0, task_id="t0.0.1", attempt=0, rank=0, running=True))
    assert job.orders == []
    assert job.rank(0).task_status is None, "it still waits for its own"


@pytest.mark.parametrize(("nodes", "remembered"), [(2, 16), (128, 16), (256, 8), (1024, 2)])
def test_a_rank_remembers_its_last_tasks_as_far_as_the_record_has_room(nodes: int, remembered: int) -> None:
    draft = Draft(a_restarting_job(nodes=2).job, T0, POLICY)
    draft.ranks = [replace(draft.ranks[0], index=index, past_tasks=()) for index in range(nodes)]
    for attempt in range(100):
        draft.set(0, task_id=f"t{attempt}", task_attempt=attempt)
        draft.fresh(0)
    assert draft.ranks[0].past_tasks == tuple(f"{n}/t{n}" for n in range(100 - remembered, 100))


def test_a_task_of_the_last_attempt_that_nobody_knows_is_stopped() -> None:
    job = a_restarting_job(nodes=2).hears(
        TaskStarted(at=T0, task_id="slipped-through", attempt=0, rank=0, running=True)
    )
    assert job.orders == [like(StopTask, task_id="slipped-through", node="n0")]
    assert job.rank(0).task_status is None, "it still waits for its own"


def test_every_rank_has_a_deadline_to_start() -> None:
    job = a_restarting_job(nodes=2)
    assert [rank.deadline for rank in job.job.ranks] == [T0 + POLICY.start_timeout] * 2
    assert job.after(POLICY.start_timeout - MINUTE).orders == []
