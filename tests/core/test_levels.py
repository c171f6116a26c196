"""Facts are level, not edge: twice, late, or in another order, they lead to the same place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecs_gpu_recovery.core.events import (
    CheckRefused,
    Fact,
    NodeSeen,
    OrderFailed,
    RebootProven,
    StartRefused,
    TaskStarted,
    Tick,
)
from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.job.table import decide
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from tests.core.story import (
    OOM,
    POLICY,
    T0,
    Story,
    a_job_awaiting_reboot,
    a_job_under_test,
    a_new_job,
    a_running_job,
)
from tests.core.walks import next_facts, stories


@given(stories(), st.data())
def test_a_fact_told_twice_in_a_row_is_told_once(story: Story, data: st.DataObject) -> None:
    fact = next_facts(story, data, asks=False)
    once = decide(story.job, fact, story.policy)
    twice = decide(once.job, fact, story.policy)
    if isinstance(fact, OrderFailed | StartRefused | CheckRefused):
        assert twice.job.status is once.job.status, "an answer to a try of ours: two tries are two tries"
    else:
        assert twice.job is once.job, fact
        assert twice.orders == ()


@given(stories(), st.data())
def test_whatever_comes_the_record_keeps_its_rules(story: Story, data: st.DataObject) -> None:
    for _ in range(5):
        if not story.job.status.final:
            story.hears(next_facts(story, data))
    assert broken(story.job) == []


@given(stories())
def test_every_job_ends_if_time_alone_passes_and_its_tasks_end(story: Story) -> None:
    """No event ever arrives again, and no order is ever answered; only the clock ticks."""
    for _ in range(60):
        if story.job.status.final:
            break
        story.after(timedelta(minutes=31))
        for rank in story.job.ranks:
            if rank.live and story.job.status is JobStatus.IN_PROGRESS and rank.deadline is None:
                story.ends(rank.index, 0)
    assert story.job.status.final, story.job


@given(stories(), st.data())
def test_a_final_job_stays_as_it_ended(story: Story, data: st.DataObject) -> None:
    for _ in range(60):
        if not story.job.status.final:
            story.after(timedelta(minutes=31))
            for rank in story.job.ranks:
                if rank.live:
                    story.ends(rank.index, 0)
    ended = replace(story.job, outbox=(), version=0, updated_at=T0)
    for _ in range(5):
        story.hears(next_facts(story, data))
    assert replace(story.job, outbox=(), version=0, updated_at=T0, timeline=ended.timeline) == ended


# -- the main stories, their facts in every order ------------------------------------------------------------------


def everyone_finishes(job: Story) -> list[Fact]:
    return [job.ended(r, 0) for r in range(3)]


def one_dies_and_the_rest_is_stopped(job: Story) -> list[Fact]:
    ours = "gpu-recovery j/0: another rank failed"
    return [
        job.ended(0, 1),
        job.ended(1, 143, ours, "UserInitiated"),
        job.ended(2, 143, ours, "UserInitiated"),
    ]


def two_die_and_one_has_finished(job: Story) -> list[Fact]:
    return [job.ended(0, 1), job.ended(1, 1), job.ended(2, 0)]


def one_runs_out_of_memory(job: Story) -> list[Fact]:
    ours = "gpu-recovery j/0: rank 0 out of memory"
    return [job.ended(0, 1, OOM), job.ended(1, 143, ours, "UserInitiated"), job.ended(2, 0)]


def a_person_stops_one_of_them(job: Story) -> list[Fact]:
    ours = "gpu-recovery j/0: a person"
    return [
        job.ended(0, 143, "Task stopped by user", "UserInitiated"),
        job.ended(1, 143, ours, "UserInitiated"),
        job.ended(2, 1),
    ]


@pytest.mark.parametrize(
    ("facts_of", "status"),
    [
        (everyone_finishes, JobStatus.COMPLETE),
        (one_dies_and_the_rest_is_stopped, JobStatus.PENDING_HEALTHCHECK),
        (two_die_and_one_has_finished, JobStatus.PENDING_HEALTHCHECK),
        (a_person_stops_one_of_them, JobStatus.USER_STOPPED),
    ],
)
def test_the_ends_of_a_gang_in_any_order(facts_of: Callable[[Story], list[Fact]], status: JobStatus) -> None:
    ends = facts_of(a_running_job(nodes=3))
    for order in permutations(ends):
        assert a_running_job(nodes=3).hears(*order).status is status, [fact.rank for fact in order]  # type: ignore[attr-defined]


def test_out_of_memory_fails_the_job_in_any_order_that_the_cluster_can_cause() -> None:
    """A sibling is stopped by us only after we know why, so its end never comes first."""
    oom, stopped, finished = one_runs_out_of_memory(a_running_job(nodes=3))
    for order in permutations([oom, finished]):
        assert a_running_job(nodes=3).hears(*order, stopped).status is JobStatus.FAILED


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ((Verdict.HEALTHY, Verdict.HEALTHY, Verdict.HEALTHY), JobStatus.FAILED),
        ((Verdict.HEALTHY, Verdict.REBOOT, Verdict.HEALTHY), JobStatus.PENDING_RESTART),
        ((Verdict.REBOOT, Verdict.REBOOT, Verdict.REBOOT), JobStatus.PENDING_RESTART),
        ((Verdict.REBOOT, Verdict.REPLACE, Verdict.HEALTHY), JobStatus.FAILED),
    ],
)
def test_verdicts_in_any_order(verdicts: tuple[Verdict, ...], status: JobStatus) -> None:
    said = [a_job_under_test(nodes=3).checked(r, verdict, "seen") for r, verdict in enumerate(verdicts)]
    ends = {str(a_job_under_test(nodes=3).hears(*order).node_statuses) for order in permutations(said)}
    assert len(ends) == 1, "every order leaves the nodes the same"
    for order in permutations(said):
        assert a_job_under_test(nodes=3).hears(*order).status is status


def test_starts_and_ends_of_a_rank_in_any_order() -> None:
    told: list[Fact] = [
        TaskStarted(at=T0, task_id=f"t{r}.0.1", attempt=0, rank=r, running=True) for r in range(2)
    ]
    told += [a_running_job(nodes=2).ended(r, 0) for r in range(2)]
    for order in permutations(told):
        assert a_new_job(nodes=2).hears(*order).status is JobStatus.COMPLETE


def test_the_proof_and_the_return_of_a_rebooted_node_in_any_order() -> None:
    away = NodeSeen(at=T0, node="n0", connected=False, boot_id="boot-1", version=2)
    back = NodeSeen(at=T0, node="n0", connected=True, boot_id="boot-2", gpus=8, version=3)
    proof = RebootProven(at=T0, node="n0", key="j/1/0/reboot", boot_id="boot-2")
    for order in permutations([away, back, proof]):
        job = a_job_awaiting_reboot(nodes=2).hears(*order, back, Tick(at=T0))
        assert job.status is JobStatus.RESTARTING, order


def test_a_whole_recovery_with_every_fact_told_twice_and_the_old_ones_again_at_every_step() -> None:
    job = a_running_job(nodes=2)
    heard: list[Fact] = []

    def hear(*facts: Fact) -> None:
        for fact in facts:
            heard.append(fact)
            job.hears(fact, fact, *heard)

    hear(job.ended(0, 1), job.ended(1, 143, "gpu-recovery j/0: x", "UserInitiated"))
    hear(job.checked(0, Verdict.REBOOT), job.checked(1, Verdict.HEALTHY))
    assert (job.status, job.job.attempt) == (JobStatus.PENDING_RESTART, 1)
    hear(RebootProven(at=T0, node="n0", key="j/1/0/reboot", boot_id="boot-2"))
    assert (job.status, job.job.attempt) == (JobStatus.RESTARTING, 1)
    hear(*(TaskStarted(at=T0, task_id=f"t{r}.1.1", attempt=1, rank=r, running=True) for r in range(2)))
    assert job.status is JobStatus.IN_PROGRESS
    hear(job.ended(0, 0), job.ended(1, 0))
    assert (job.status, job.job.attempt) == (JobStatus.COMPLETE, 1)
    assert job.node_statuses == [NodeStatus.AVAILABLE] * 2
    assert POLICY.max_retries == 1
