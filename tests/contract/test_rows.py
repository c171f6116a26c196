"""Task and node rows: what other tools read follows the record, however late or often it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus, Rank, TaskStatus, Verdict
from ecs_gpu_recovery.engine.ports import Store
from tests.contract.worlds import (
    MINUTE,
    T0,
    World,
    a_job,
    a_node,
    after,
    ended,
    running,
    some_nodes,
    task_of,
    with_ranks,
)


def recorded(store: Store, *steps: Callable[[Job], Job], nodes: int = 2) -> list[Job]:
    """A new job and the versions that follow, committed, their rows not yet ordered."""
    jobs = [a_job("j1", some_nodes(store, nodes))]
    store.create(jobs[0])
    for step in steps:
        jobs.append(step(jobs[-1]))
        store.commit(jobs[-1])
    return jobs


def failing(job: Job) -> Job:
    """Rank 0 died, the rest is being stopped."""

    def change(rank: Rank) -> Rank:
        if rank.index:
            return replace(rank, node_status=NodeStatus.PENDING)
        return replace(
            rank,
            task_status=TaskStatus.TERMINATED,
            exit_code=1,
            exit_reason="CUDA error",
            node_status=NodeStatus.PENDING,
        )

    return with_ranks(job, change, status=JobStatus.PENDING_HEALTHCHECK)


def second_attempt(job: Job) -> Job:
    """The gang starts again; the tasks of the first attempt are no longer in the record."""
    return with_ranks(
        job,
        lambda r: replace(
            r, task_id="", task_status=None, exit_code=None, exit_reason="", node_status=NodeStatus.AVAILABLE
        ),
        attempt=1,
        status=JobStatus.RESTARTING,
    )


def test_a_task_row_has_the_attributes_of_the_schema(world: World) -> None:
    (_, job) = recorded(world.store, running)
    world.store.write_rows(job)
    row = world.task_row(task_of(job, 1))
    times = {"job_timestamp": T0, "created_at": T0 + MINUTE, "updated_at": T0 + MINUTE}
    assert {name: datetime.fromisoformat(row.pop(name)) for name in times} == times
    row.pop("job_version", None)
    assert row == {
        "ecs_task_id": "task-j1-0-1",
        "node_name": "n001",
        "node_index_in_job": "1",
        "job_id": "j1",
        "job_num_nodes": "2",
        "task_def_arn": "train:3",
        "task_def_name": "train",
        "task_def_revision": "3",
        "cluster_name": "gpus",
        "container_inst_id": "in001",
        "container_instance_arn": "arn:aws:ecs:us-east-1:123456789012:container-instance/gpus/in001",
        "retry": "0",
        "task_status": "IN_PROGRESS",
    }


def test_a_task_names_its_job(store: Store) -> None:
    (_, job) = recorded(store, running)
    store.write_rows(job)
    assert store.job_of_task("task-j1-0-0") == "j1"
    assert store.job_of_task("task-j1-0-7") is None


def test_a_row_keeps_the_time_of_its_first_writing(world: World) -> None:
    (_, first) = recorded(world.store, running)
    world.store.write_rows(first)
    second = failing(first)
    world.store.commit(second)
    world.store.write_rows(second)
    row = world.task_row(task_of(first, 0))
    assert (row["task_status"], row["exit_code"], row["exit_reason"]) == ("TERMINATED", "1", "CUDA error")
    assert datetime.fromisoformat(row["created_at"]) == T0 + MINUTE
    assert datetime.fromisoformat(row["updated_at"]) == T0 + 2 * MINUTE
    assert world.task_row(task_of(first, 1))["task_status"] == "IN_PROGRESS"


def test_nodes_follow_the_record_while_the_job_holds_them(world: World) -> None:
    (_, first, second) = recorded(world.store, running, failing)
    world.store.write_rows(first)
    world.store.write_rows(second)
    for name in ("n000", "n001"):
        node = world.store.node(name)
        assert (node.status, node.job_id) == (NodeStatus.PENDING, "j1")
        assert world.node_row(name)["node_status"] == "PENDING"


def test_writing_rows_twice_is_writing_them_once(world: World) -> None:
    (_, job) = recorded(world.store, running)
    world.store.write_rows(job)
    before = [world.task_row(task_of(job, 0)), world.node_row("n000"), world.node_row("n001")]
    world.store.write_rows(job)
    world.another().write_rows(job)
    assert [world.task_row(task_of(job, 0)), world.node_row("n000"), world.node_row("n001")] == before


def test_an_older_record_never_overwrites_a_newer_one(world: World) -> None:
    (created, first, second) = recorded(world.store, running, failing)
    world.store.write_rows(second)
    keys = [task_of(first, 0), task_of(first, 1)]
    before = [*map(world.task_row, keys), world.node_row("n000"), world.node_row("n001")]
    world.store.write_rows(first)
    world.store.write_rows(created)
    assert [*map(world.task_row, keys), world.node_row("n000"), world.node_row("n001")] == before
    assert world.task_row(keys[0])["task_status"] == "TERMINATED"


def test_an_older_record_does_not_bring_back_a_status_that_passed(world: World) -> None:
    """The row was right for the newest record without being written; the record in between comes late."""

    def back(job: Job) -> Job:
        return with_ranks(job, lambda r: replace(r, node_status=NodeStatus.IN_PROGRESS))

    (_, first, between, newest) = recorded(world.store, running, failing, back)
    world.store.write_rows(first)
    world.store.write_rows(newest)
    before = list(world.store.nodes())
    assert {node.status for node in before} == {NodeStatus.IN_PROGRESS}
    world.store.write_rows(between)
    assert list(world.store.nodes()) == before


def test_the_end_of_a_task_is_written_even_after_its_record_has_forgotten_it(world: World) -> None:
    (_, first, second, third) = recorded(world.store, running, failing, second_attempt)
    world.store.write_rows(second)
    assert world.task_row(task_of(first, 0))["task_status"] == "TERMINATED"
    world.store.write_rows(third)
    world.store.write_rows(first)
    assert world.task_row(task_of(first, 0))["task_status"] == "TERMINATED"
    assert {node.status for node in world.store.nodes()} == {NodeStatus.AVAILABLE}
    assert {node.job_id for node in world.store.nodes()} == {"j1"}


def test_a_task_that_is_forgotten_in_the_very_step_of_its_end_is_not_left_open(world: World) -> None:
    """A lost task can end, and its rank start again, in one commit: no record ever says how it ended."""

    def lost_and_started_again(job: Job) -> Job:
        return with_ranks(
            job,
            lambda r: replace(r, past_tasks=(f"0/{r.task_id}",), task_id="", task_status=None),
            attempt=1,
            status=JobStatus.RESTARTING,
        )

    (_, first, second) = recorded(world.store, running, lost_and_started_again)
    world.store.write_rows(first)
    world.store.write_rows(second)
    assert {world.task_row(task_of(first, rank))["task_status"] for rank in (0, 1)} == {"TERMINATED"}


def test_a_job_that_ended_gives_its_nodes_back(world: World) -> None:
    (_, _, job) = recorded(world.store, running, ended)
    world.store.write_rows(job)
    for node in world.store.nodes():
        assert (node.status, node.job_id, node.job_version) == (NodeStatus.AVAILABLE, "", 0)
    assert "job_id" not in world.node_row("n000")


def test_a_node_that_failed_keeps_the_verdict_when_it_is_given_back(store: Store) -> None:
    def broken(job: Job) -> Job:
        return replace(
            ended(job, JobStatus.FAILED),
            ranks=(
                replace(
                    job.ranks[0], node_status=NodeStatus.FAILED, verdict=Verdict.REPLACE, findings="Xid 48"
                ),
                replace(job.ranks[1], node_status=NodeStatus.AVAILABLE),
            ),
        )

    (_, _, job) = recorded(store, running, broken)
    store.write_rows(job)
    node = store.node("n000")
    assert (node.status, node.verdict, node.findings) == (NodeStatus.FAILED, Verdict.REPLACE, "Xid 48")
    assert store.node("n001").claimable


def test_a_node_that_another_job_holds_is_none_of_its_business(store: Store) -> None:
    (_, first, over) = recorded(store, running, ended)
    store.write_rows(over)
    nodes = list(store.nodes())
    store.create(a_job("j2", nodes))
    before = list(store.nodes())
    store.write_rows(first)
    store.write_rows(over)
    assert list(store.nodes()) == before


def test_what_a_node_itself_knows_survives_the_rows(store: Store) -> None:
    (_, job) = recorded(store, running)
    seen = store.node("n000")
    store.commit_node(replace(seen, boot_id="new", away_since=T0, version=seen.version + 1))
    moved = failing(job)
    store.commit(moved)
    store.write_rows(moved)
    node = store.node("n000")
    assert (node.boot_id, node.away_since, node.status) == ("new", T0, NodeStatus.PENDING)


def test_a_job_of_256_nodes_makes_the_round(store: Store) -> None:
    nodes = [a_node(f"n{i:03}") for i in range(256)]
    for node in nodes:
        store.add_node(node)
    job = a_job("big", nodes, check=True)
    store.create(job)
    assert store.job("big") == job
    assert {n.job_id for n in store.nodes()} == {"big"}
    job = running(job)
    store.commit(job)
    store.write_rows(job)
    assert store.job("big") == job
    assert {store.job_of_task(task_of(job, i)) for i in (0, 99, 100, 255)} == {"big"}
    assert {n.status for n in store.nodes()} == {NodeStatus.IN_PROGRESS}
    job = ended(job)
    store.commit(job)
    store.write_rows(job)
    assert all(n.claimable for n in store.nodes())
    store.commit(after(job, at=T0 + timedelta(days=1), outcome="read again"))
    assert store.job("big").outcome == "read again"
