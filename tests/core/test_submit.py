"""A job begins: started at once, or examined first."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.effects import CheckNode, Notify, StartTask, StopTask
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.job.table import submit
from ecs_gpu_recovery.core.model import JobSpec, JobStatus, NodeStatus, Verdict
from tests.core.story import POLICY, T0, Story, a_new_job, like, some_nodes


def test_a_job_without_a_check_is_in_progress_and_starts_every_rank() -> None:
    job = a_new_job(nodes=3)
    assert job.status is JobStatus.IN_PROGRESS
    assert job.orders == [like(StartTask, rank=r, attempt=0, node=f"n{r}") for r in range(3)]
    assert job.node_statuses == [NodeStatus.ASSIGNED] * 3
    assert job.moves == [("job", "", "IN_PROGRESS")]


def test_a_job_with_a_check_waits_for_it_before_anything_starts() -> None:
    job = a_new_job(nodes=2, check=True)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert job.orders == [like(CheckNode, rank=r, node=f"n{r}", check_try=1) for r in range(2)]
    assert all(rank.deadline == T0 + POLICY.check_timeout for rank in job.job.ranks)


def test_the_check_before_the_first_start_shows_on_the_node() -> None:
    assert a_new_job(nodes=1, check=True).check_starts(0).node_statuses == [NodeStatus.PENDING_HEALTHCHECK]


def test_nodes_that_all_pass_are_started() -> None:
    job = a_new_job(nodes=2, check=True).check_starts(0, 1).check_says(Verdict.HEALTHY, 0)
    assert (job.status, job.orders) == (JobStatus.PENDING_HEALTHCHECK, []), "one node has not answered yet"
    job.check_says(Verdict.HEALTHY, 1)
    assert job.status is JobStatus.IN_PROGRESS
    assert job.orders == [like(StartTask, rank=r, attempt=0) for r in range(2)]
    assert job.node_statuses == [NodeStatus.ASSIGNED] * 2
    assert job.job.attempt == 0, "no retry was spent"


@pytest.mark.parametrize(
    ("verdict", "left_as"),
    [(Verdict.REBOOT, NodeStatus.FAILED), (Verdict.REPLACE, NodeStatus.FAILED)],
)
def test_a_job_on_a_bad_node_is_refused_and_the_node_is_kept_out_of_use(
    verdict: Verdict, left_as: NodeStatus
) -> None:
    job = (
        a_new_job(nodes=2, check=True)
        .check_says(verdict, 0, findings="Xid 79")
        .check_says(Verdict.HEALTHY, 1)
    )
    assert job.status is JobStatus.FAILED
    assert job.node_statuses == [left_as, NodeStatus.AVAILABLE]
    assert job.orders == [like(Notify, key="j/notify/failed", node="n0")]
    assert "Xid 79" in job.job.timeline[-1].evidence


def test_a_job_is_refused_when_a_node_could_not_be_tested_but_the_node_is_not_blamed() -> None:
    job = a_new_job(nodes=2, check=True).check_says(Verdict.HEALTHY, 1).check_says(Verdict.INCONCLUSIVE, 0)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert job.orders == [like(CheckNode, rank=0, check_try=2)], "an inconclusive check is tried once more"
    job.check_says(Verdict.INCONCLUSIVE, 0)
    assert job.status is JobStatus.FAILED
    assert job.node_statuses == [NodeStatus.AVAILABLE] * 2


def test_a_node_that_is_lost_during_the_first_check_ends_the_job() -> None:
    job = a_new_job(nodes=2, check=True).check_says(Verdict.HEALTHY, 1).loses(0)
    assert job.status is JobStatus.FAILED
    assert job.node_statuses == [NodeStatus.UNKNOWN, NodeStatus.AVAILABLE]


def test_a_first_check_that_never_answers_is_stopped_tried_again_and_then_ends_the_job() -> None:
    job = a_new_job(nodes=1, check=True).check_starts(0).after(POLICY.check_timeout)
    assert job.orders == [like(StopTask, task_id="c0.1", rank=-1), like(CheckNode, check_try=2)]
    assert job.check_starts(0).after(POLICY.check_timeout).status is JobStatus.FAILED


def test_a_person_can_stop_a_job_during_its_first_check() -> None:
    job = a_new_job(nodes=2, check=True).check_starts(0).person_stops_it()
    assert job.status is JobStatus.USER_STOPPED
    assert job.orders == [like(StopTask, node="n0", task_id="c0.1"), like(StopTask, node="n1", task_id="")]
    assert job.outbox == job.orders, "the check that had not been sent yet is not pending any more"
    assert job.node_statuses == [NodeStatus.AVAILABLE] * 2


def test_a_job_needs_nodes_and_each_only_once() -> None:
    with pytest.raises(Refused, match="at least one node"):
        Story(nodes=0)
    twice = some_nodes(1) * 2
    with pytest.raises(Refused, match="chosen twice"):
        submit(job_id="j", cluster="c", spec=JobSpec(), nodes=twice, policy=POLICY, at=T0, check=False)


def test_a_job_keeps_the_budget_it_was_submitted_with() -> None:
    assert a_new_job(nodes=1).job.max_retries == POLICY.max_retries == 1
