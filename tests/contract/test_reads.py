"""What people, pages and metrics ask: the same question gets the same answer of both stores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.aws.reads import DynamoReads
from ecs_gpu_recovery.aws.store import DynamoStore
from ecs_gpu_recovery.core import messages
from ecs_gpu_recovery.core.model import Job, JobStatus, TaskStatus
from ecs_gpu_recovery.engine.ports import Store
from ecs_gpu_recovery.engine.reads import BEGINNING, NodeChanges, Reads, TaskLine, place
from ecs_gpu_recovery.local.notify import LocalNotifier
from ecs_gpu_recovery.local.reads import SqliteReads
from ecs_gpu_recovery.local.store import SqliteStore
from tests.contract.worlds import MINUTE, T0, a_job, a_node, committed, ended, running, some_nodes, with_ranks

pytestmark = pytest.mark.parametrize(
    "world", ["sqlite", pytest.param("dynamodb", marks=pytest.mark.ministack)], indirect=True
)


@pytest.fixture
def reads(store: Store) -> Reads:
    if isinstance(store, SqliteStore):
        return SqliteReads(store)
    assert isinstance(store, DynamoStore)
    return DynamoReads(store)


def moved(store: Store, job: Job) -> Job:
    return committed(store, store.job(job.id), job)


def made(store: Store, job_id: str, node: str, minutes: int = 0) -> Job:
    store.add_node(a_node(node))
    job = a_job(job_id, [store.node(node)], at=T0 + minutes * MINUTE)
    store.create(job)
    return job


def failed(store: Store, job_id: str, minutes: int) -> None:
    """A job that has failed, and people were told: by a kept message here, by the record there."""
    job = made(store, job_id, f"n-{job_id}")
    over = replace(ended(job, JobStatus.FAILED), updated_at=T0 + minutes * MINUTE, outcome="no luck")
    moved(store, over)
    if isinstance(store, SqliteStore):
        told = messages.job_failed(over.id, over.attempt, over.outcome, over.ranks)
        LocalNotifier(store, lambda: over.updated_at).notify(told)


def test_records_come_in_the_order_in_which_they_are_asked_for(store: Store, reads: Reads) -> None:
    one, two = made(store, "one", "n1"), made(store, "two", "n2")
    assert list(reads.some_jobs(["two", "never", "one"])) == [two, one]
    assert list(reads.some_jobs([])) == []


def test_jobs_are_counted_by_state(store: Store, reads: Reads) -> None:
    for name in ("a", "b"):
        made(store, name, f"n-{name}")
    moved(store, ended(made(store, "c", "n-c")))
    assert reads.job_counts([JobStatus.IN_PROGRESS, JobStatus.COMPLETE, JobStatus.FAILED]) == {
        JobStatus.IN_PROGRESS: 2,
        JobStatus.COMPLETE: 1,
        JobStatus.FAILED: 0,
    }


def test_only_nodes_that_moved_are_told_again(store: Store, reads: Reads) -> None:
    nodes = some_nodes(store, 3)
    first = reads.changed_nodes({})
    assert sorted(node.name for node in first.changed) == [node.name for node in nodes]
    known = {node.name: node.version for node in first.changed}
    assert reads.changed_nodes(known) == NodeChanges()
    news = replace(nodes[1], connected=False, version=2)
    store.commit_node(news)
    assert reads.changed_nodes(known) == NodeChanges(changed=(news,))


def test_a_node_that_is_not_there_any_more_is_told_once(store: Store, reads: Reads) -> None:
    (node,) = some_nodes(store, 1)
    changes = reads.changed_nodes({node.name: node.version, "removed": 4})
    assert changes == NodeChanges(gone=frozenset({"removed"}))


def test_more_nodes_than_a_few_can_move_at_once(store: Store, reads: Reads) -> None:
    nodes = some_nodes(store, 30)
    known = {node.name: node.version for node in nodes[:5]}
    assert {node.name for node in reads.changed_nodes(known).changed} == {node.name for node in nodes[5:]}


def test_every_task_of_every_attempt_is_listed(store: Store, reads: Reads) -> None:
    nodes = some_nodes(store, 2)
    job = a_job("j1", nodes)
    store.create(job)
    first = moved(store, running(job))
    again = with_ranks(
        first,
        lambda rank: replace(
            rank,
            past_tasks=(f"0/{rank.task_id}",),
            task_id=f"again-{rank.index}",
            task_attempt=1,
            task_status=TaskStatus.IN_PROGRESS,
        ),
        attempt=1,
    )
    job = moved(store, again)
    assert list(reads.tasks(job)) == [
        TaskLine(rank=rank.index, attempt=attempt, node=rank.node, task_id=task_id)
        for attempt, tasks in enumerate((first.ranks, again.ranks))
        for rank in tasks
        for task_id in [rank.task_id]
    ]


def test_messages_come_newest_first(store: Store, reads: Reads) -> None:
    for name, minutes in (("a", 5), ("b", 9), ("c", 7)):
        failed(store, name, minutes)
    found = reads.notices(10)
    assert [notice["key"] for notice in found] == [f"{name}/notify/failed" for name in ("b", "c", "a")]
    assert found[0]["at"].startswith("2026-11-15T02:09")
    assert "no luck" in found[0]["happened"]
    assert list(reads.notices(2)) == list(found[:2])


def test_a_list_of_messages_goes_on_where_it_stopped_whatever_comes_meanwhile(
    store: Store, reads: Reads
) -> None:
    for name, minutes in (("a", 5), ("b", 6), ("c", 6), ("d", 8)):
        failed(store, name, minutes)
    first = reads.notices(2, BEGINNING)
    failed(store, "late", 20)
    rest = reads.notices(10, place(first[-1]))
    told = [notice["key"].partition("/")[0] for notice in (*first, *rest)]
    assert told == ["d", "c", "b", "a"]


def test_a_record_that_nothing_has_left_has_no_earlier_entries(store: Store, reads: Reads) -> None:
    made(store, "j1", "n1")
    assert list(reads.earlier_entries("j1")) == []
