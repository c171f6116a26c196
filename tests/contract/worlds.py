"""The places a store can keep its records in, with a look behind the store, and records to put in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.core.codec import CODEC, Codec
from ecs_gpu_recovery.core.job.table import submit
from ecs_gpu_recovery.core.model import Job, JobSpec, JobStatus, NodeStatus, Rank, TaskStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.ports import Store

CLUSTER = "gpus"
T0 = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ARN = "arn:aws:ecs:us-east-1:123456789012:container-instance/gpus/"


@dataclass(frozen=True, slots=True)
class World:
    """A store, and what other tools would see of its records."""

    store: Store
    another: Callable[
        ..., Store
    ]  #: a second store on the same records, as another process, or release, would have
    row: Callable[
        [str, str], dict[str, Any]
    ]  #: the attributes in a table under a key; empty if there are none
    text: Callable[[str, str], str]  #: a record as it is written, by its table and its key
    overwrite: Callable[[str, str, str], None]  #: put a text in its place, as some other hand would

    def task_row(self, task_id: str) -> dict[str, Any]:
        return self.row("ecs_task", task_id)

    def job_row(self, job_id: str) -> dict[str, Any]:
        return self.row("ecs_job", job_id)

    def node_row(self, name: str) -> dict[str, Any]:
        return self.row("ecs_node", name)


@contextmanager
def sqlite_world(folder: Path) -> Iterator[World]:
    from ecs_gpu_recovery.local.store import SqliteStore

    keys = {"ecs_task": "ecs_task_id", "ecs_job": "job_id", "ecs_node": "node_name"}
    lists = {"assigned_nodes", "submitted_container_inst_ids", "submitted_ecs_task_ids"}
    opened: list[SqliteStore] = []

    def another(codec: Codec = CODEC) -> SqliteStore:
        opened.append(SqliteStore(folder / "state.db", codec=codec))
        return opened[-1]

    def overwrite(table: str, key: str, text: str) -> None:
        """A reader in this process may still have the record as it was; so the hand is another process's."""
        where = f"UPDATE {table} SET record=? WHERE {keys[table]}=?"
        store.write(lambda conn: conn.execute(where, (text, key)))
        for one in opened:
            one._cache.clear()
            one._nodes.clear()

    def row(table: str, key: str) -> dict[str, Any]:
        names = [r[1] for r in store.read(f"PRAGMA table_info({table})")]
        found = store.read(f"SELECT * FROM {table} WHERE {keys[table]}=?", key)
        values = dict(zip(names, found[0], strict=True)) if found else {}
        return {n: json.loads(v) if n in lists else v for n, v in values.items() if v is not None}

    store = another()
    try:
        yield World(store, another, row, lambda table, key: row(table, key)["record"], overwrite)
    finally:
        for one in opened:
            one.close()


@contextmanager
def memory_world(rows_fit: int | None) -> Iterator[World]:
    """The store of the nights. It keeps records and not their tables, so a row is what it would write."""
    from ecs_gpu_recovery.core import rows
    from testbed.nights.memory import Kept, MemoryStore

    store = MemoryStore(rows_fit=rows_fit)

    def row(table: str, key: str) -> dict[str, Any]:
        if table == "ecs_task":
            return dict(store.task_row(key))
        if table == "ecs_job":
            return dict(rows.job_row(store.job(key)))
        node = store.node(key)
        return dict(rows.node_row(node)) | ({"job_id": node.job_id} if node.job_id else {})

    def kept(table: str, key: str) -> Kept[Any]:
        return store.kept("job" if table == "ecs_job" else "node", key)

    def overwrite(table: str, key: str, text: str) -> None:
        kept(table, key).damage = text

    yield World(
        store,
        lambda codec=CODEC: store.seen_by(codec),
        row,
        lambda table, key: kept(table, key).text,
        overwrite,
    )


@contextmanager
def dynamodb_world(url: str) -> Iterator[World]:
    from ecs_gpu_recovery.aws.store import DynamoStore
    from tests.aws.ministack import dynamodb, fresh_tables

    client = dynamodb(url)
    keys = {"ecs_task": "ecs_task_id", "ecs_job": "job_id", "ecs_node": "node_name"}
    roles = {"ecs_task": "task_table", "ecs_job": "job_table", "ecs_node": "node_table"}
    with fresh_tables(client) as names:

        def row(table: str, key: str) -> dict[str, Any]:
            reply = client.get_item(
                TableName=names[roles[table]], Key={keys[table]: {"S": key}}, ConsistentRead=True
            )
            return {name: plain(value) for name, value in reply.get("Item", {}).items()}

        def overwrite(table: str, key: str, text: str) -> None:
            client.update_item(
                TableName=names[roles[table]],
                Key={keys[table]: {"S": key}},
                UpdateExpression="SET #r = :r",
                ExpressionAttributeNames={"#r": "record"},
                ExpressionAttributeValues={":r": {"S": text}},
            )

        yield World(
            DynamoStore(client, cluster=CLUSTER, **names),
            lambda codec=CODEC: DynamoStore(dynamodb(url), cluster=CLUSTER, codec=codec, **names),
            row,
            lambda table, key: row(table, key)["record"],
            overwrite,
        )
    client.close()


def plain(value: Any) -> Any:
    ((kind, inner),) = value.items()
    return [plain(one) for one in inner] if kind == "L" else int(inner) if kind == "N" else inner


# -- records -------------------------------------------------------------------------------------------------


def a_node(name: str, **changes: Any) -> Node:
    node = Node(
        name=name,
        cluster=CLUSTER,
        created_at=T0,
        updated_at=T0,
        instance=ARN + f"i{name}",
        status=NodeStatus.AVAILABLE,
        gpus=8,
        connected=True,
        boot_id=f"boot-of-{name}",
        version=1,
    )
    return replace(node, **changes)


def some_nodes(store: Store, count: int, prefix: str = "n") -> list[Node]:
    nodes = [a_node(f"{prefix}{i:03}") for i in range(count)]
    for node in nodes:
        store.add_node(node)
    return nodes


def a_job(job_id: str, nodes: list[Node], *, at: datetime = T0, check: bool = False) -> Job:
    spec = JobSpec(name=f"train {job_id}", command=("python", "train.py"), task_def="train:3")
    return submit(
        job_id=job_id, cluster=CLUSTER, spec=spec, nodes=nodes, policy=Policy(), at=at, check=check
    ).job


def committed(store: Store, old: Job, new: Job) -> Job:
    """A commit, and whatever it left to be written."""
    return store.settle(store.commit(old, new))


def after(job: Job, *, at: datetime | None = None, **changes: Any) -> Job:
    """The next version of a job."""
    return replace(job, version=job.version + 1, updated_at=at or job.updated_at + MINUTE, **changes)


def with_ranks(job: Job, change: Callable[[Rank], Rank], **changes: Any) -> Job:
    return after(job, ranks=tuple(map(change, job.ranks)), **changes)


def running(job: Job) -> Job:
    """Every rank has its task."""
    return with_ranks(
        job,
        lambda r: replace(
            r,
            task_id=task_of(job, r.index),
            task_status=TaskStatus.IN_PROGRESS,
            node_status=NodeStatus.IN_PROGRESS,
            deadline=None,
        ),
        outbox=(),
    )


def ended(job: Job, status: JobStatus = JobStatus.COMPLETE) -> Job:
    """Every rank has ended well and gives its node back."""
    return with_ranks(
        job,
        lambda r: replace(
            r, task_status=TaskStatus.COMPLETE, exit_code=0, deadline=None, node_status=NodeStatus.AVAILABLE
        ),
        status=status,
        outbox=(),
    )


def task_of(job: Job, index: int) -> str:
    return f"task-{job.id}-{job.attempt}-{index}"
