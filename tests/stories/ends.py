"""How a story must end: in the three tables, on the cluster, and in people's mailboxes."""

from __future__ import annotations

from typing import Any

from ecs_gpu_recovery.core.model import Job, JobStatus
from tests.stories.world import CLUSTER, World
from tools import schema_words

#: The published schema: attributes that other tools rely on, all text unless they are lists.
JOB, TASK, NODE = (
    {attribute.name for attribute in table if attribute.seed}
    for table in (schema_words.JOB, schema_words.TASK, schema_words.NODE)
)
LISTS = {attribute.name for attribute in schema_words.JOB if attribute.kind == "L"}


def check_end(
    world: World,
    status: JobStatus,
    *,
    attempt: int = 0,
    nodes: dict[str, str] | str = "AVAILABLE",
    messages: int = 0,
    job_id: str = "j1",
    spontaneous: int = 0,
    unreachable: tuple[str, ...] = (),
    errors: bool = False,
) -> Job:
    """Records, rows, labels, tasks and messages. `nodes` is one status for all, or those that differ from AVAILABLE."""
    job = world.job(job_id)
    story = [f"{e.at:%H:%M:%S} {e.subject} {e.before}>{e.after} {e.why} {e.evidence}" for e in job.timeline]
    assert (job.status, job.attempt) == (status, attempt), "\n".join(story)
    assert not job.outbox, job.outbox
    assert errors or not (world.errors or world.dead_letters), world.errors
    assert not world.rules_broken, world.rules_broken
    world.watch.check(spontaneous=spontaneous)
    _check_job_row(world, job)
    _check_task_rows(world, job)
    expected = {
        r.node: nodes if isinstance(nodes, str) else nodes.get(r.node, "AVAILABLE") for r in job.ranks
    }
    _check_node_rows(world, job, expected, unreachable)
    live = [
        t["taskArn"]
        for kind in ("train", "check")
        for t in world.tasks(kind, live=True)
        if t["env"].get("JOB_ID") == job_id
        and t["node"] not in unreachable
        and t["desiredStatus"] != "STOPPED"
    ]
    assert not live, f"still alive: {live}"
    told = [m for m in world.messages() if job_id in m.splitlines()[0] or job_id in m]
    assert len(told) == messages, told
    return job


def check_node_rows(world: World, job: Job, expected: dict[str, str]) -> None:
    _check_node_rows(world, job, expected, ())


def _check_job_row(world: World, job: Job) -> None:
    row = world.account.rows("job_table")[job.id]
    assert set(row) >= JOB, JOB - set(row)
    assert all(isinstance(row[name], list if name in LISTS else str) for name in JOB), row
    assert row["job_status"] == job.status
    assert row["retry"] == str(job.attempt)
    assert row["num_nodes"] == str(len(job.ranks))
    assert row["assigned_nodes"] == [r.node for r in job.ranks]
    assert row["submitted_ecs_task_ids"] == [r.task_id for r in job.ranks if r.task_id]
    assert row["cluster_name"] == CLUSTER


def _check_task_rows(world: World, job: Job) -> None:
    """Every task that was ever started for the job has its row, and those of earlier attempts stay."""
    rows = {key: row for key, row in world.account.rows("task_table").items() if row.get("job_id") == job.id}
    current = {r.task_id: r for r in job.ranks if r.task_id}
    for task in world.tasks():
        task_id = task["taskArn"].rpartition("/")[2]
        if task["env"]["JOB_ID"] == job.id:
            assert task_id in rows, f"no row for {task_id}, attempt {task['env']['JOB_ATTEMPT']}"
            assert rows[task_id]["retry"] == task["env"]["JOB_ATTEMPT"]
            assert rows[task_id]["node_index_in_job"] == task["env"]["NODE_RANK"]
            assert rows[task_id]["node_name"] == task["node"]
    for task_id, row in rows.items():
        assert set(row) >= TASK, TASK - set(row)
        assert all(isinstance(row[name], str) for name in TASK), row
        if task_id in current:
            assert row["task_status"] == current[task_id].task_status, row
        else:
            assert row["task_status"] in ("TERMINATED", "COMPLETE"), row


def _check_node_rows(world: World, job: Job, expected: dict[str, str], unreachable: tuple[str, ...]) -> None:
    if any(world.labels()[name] != status for name, status in expected.items() if name not in unreachable):
        world.tick()  # who was to put them died, or was refused
    rows, labels = world.account.rows("node_table"), world.labels()
    assert {name: rows[name]["node_status"] for name in expected} == expected
    for name, status in expected.items():
        row: dict[str, Any] = rows[name]
        assert set(row) >= NODE, NODE - set(row)
        assert row.get("job_id") == (None if job.status.final else job.id), row
        if name not in unreachable:
            assert labels[name] == status, f"{name} is {status}, and its instance says {labels[name]!r}"
