"""What the DynamoDB store costs: calls per event, and the size of the item that holds a job."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ecs_gpu_recovery.aws import items
from ecs_gpu_recovery.core.job.draft import PAST_TASKS
from ecs_gpu_recovery.core.model import Entry, Exit, Job, JobStatus, NodeStatus, TaskStatus, Verdict
from tests.aws.place import Place
from tests.contract.worlds import (
    MINUTE,
    T0,
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

pytestmark = pytest.mark.ministack


def test_an_event_costs_a_handful_of_calls(place: Place) -> None:
    store, wire = place.store, place.wire
    nodes = some_nodes(store, 2)
    wire.taken()
    job = a_job("j1", nodes)
    store.create(job)
    assert wire.taken() == ["BatchGetItem", "TransactWriteItems"]
    job = store.commit(job, running(job))
    assert wire.taken() == ["TransactWriteItems"], "the rows travel with the record"
    job = store.commit(job, after(job))
    assert wire.taken() == ["UpdateItem"], "no row shows it"
    job = store.commit(job, ended(job))
    assert wire.taken() == ["UpdateItem"]
    store.settle(job)
    assert wire.taken() == ["BatchGetItem", "TransactWriteItems", "UpdateItem"]
    store.settle(replace(job, owed=()))
    assert wire.taken() == []


def test_a_gang_of_256_costs_a_call_per_hundred_rows(place: Place) -> None:
    store, wire = place.store, place.wire
    nodes = some_nodes(store, 256)
    wire.taken()
    job = a_job("j1", nodes)
    store.create(job)
    assert wire.taken() == ["BatchGetItem"] * 3 + ["TransactWriteItems"] * 3
    job = store.settle(store.commit(job, running(job)))
    assert wire.taken() == ["UpdateItem"] + ["BatchGetItem"] * 6 + ["TransactWriteItems"] * 6 + ["UpdateItem"]
    ranks = (replace(job.ranks[0], task_status=TaskStatus.TERMINATED), *job.ranks[1:])
    store.commit(job, after(job, ranks=ranks))
    assert wire.taken() == ["TransactWriteItems"]


def test_nothing_ever_scans_a_table(place: Place) -> None:
    store, wire = place.store, place.wire
    nodes = some_nodes(store, 2)
    job = a_job("j1", nodes)
    store.create(job)
    over = committed(store, committed(store, job, running(job)), ended(running(job)))
    assert over.status is JobStatus.COMPLETE
    store.job("j1"), store.job_of_task(task_of(job, 0)), store.node("n000"), store.node_of_instance("in000")
    store.jobs(), store.jobs(status=JobStatus.COMPLETE), store.due_jobs(T0), store.live_jobs()
    store.nodes(), store.due_nodes(T0), store.release_orphan("n000", "never", T0)
    assert set(wire.calls) == {
        "BatchGetItem",
        "GetItem",
        "Query",
        "TransactWriteItems",
        "UpdateItem",
    }


def test_importing_the_store_does_not_load_the_client_library() -> None:
    code = "import sys, ecs_gpu_recovery.aws.store; sys.exit(bool({'boto3', 'botocore'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def a_bad_night(job: Job) -> Job:
    """Everything at once: each rank with all that can be said of it, every order pending, a full timeline."""
    hexes = [f"{(i + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for i in range(len(job.ranks))]
    busy = with_ranks(
        job,
        lambda r: replace(
            r,
            task_id=hexes[r.index],
            task_status=TaskStatus.TERMINATED,
            node_status=NodeStatus.REBOOTING,
            exit=Exit.SUSPECT,
            exit_code=1,
            exit_reason=f"CUDA error: uncorrectable ECC error encountered on {r.node} " * 3,
            check_id=hexes[-r.index],
            verdict=Verdict.REBOOT,
            findings=f"Xid 79 on GPU-{hexes[r.index]}: the GPU has fallen off the bus; " * 4,
            gpus_seen=7,
            away_since=T0,
            seen_version=12345,
            deadline=T0 + 30 * MINUTE,
        ),
    )
    line = Entry(at=T0, subject="n000", before="PENDING", after="REBOOTING", why="x" * 80, evidence="y" * 200)
    lines = tuple(replace(line, at=T0 + i * timedelta(seconds=1.234), subject=f"n{i:03}") for i in range(100))
    return replace(
        busy,
        outbox=(*job.outbox, *a_job(job.id, list(map(a_node, hexes)), check=True).outbox),
        timeline=lines,
    )


def test_a_gang_of_256_on_a_bad_night_fits_into_one_item(place: Place) -> None:
    store = place.store
    before = a_job("j1", some_nodes(store, 256))
    store.create(before)
    job = store.commit(before, a_bad_night(before))
    assert store.job("j1") == job
    item = place.client.get_item(TableName=place.names["job_table"], Key={"job_id": {"S": "j1"}})["Item"]
    assert size(item) < 100_000


def after_a_hundred_attempts(job: Job) -> Job:
    """As many earlier tasks as a record of so many ranks remembers, each with an id that no packing makes shorter."""
    most = max(2, min(16, PAST_TASKS // len(job.ranks)))
    past = [tuple(f"{99 - n}/{r.task_id[::-1]}" for n in range(most)) for r in job.ranks]
    ranks = tuple(replace(r, task_attempt=100, past_tasks=past[r.index]) for r in job.ranks)
    return replace(job, attempt=100, ranks=ranks)


def test_a_gang_of_1024_after_a_hundred_attempts_fits_into_one_item() -> None:
    job = a_bad_night(a_job("j1", [a_node(f"n{i:04}") for i in range(1024)]))
    assert size(items.job_item(after_a_hundred_attempts(job), MINUTE)) < 400 * 1024


def size(item: dict[str, Any]) -> int:
    """As DynamoDB counts it: names and values."""

    def of(value: Any) -> int:
        ((kind, inner),) = value.items()
        return (
            sum(map(of, inner)) + 3
            if kind == "L"
            else len(inner.encode() if isinstance(inner, str) else inner)
        )

    return sum(len(name) + of(value) for name, value in item.items())


def test_a_small_record_can_be_read_by_people_and_a_large_one_is_packed(place: Place) -> None:
    small, large = a_job("j1", [a_node("n1")]), a_bad_night(a_job("j2", [a_node(f"n{i}") for i in range(99)]))
    assert items.job_item(small, MINUTE)["record"]["S"].startswith('{"format":2,"id":"j1"')
    packed = items.job_item(large, MINUTE)
    assert set(packed["record"]) == {"B"}
    assert items.read_job(packed) == large
