"""Task and node rows: what other tools read follows the record, however late or often it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from ecs_gpu_recovery.core.effects import Archive
from ecs_gpu_recovery.core.model import Entry, Job, JobStatus, NodeStatus, Rank, TaskStatus, Verdict
from ecs_gpu_recovery.engine.ports import Store
from tests.contract.worlds import (
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
    task_of,
    with_ranks,
)


def recorded(store: Store, *steps: Callable[[Job], Job], nodes: int = 2) -> list[Job]:
    """A new job and the versions that follow, committed; nobody has paid yet what they owe."""
    jobs = [a_job("j1", some_nodes(store, nodes))]
    store.create(jobs[0])
    for step in steps:
        jobs.append(store.commit(jobs[-1], step(jobs[-1])))
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
    world.store.settle(job)
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
    store.settle(job)
    assert store.job_of_task("task-j1-0-0") == "j1"
    assert store.job_of_task("task-j1-0-7") is None


def test_a_row_keeps_the_time_of_its_first_writing(world: World) -> None:
    (_, first) = recorded(world.store, running)
    world.store.settle(first)
    committed(world.store, first, failing(first))
    row = world.task_row(task_of(first, 0))
    assert (row["task_status"], row["exit_code"], row["exit_reason"]) == ("TERMINATED", "1", "CUDA error")
    assert datetime.fromisoformat(row["created_at"]) == T0 + MINUTE
    assert datetime.fromisoformat(row["updated_at"]) == T0 + 2 * MINUTE
    assert world.task_row(task_of(first, 1))["task_status"] == "IN_PROGRESS"


def test_nodes_follow_the_record_while_the_job_holds_them(world: World) -> None:
    (_, _, second) = recorded(world.store, running, failing)
    world.store.settle(second)
    for name in ("n000", "n001"):
        node = world.store.node(name)
        assert (node.status, node.job_id) == (NodeStatus.PENDING, "j1")
        assert world.node_row(name)["node_status"] == "PENDING"


def owing(job: Job) -> Job:
    """The record as a process has it that believes that nothing of it is written yet."""
    return replace(job, owed=tuple((rank.index, job.version) for rank in job.ranks))


def what_others_read(world: World, job: Job) -> list[object]:
    tasks = [world.task_row(task_of(job, rank)) for rank in (0, 1)]
    return [*tasks, *(world.node_row(name) for name in ("n000", "n001")), *world.store.nodes()]


def test_writing_rows_twice_is_writing_them_once(world: World) -> None:
    (_, job) = recorded(world.store, running)
    world.store.settle(job)
    before = what_others_read(world, job)
    world.store.settle(owing(job))
    world.another().settle(owing(job))
    assert what_others_read(world, job) == before


def test_an_older_record_never_overwrites_a_newer_one(world: World) -> None:
    (created, first, second) = recorded(world.store, running, failing)
    world.store.settle(second)
    before = what_others_read(world, first)
    world.store.settle(owing(first))
    world.store.settle(owing(created))
    assert what_others_read(world, first) == before
    assert world.task_row(task_of(first, 0))["task_status"] == "TERMINATED"


def test_an_older_record_does_not_bring_back_a_status_that_passed(world: World) -> None:
    """What the newest record says was said before; the record in between comes late."""

    def back(job: Job) -> Job:
        return with_ranks(job, lambda r: replace(r, node_status=NodeStatus.IN_PROGRESS))

    (_, _, between, newest) = recorded(world.store, running, failing, back)
    world.store.settle(newest)
    before = list(world.store.nodes())
    assert {node.status for node in before} == {NodeStatus.IN_PROGRESS}
    world.store.settle(owing(between))
    assert list(world.store.nodes()) == before


def test_a_job_is_due_while_rows_are_owed_even_after_its_end(world: World) -> None:
    """Whoever committed it may have died: the due list leads the sweeper there."""
    (_, _, over) = recorded(world.store, running, ended)
    assert list(world.store.due_jobs(T0 + 60 * MINUTE)) == (["j1"] if over.owed else [])
    assert world.another().job("j1").owed == over.owed, "it is kept with the record"
    paid = world.another().settle(world.another().job("j1"))
    assert paid == world.store.job("j1")
    assert paid.owed == ()
    assert list(world.store.due_jobs(T0 + 60 * MINUTE)) == []
    assert all(node.claimable for node in world.store.nodes())


def test_what_one_commit_owes_the_next_one_does_not_forget(world: World) -> None:
    (_, first) = recorded(world.store, running)
    second = world.store.commit(first, after(first, outcome="nothing that a row shows"))
    assert second.owed == first.owed
    world.store.settle(second)
    assert {node.status for node in world.store.nodes()} == {NodeStatus.IN_PROGRESS}
    assert world.store.job("j1").owed == ()


def test_a_task_that_its_record_is_about_to_forget_gets_its_row_first(world: World) -> None:
    """Whoever committed its start died before it paid what it owed."""
    (_, first) = recorded(world.store, running)
    again = world.store.commit(first, second_attempt(first))
    assert world.store.job_of_task(task_of(first, 0)) == "j1"
    world.store.settle(again)
    assert {node.status for node in world.store.nodes()} == {NodeStatus.AVAILABLE}


def test_a_task_of_an_earlier_attempt_keeps_its_end(world: World) -> None:
    (_, first, second) = recorded(world.store, running, failing)
    world.store.settle(second)
    third = committed(world.store, second, second_attempt(second))
    world.store.settle(owing(first))
    assert world.task_row(task_of(first, 0))["task_status"] == "TERMINATED"
    assert {node.status for node in world.store.nodes()} == {NodeStatus.AVAILABLE}
    assert {node.job_id for node in world.store.nodes()} == {third.id}


def test_a_task_that_is_forgotten_in_the_very_step_of_its_end_is_not_left_open(world: World) -> None:
    """A lost task can end, and its rank start again, in one commit: no record ever says how it ended."""

    def lost_and_started_again(job: Job) -> Job:
        return with_ranks(
            job,
            lambda r: replace(r, past_tasks=(f"0/{r.task_id}",), task_id="", task_status=None),
            attempt=1,
            status=JobStatus.RESTARTING,
        )

    (_, first) = recorded(world.store, running)
    first = world.store.settle(first)
    committed(world.store, first, lost_and_started_again(first))
    assert {world.task_row(task_of(first, rank))["task_status"] for rank in (0, 1)} == {"TERMINATED"}


def test_a_job_that_ended_gives_its_nodes_back(world: World) -> None:
    (_, _, job) = recorded(world.store, running, ended)
    world.store.settle(job)
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
    store.settle(job)
    node = store.node("n000")
    assert (node.status, node.verdict, node.findings) == (NodeStatus.FAILED, Verdict.REPLACE, "Xid 48")
    assert store.node("n001").claimable


def test_a_node_that_another_job_holds_is_none_of_its_business(store: Store) -> None:
    (_, first, over) = recorded(store, running, ended)
    store.settle(over)
    nodes = list(store.nodes())
    store.create(a_job("j2", nodes))
    before = list(store.nodes())
    store.settle(owing(first))
    store.settle(owing(over))
    assert list(store.nodes()) == before


def test_what_a_node_itself_knows_survives_the_rows(store: Store) -> None:
    (_, job) = recorded(store, running)
    seen = store.node("n000")
    store.commit_node(replace(seen, boot_id="new", away_since=T0, version=seen.version + 1))
    committed(store, job, failing(job))
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
    job = committed(store, job, running(job))
    assert store.job("big") == job
    assert {store.job_of_task(task_of(job, i)) for i in (0, 99, 100, 255)} == {"big"}
    assert {n.status for n in store.nodes()} == {NodeStatus.IN_PROGRESS}
    job = committed(store, job, ended(job))
    assert all(n.claimable for n in store.nodes())
    store.commit(job, after(job, at=T0 + timedelta(days=1), outcome="read again"))
    assert store.job("big").outcome == "read again"


def said(job: Job, node: str, before: str, after: str, why: str) -> Entry:
    return Entry(at=job.updated_at, subject=node, before=before, after=after, why=why, attempt=job.attempt)


def test_a_node_s_own_record_tells_what_happened_to_it_in_the_hands_of_a_job(store: Store) -> None:
    """While the job holds it and afterwards, with the reason, and whichever of its rows came late."""

    def told(step: Callable[[Job], Job], before: str, after: str, why: str) -> Callable[[Job], Job]:
        def act(job: Job) -> Job:
            new = step(job)
            return replace(new, timeline=(*job.timeline, said(new, "n000", before, after, why)))

        return act

    steps = [
        told(running, "ASSIGNED", "IN_PROGRESS", "rank 0 runs"),
        told(failing, "IN_PROGRESS", "PENDING", "its job failed"),
        told(ended, "PENDING", "AVAILABLE", "the job is over"),
    ]
    jobs = recorded(store, *steps[:2])
    story = [("", "taken by job j1"), ("ASSIGNED", "rank 0 runs"), ("IN_PROGRESS", "its job failed")]
    job = store.settle(jobs[-1])
    held = [(e.before, e.why) for e in store.node("n000").timeline]
    assert held == [("AVAILABLE", story[0][1]), *story[1:]]
    assert {e.job for e in store.node("n000").timeline} == {"j1"}
    committed(store, job, steps[2](job))
    node = store.node("n000")
    assert [(e.before, e.why) for e in node.timeline] == [*held, ("PENDING", "the job is over")]
    assert (node.job_id, node.status) == ("", NodeStatus.AVAILABLE)


def test_a_node_that_is_held_for_long_archives_its_story_and_loses_none_of_it(store: Store) -> None:
    job = store.settle(recorded(store, running, nodes=1)[-1])
    for number in range(120):
        line = said(job, "n000", "IN_PROGRESS", "IN_PROGRESS", f"line {number}")
        job = committed(store, job, after(job, timeline=(line,)))
    node = store.node("n000")
    archived = [
        line for order in node.outbox if isinstance(order.effect, Archive) for line in order.effect.lines
    ]
    kept = [entry.why for entry in node.timeline]
    assert len(kept) <= 100
    lines = [*(line.rpartition("  ")[2] if "  " in line else line for line in archived), *kept]
    assert [f"line {n}" for n in range(120) if not any(text.endswith(f"line {n}") for text in lines)] == []
    assert list(store.due_nodes(T0 + 1000 * MINUTE)) == ["n000"], "somebody writes the archive"
