"""Each rule about a record can fail: a record that breaks it is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ecs_gpu_recovery.core.effects import CheckNode, Order, RebootNode, StartTask
from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.model import Budget, Ending, Exit, Job, JobStatus, NodeStatus, TaskStatus, Verdict
from tests.core.story import T0, a_job_awaiting_reboot, a_new_job, a_running_job


def with_rank(job: Job, which: int = 0, /, **changes: Any) -> Job:
    ranks = list(job.ranks)
    ranks[which] = replace(ranks[which], **changes)
    return replace(job, ranks=tuple(ranks))


RUNNING = a_running_job(nodes=2).job
DONE = a_running_job(nodes=2).finishes().job
START = Order(effect=StartTask(key="k", token="t", rank=0, attempt=0, node="n0"), due=T0)
CHECK = Order(effect=CheckNode(key="k", token="t", node="n0", level="quick"), due=T0)
REBOOT = Order(effect=RebootNode(key="k", node="n0"), due=T0)
BROKEN = [
    ("numbered", with_rank(RUNNING, 0, index=5)),
    ("two ranks on one node", with_rank(RUNNING, 0, node="n1")),
    ("serves two ranks", with_rank(RUNNING, 0, task_id="t1.0.1")),
    ("2 restarts are charged, of 1", replace(RUNNING, attempt=2, budget=Budget(charged=2))),
    ("1 restarts are charged, and there were 0", replace(RUNNING, budget=Budget(charged=1))),
    ("yet holds n0", with_rank(DONE, 0, node_status=NodeStatus.IN_PROGRESS)),
    ("has a deadline", with_rank(DONE, 0, deadline=T0)),
    ("may still run", with_rank(DONE, 0, task_status=TaskStatus.IN_PROGRESS)),
    ("still ending", replace(DONE, ending=Ending(status=JobStatus.FAILED, why="x"))),
    (
        "nothing to wait for",
        replace(
            a_new_job(nodes=2).job,
            outbox=(),
            ranks=tuple(replace(r, deadline=None) for r in RUNNING.ranks),
            status=JobStatus.RESTARTING,
        ),
    ),
    ("a start of attempt 0", replace(RUNNING, attempt=1, outbox=(START,))),
    ("a start is pending", replace(DONE, outbox=(START,))),
    (
        "a start is pending",
        replace(RUNNING, outbox=(START,), ending=Ending(status=JobStatus.FAILED, why="x")),
    ),
    ("a check is pending", replace(DONE, outbox=(CHECK,))),
    ("is ordered by a job", replace(RUNNING, outbox=(REBOOT,))),
    ("is handed over while the job is IN_PROGRESS", with_rank(RUNNING, 0, handed="j/1/0/reboot")),
    ("over a running task", with_rank(RUNNING, 0, handed="j/1/0/reboot", verdict=Verdict.REBOOT)),
    ("did not end with success", with_rank(DONE, 0, exit=Exit.LOST)),
]


@pytest.mark.parametrize(("says", "job"), BROKEN, ids=[says for says, _ in BROKEN])
def test_a_record_that_breaks_a_rule_is_named(says: str, job: Job) -> None:
    assert any(says in what for what in broken(job)), broken(job)


@pytest.mark.parametrize("job", [RUNNING, DONE, a_new_job(nodes=2).job, a_job_awaiting_reboot(nodes=2).job])
def test_a_record_made_by_decisions_breaks_none(job: Job) -> None:
    assert broken(job) == []


def test_a_finished_job_may_leave_a_reboot_with_its_deadline_behind() -> None:
    assert broken(a_job_awaiting_reboot(nodes=1).person_stops_it().job) == []
