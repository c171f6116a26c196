"""Whose rows an order names, what is said of nodes before it is certain, and how fast calls follow each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecs_gpu_recovery.aws.rate_limit import Pace
from ecs_gpu_recovery.core.effects import Order, WriteRows
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus, TaskStatus
from ecs_gpu_recovery.engine.rows_behind import NOBODY, Trail, rows_behind
from tests.contract.worlds import T0, a_job, a_node, ended, running


def job(nodes: int = 3) -> Job:
    return running(a_job("j1", [a_node(f"n{i}") for i in range(nodes)]))


def with_rank(job: Job, index: int, **changes: Any) -> Job:
    ranks = list(job.ranks)
    ranks[index] = replace(ranks[index], **changes)
    return replace(job, ranks=tuple(ranks), version=job.version + 1)


def owing(job: Job, *ranks: int) -> Job:
    order = Order(effect=WriteRows(key="j1/rows/2", version=2, ranks=ranks), due=T0)
    return replace(job, outbox=(order,))


def test_an_order_names_the_ranks_that_changed_and_those_still_owed() -> None:
    before = job()
    after = with_rank(before, 1, node_status=NodeStatus.PENDING)
    assert rows_behind(before, after) == (1,)
    assert rows_behind(owing(before, 2), after) == (1, 2)
    assert rows_behind(owing(before), after) == (), "all of them were owed"
    assert rows_behind(before, with_rank(before, 1, deadline=T0)) == NOBODY, "no row shows a deadline"


def test_at_the_end_all_rows_are_looked_at() -> None:
    assert rows_behind(job(), ended(job(), JobStatus.FAILED)) == ()


def test_a_task_forgotten_while_its_row_calls_it_running_makes_all_rows_be_looked_at() -> None:
    alive = job()
    assert rows_behind(alive, with_rank(alive, 0, task_id="", task_status=None)) == ()
    over = with_rank(alive, 0, task_status=TaskStatus.TERMINATED)
    assert rows_behind(over, with_rank(over, 0, task_id="", task_status=None)) == (0,), (
        "its row says so by now"
    )
    assert rows_behind(owing(over, 0), with_rank(over, 0, task_id="", task_status=None)) == ()


def test_only_what_changed_or_is_in_doubt_is_said_of_nodes() -> None:
    first = job()
    moved = with_rank(first, 1, node_status=NodeStatus.PENDING)
    assert [r.index for r in Trail(first=first).news(moved, (0, 1))] == [1]
    assert [r.index for r in Trail(first=owing(first, 0)).news(moved, (0, 1))] == [0, 1]


def test_what_was_said_too_early_is_taken_back() -> None:
    first = job()
    trail = Trail(first=first, told={"n2": NodeStatus.PENDING})
    assert [r.index for r in trail.news(first, ())] == [2]
    trail.settle(first)
    assert trail.news(first, (0, 1, 2)) == []


def test_two_calls_may_be_made_at_once_and_the_rest_at_their_pace() -> None:
    now, waits = [100.0], []

    def sleep(seconds: float) -> None:
        waits.append(round(seconds, 3))
        now[0] += seconds

    pace = Pace(10.0, sleep=sleep, clock=lambda: now[0])
    for _ in range(5):
        pace.wait()
    assert waits == [0.1, 0.1, 0.1]
    now[0] += 60
    pace.wait()
    pace.wait()
    assert len(waits) == 3
