"""Whose a task is: by the id that the record knows, else by token, instance and family together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.draft import STRANGER
from ecs_gpu_recovery.core.effects import CheckNode, StartTask, StopTask
from ecs_gpu_recovery.core.events import CheckStarted, NodeAsked, NodeChecked, Origin, TaskEnded, TaskStarted
from ecs_gpu_recovery.core.job.table import submit
from ecs_gpu_recovery.core.model import JobSpec, JobStatus, NodeStatus, TaskStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from tests.core.story import POLICY, T0, Story, a_new_job, like, some_nodes

WRONG = [{"token": "gr-0"}, {"token": ""}, {"instance": "arn:x/other"}, {"instance": ""}, {"family": "cron"}]


def a_job() -> Story:
    """On nodes that are container instances, with a task definition and a salt."""
    story = a_new_job(nodes=2)
    nodes = [replace(node, instance=f"arn:c/{node.name}") for node in some_nodes(2)]
    spec = JobSpec(task_def="arn:aws:ecs:r:1:task-definition/train:7")
    story._keep(
        submit(job_id="j", cluster="c", spec=spec, nodes=nodes, policy=POLICY, at=T0, check=False, salt="s")
    )
    return story


def origin(story: Story, rank: int = 0, **wrong: str) -> Origin:
    token = story.order(StartTask, rank=rank).effect
    assert isinstance(token, StartTask)
    right = Origin(token=token.token, instance=f"arn:c/n{rank}", family="train")
    return replace(right, **wrong)


def started(story: Story, of: Origin | None, **about: Any) -> TaskStarted:
    return TaskStarted(at=story.now, attempt=0, rank=0, running=True, origin=of, **about)


def ended(of: Origin | None, code: int = 0) -> TaskEnded:
    return TaskEnded(at=T0, task_id="t", attempt=0, rank=0, exit_code=code, origin=of)


def test_an_awaited_task_that_is_what_was_ordered_counts_by_its_event() -> None:
    job = a_job()
    assert job.hears(started(job, origin(job), task_id="t")).rank(0).task_status is TaskStatus.IN_PROGRESS
    job = a_job()
    assert job.hears(ended(origin(job, instance="n0"))).rank(0).task_status is TaskStatus.COMPLETE


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("code", [0, 1, 139])
def test_one_that_is_not_neither_starts_nor_ends_a_rank(wrong: dict[str, str], code: int) -> None:
    job = a_job()
    lie = origin(job, **wrong)
    before = job.job.ranks
    job.hears(started(job, lie, task_id="t"), ended(lie, code))
    assert (job.job.ranks, job.status) == (before, JobStatus.IN_PROGRESS)
    assert like(StartTask, rank=0) in job.outbox, "it is still awaited"


def test_a_stranger_is_written_down_once_and_not_stopped() -> None:
    job = a_job()
    for number in range(5):
        job.hears(started(job, origin(job, token="cron"), task_id=f"t{number}"))
    assert [entry.evidence for entry in job.job.timeline if entry.why == STRANGER] == ["task t0"]
    assert like(StopTask) not in job.outbox


def test_a_second_task_with_our_own_token_is_stopped() -> None:
    job = a_job()
    ours = origin(job)
    job.starts()
    assert job.hears(started(job, ours, task_id="twice")).orders == [like(StopTask, task_id="twice")]


def test_what_the_answer_names_counts_before_what_an_event_has_named() -> None:
    job = a_job()
    job.hears(started(job, origin(job), task_id="copied"))
    job.hears(TaskStarted(at=T0, task_id="true", attempt=0, rank=0))
    assert (job.rank(0).task_id, job.orders) == ("true", [like(StopTask, task_id="copied")])
    job.hears(TaskStarted(at=T0, task_id="late", attempt=0, rank=0))
    assert (job.rank(0).task_id, job.orders) == ("true", [like(StopTask, task_id="late")])


def test_a_task_that_the_record_knows_counts_by_its_id_whoever_started_it() -> None:
    """As those of a job that was taken over from another tool, which has its own `startedBy`."""
    job = a_job().starts()
    known = replace(ended(Origin(token="their tool"), 1), task_id=job.rank(0).task_id)
    assert job.hears(known).status is JobStatus.PENDING_HEALTHCHECK


def under_test() -> tuple[Story, Origin]:
    job = a_job().starts().fails(0).stops()
    order = job.order(CheckNode, rank=0).effect
    assert isinstance(order, CheckNode)
    return job, Origin(token=order.token, instance="arn:c/n0")


@pytest.mark.parametrize("wrong", WRONG[:4], ids=str)
@pytest.mark.parametrize("verdict", [Verdict.HEALTHY, Verdict.REBOOT, Verdict.REPLACE])
def test_a_forged_verdict_is_none_and_the_true_one_counts_afterwards(
    wrong: dict[str, str], verdict: Verdict
) -> None:
    job, right = under_test()
    lie = replace(right, **wrong)
    job.hears(
        CheckStarted(at=T0, node="n0", check_id="x", check_try=1, origin=lie),
        NodeChecked(at=T0, node="n0", check_id="x", check_try=1, verdict=verdict, origin=lie),
    )
    assert (job.rank(0).verdict, job.rank(0).check_id) == (None, "")
    assert job.job.timeline[-1].why == STRANGER
    job.hears(NodeChecked(at=T0, node="n0", check_id="c", check_try=1, verdict=Verdict.HEALTHY, origin=right))
    assert job.rank(0).verdict is Verdict.HEALTHY


def test_a_second_check_id_for_the_same_try_is_ignored_and_written_down() -> None:
    job, right = under_test()
    job.check_starts(0)
    known = job.rank(0).check_id
    for verdict in (Verdict.REBOOT, Verdict.REPLACE):
        job.hears(CheckStarted(at=T0, node="n0", check_id="x", check_try=1, origin=right))
        job.hears(NodeChecked(at=T0, node="n0", check_id="x", check_try=1, verdict=verdict, origin=right))
    assert (job.rank(0).verdict, job.rank(0).check_id) == (None, known)
    assert [entry.evidence for entry in job.job.timeline if entry.why == STRANGER] == ["task x"]


def test_the_check_that_the_answer_names_counts_before_one_that_an_event_has_named() -> None:
    job, right = under_test()
    job.hears(CheckStarted(at=T0, node="n0", check_id="copied", check_try=1, origin=right))
    job.hears(CheckStarted(at=T0, node="n0", check_id="true", check_try=1))
    job.hears(
        NodeChecked(at=T0, node="n0", check_id="copied", check_try=1, verdict=Verdict.REBOOT, origin=right)
    )
    assert (job.rank(0).check_id, job.rank(0).verdict) == ("true", None)


def test_a_forged_verdict_takes_no_free_node_out_of_use() -> None:
    node = replace(some_nodes(1)[0], instance="arn:c/n0")
    node = decide_node(node, NodeAsked(at=T0, node="n0", ask="check", by="ann", why=""), POLICY).node
    for lie in (Origin(token="cron", instance="arn:c/n0"), Origin(token=keys.token("node/n0/check/1"))):
        bad = NodeChecked(at=T0, node="n0", check_id="x", check_try=1, verdict=Verdict.REPLACE, origin=lie)
        node = decide_node(node, bad, POLICY).node
    assert (node.status, node.verdict) == (NodeStatus.PENDING_HEALTHCHECK, None)


def test_two_stacks_whose_jobs_have_the_same_id_give_their_tasks_different_tokens() -> None:
    rank = a_new_job().rank(0)
    assert keys.start_token("j", rank, "a") != keys.start_token("j", rank, "b")
    assert keys.start_token("j", rank, "") == keys.start_token("j", rank), "as older releases made it"
