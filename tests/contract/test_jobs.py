"""Jobs: claimed and recorded whole, moved by version, found through lists."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from ecs_gpu_recovery.core import rows
from ecs_gpu_recovery.core.errors import JobExists, NodesTaken, NotFound, VersionConflict
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from ecs_gpu_recovery.core.node_record import Hold
from ecs_gpu_recovery.engine.ports import Store
from tests.contract.worlds import (
    CLUSTER,
    MINUTE,
    T0,
    World,
    a_job,
    a_node,
    after,
    committed,
    ended,
    running,
    some_nodes,
)


def test_a_job_comes_back_as_it_was_recorded(store: Store) -> None:
    job = a_job("j1", some_nodes(store, 2))
    store.create(job)
    assert store.job("j1") == job


def test_creating_a_job_claims_its_nodes(store: Store) -> None:
    nodes = some_nodes(store, 3)
    job = a_job("j1", nodes[:2])
    store.create(job)
    assert store.node("n000") == rows.claimed_node(nodes[0], job)
    assert [(n.name, n.job_id, n.status) for n in store.nodes()] == [
        ("n000", "j1", NodeStatus.ASSIGNED),
        ("n001", "j1", NodeStatus.ASSIGNED),
        ("n002", "", NodeStatus.AVAILABLE),
    ]


def test_one_taken_node_refuses_the_whole_job_and_every_reason_is_told(store: Store) -> None:
    nodes = some_nodes(store, 5)
    store.create(a_job("first", [nodes[0]]))
    store.commit_node(replace(nodes[1], hold=Hold(by="ann", why="new fans", at=T0), version=2))
    store.commit_node(replace(nodes[2], status=NodeStatus.FAILED, findings="Xid 79", version=2))
    unknown = a_node("nowhere")

    with pytest.raises(NodesTaken) as refused:
        store.create(a_job("second", [*nodes, unknown]))

    assert refused.value.reasons == {
        "n000": "in use by job first",
        "n001": "drained by ann: new fans",
        "n002": "is FAILED (Xid 79)",
        "nowhere": "no such node",
    }
    assert [store.node(n.name).job_id for n in nodes] == ["first", "", "", "", ""]
    with pytest.raises(NotFound):
        store.job("second")


def test_a_large_job_is_refused_as_whole_as_a_small_one(store: Store) -> None:
    nodes = some_nodes(store, 130)
    store.create(a_job("first", [nodes[129]]))
    with pytest.raises(NodesTaken) as refused:
        store.create(a_job("second", nodes))
    assert refused.value.reasons == {"n129": "in use by job first"}
    assert {n.name for n in store.nodes() if n.job_id} == {"n129"}


def test_a_job_id_can_be_used_once_and_a_repeat_is_told_so(store: Store) -> None:
    nodes = some_nodes(store, 3)
    job = a_job("j1", nodes[:2])
    store.create(job)
    with pytest.raises(JobExists):
        store.create(job)
    with pytest.raises(JobExists):
        store.create(a_job("j1", [nodes[2]]))
    assert store.job("j1") == job
    assert store.node("n002").job_id == ""


def test_a_commit_writes_the_next_version(store: Store) -> None:
    job = a_job("j1", some_nodes(store, 2))
    store.create(job)
    moved = committed(store, job, running(job))
    assert store.job("j1") == moved == running(job)


@pytest.mark.parametrize("wrong", [-1, 0, 2])
def test_a_commit_on_another_version_changes_nothing(store: Store, wrong: int) -> None:
    job = a_job("j1", some_nodes(store, 2))
    store.create(job)
    with pytest.raises(VersionConflict):
        store.commit(job, replace(job, outcome="too late", version=job.version + wrong))
    assert store.job("j1") == job


def test_the_first_of_two_commits_of_one_version_stands(store: Store, world: World) -> None:
    job = a_job("j1", some_nodes(store, 2))
    store.create(job)
    store.commit(job, after(job, outcome="first"))
    with pytest.raises(VersionConflict):
        world.another().commit(job, after(job, outcome="second"))
    assert world.another().job("j1").outcome == "first"


def test_even_the_same_commit_stands_only_once(store: Store) -> None:
    """Two that decided the same may not both believe that they moved the record."""
    job = a_job("j1", some_nodes(store, 1))
    store.create(job)
    moved = running(job)
    store.commit(job, moved)
    with pytest.raises(VersionConflict):
        store.commit(job, moved)


def test_what_is_not_there_is_not_found(store: Store) -> None:
    for ask in (store.job, store.node):
        with pytest.raises(NotFound):
            ask("nothing")
    missing = a_job("nothing", [a_node("x")])
    with pytest.raises(NotFound):
        store.commit(missing, after(missing))
    with pytest.raises(NotFound):
        store.commit_node(a_node("nothing", version=2))
    assert store.job_of_task("nothing") is None
    assert store.node_of_instance("nothing") is None
    assert store.node_of_instance("") is None


def test_other_tools_find_the_attributes_of_the_schema(world: World) -> None:
    store = world.store
    job = running(a_job("j1", some_nodes(store, 2)))
    store.create(replace(job, version=1))
    store.commit(replace(job, version=1), replace(job, version=2, attempt=1))
    row, times = world.job_row("j1"), {"job_timestamp": T0, "created_at": T0, "updated_at": T0 + MINUTE}
    assert {name: datetime.fromisoformat(row[name]) for name in times} == times
    assert {name: row[name] for name in rows.job_row(job) if name not in times} == {
        "job_id": "j1",
        "cluster_name": CLUSTER,
        "num_nodes": "2",
        "assigned_nodes": ["n000", "n001"],
        "submitted_container_inst_ids": ["in000", "in001"],
        "submitted_ecs_task_ids": ["task-j1-0-0", "task-j1-0-1"],
        "retry": "1",
        "job_status": "IN_PROGRESS",
    }


def test_jobs_that_have_not_ended_are_live(store: Store) -> None:
    first, second = (a_job(f"j{i}", some_nodes(store, 1, f"n{i}-")) for i in (1, 2))
    store.create(first)
    store.create(second)
    assert list(store.live_jobs()) == ["j1", "j2"]
    committed(store, first, ended(first))
    assert list(store.live_jobs()) == ["j2"]


def test_a_job_is_due_from_its_earliest_deadline_or_unsent_order_on(store: Store) -> None:
    job = a_job("j1", some_nodes(store, 2))
    store.create(job)
    due = min(order.due for order in job.outbox)
    assert list(store.due_jobs(due - MINUTE)) == []
    assert list(store.due_jobs(due)) == ["j1"]
    waiting = after(job, outbox=())
    store.commit(job, waiting)
    deadline = min(rank.deadline for rank in job.ranks if rank.deadline)
    assert deadline > due
    assert list(store.due_jobs(due)) == []
    assert list(store.due_jobs(deadline)) == ["j1"]
    committed(store, waiting, running(waiting))
    assert list(store.due_jobs(deadline + 1000 * MINUTE)) == []


def test_a_job_that_ended_is_due_while_it_has_something_to_say(store: Store) -> None:
    job = a_job("j1", some_nodes(store, 1))
    store.create(job)
    over = replace(ended(job), outbox=job.outbox)
    committed(store, job, over)
    assert list(store.live_jobs()) == []
    assert list(store.due_jobs(T0 + 60 * MINUTE)) == ["j1"]


def test_the_longest_due_come_first_and_no_more_than_asked_for(store: Store) -> None:
    for i in (3, 1, 2):
        store.create(a_job(f"j{i}", some_nodes(store, 1, f"n{i}-"), at=T0 + i * MINUTE))
    assert list(store.due_jobs(T0 + 60 * MINUTE)) == ["j1", "j2", "j3"]
    assert list(store.due_jobs(T0 + 60 * MINUTE, limit=2)) == ["j1", "j2"]


def test_jobs_are_listed_newest_first_page_by_page(store: Store) -> None:
    # Two of them were made at the very same moment.
    for i, minute in enumerate([0, 1, 2, 2, 3, 4, 5]):
        store.create(a_job(f"j{i}", some_nodes(store, 1, f"n{i}-"), at=T0 + minute * MINUTE))
    listed, pages, place = [], [], ""
    while not pages or place:
        page = store.jobs(limit=3, after=place)
        listed += page.jobs
        pages.append(len(page.jobs))
        place = page.next
    assert pages == [3, 3, 1]
    assert [line.created_at for line in listed] == sorted((line.created_at for line in listed), reverse=True)
    assert sorted(line.id for line in listed) == [f"j{i}" for i in range(7)]


def test_a_full_last_page_has_no_next(store: Store) -> None:
    for i in range(4):
        store.create(a_job(f"j{i}", some_nodes(store, 1, f"n{i}-"), at=T0 + i * MINUTE))
    first = store.jobs(limit=2)
    assert [line.id for line in first.jobs] == ["j3", "j2"]
    second = store.jobs(limit=2, after=first.next)
    assert ([line.id for line in second.jobs], second.next) == (["j1", "j0"], "")


def test_jobs_are_listed_by_status(store: Store) -> None:
    for i in range(5):
        job = a_job(f"j{i}", some_nodes(store, 1, f"n{i}-"), at=T0 + i * MINUTE)
        store.create(job)
        if i % 2:
            store.commit(job, ended(job, JobStatus.FAILED))
    assert [line.id for line in store.jobs(status=JobStatus.FAILED).jobs] == ["j3", "j1"]
    first = store.jobs(status=JobStatus.IN_PROGRESS, limit=2)
    assert [line.id for line in first.jobs] == ["j4", "j2"]
    rest = store.jobs(status=JobStatus.IN_PROGRESS, limit=2, after=first.next)
    assert ([line.id for line in rest.jobs], rest.next) == (["j0"], "")
    assert store.jobs(status=JobStatus.USER_STOPPED).jobs == ()


def test_a_line_says_what_a_list_shows(store: Store) -> None:
    job = a_job("j1", some_nodes(store, 2))
    store.create(job)
    store.commit(job, after(job, attempt=1))
    (line,) = store.jobs().jobs
    assert (line.id, line.name, line.status) == ("j1", "train j1", JobStatus.IN_PROGRESS)
    assert (line.attempt, line.nodes, line.created_at, line.updated_at) == (1, 2, T0, T0 + MINUTE)
