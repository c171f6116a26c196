"""The embedded store: the records in SQLite. The same contract as the DynamoDB store.

A job, its task rows and its node rows move in one transaction, so no reader ever sees them disagree.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ..core import keys, rows
from ..core.codec import CODEC, Codec
from ..core.errors import BadRecord, JobExists, NodesTaken, NotFound, Refused, Unreadable, VersionConflict
from ..core.model import Job, JobStatus
from ..core.node_record import Node
from ..engine.ports import JobLine, Nodes, Page, each
from .database import Database
from .schema import TASK_COLUMNS

_CACHE = 2000
_PUT_TASK = (
    f"INSERT INTO ecs_task VALUES ({','.join('?' * len(TASK_COLUMNS))})"  # noqa: S608 (only question marks)
    " ON CONFLICT(ecs_task_id) DO UPDATE SET "
    + ", ".join(
        f"{name}=excluded.{name}" for name in TASK_COLUMNS if name not in ("ecs_task_id", "created_at")
    )
)


class SqliteStore(Database):
    """Safe for many threads, and for many processes on one machine."""

    def __init__(
        self, path: Path, *, lost_after: timedelta = timedelta(minutes=10), codec: Codec = CODEC
    ) -> None:
        super().__init__(path)
        self._lost_after, self._codec = lost_after, codec
        self._cache: OrderedDict[str, Job] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._nodes: dict[str, Node] = {}

    # -- jobs ----------------------------------------------------------------------------------------------

    def create(self, job: Job) -> None:
        def act(conn: sqlite3.Connection) -> None:
            if conn.execute("SELECT 1 FROM ecs_job WHERE job_id=?", (job.id,)).fetchone():
                raise JobExists(f"job {job.id} exists already")
            nodes, refused = [], {}
            for rank in job.ranks:
                found = conn.execute("SELECT record FROM ecs_node WHERE node_name=?", (rank.node,)).fetchone()
                try:
                    node = self._codec.node(rank.node, found[0]) if found else None
                except BadRecord as exc:
                    refused[rank.node] = str(exc)
                    continue
                why = "no such node" if node is None else node.refusal
                if node is None or why:
                    refused[rank.node] = why
                else:
                    nodes.append(node)
            if refused:
                raise NodesTaken(refused)
            for node in nodes:
                self._put_node(conn, rows.claimed_node(node, job))
            self._put_job(conn, job)

        self.write(act)

    def job(self, job_id: str) -> Job:
        found = self.read("SELECT version FROM ecs_job WHERE job_id=?", job_id)
        if not found:
            raise NotFound(f"no job {job_id}")
        cached = self._cache.get(job_id)
        if cached is not None and cached.version == found[0][0]:
            return cached
        found = self.read("SELECT record FROM ecs_job WHERE job_id=?", job_id)
        job = self._codec.job(job_id, found[0][0])
        self._remember(job)
        return job

    def _remember(self, job: Job) -> None:
        with self._cache_lock:
            self._cache[job.id] = job
            self._cache.move_to_end(job.id)
            while len(self._cache) > _CACHE:
                self._cache.popitem(last=False)

    def last(self, job_id: str) -> Job | None:
        """None: `job` costs next to nothing, and is never stale."""
        return None

    def commit(self, old: Job, new: Job, handed: Sequence[Node] = ()) -> Job:
        changes = rows.changes(old, new)

        def act(conn: sqlite3.Connection) -> None:
            found = conn.execute("SELECT version FROM ecs_job WHERE job_id=?", (new.id,)).fetchone()
            if found is None:
                raise NotFound(f"no job {new.id}")
            if (old.version, new.version) != (found[0], found[0] + 1):
                raise VersionConflict(f"job {new.id} is at version {found[0]}, not {new.version - 1}")
            for node in handed:
                _check_next(conn, node)
            nodes = [*self._held_nodes(conn, new, changes), *handed]
            self._put_job(conn, new)
            for row in changes.tasks:
                known = row | {"created_at": row["updated_at"]}
                conn.execute(_PUT_TASK, tuple(known.get(name) for name in TASK_COLUMNS))
            for node in nodes:
                self._put_node(conn, node)

        self.write(act)
        self._remember(new)
        return new

    def settle(self, job: Job, old: Job | None = None, *, soon: bool = False) -> Job:
        """`commit` owes nothing."""
        return job

    def _put_job(self, conn: sqlite3.Connection, job: Job) -> None:
        conn.execute(
            "INSERT INTO ecs_job VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT(job_id) DO UPDATE SET"
            " job_status=excluded.job_status, retry=excluded.retry, updated_at=excluded.updated_at,"
            " submitted_ecs_task_ids=excluded.submitted_ecs_task_ids,"
            " assigned_nodes=excluded.assigned_nodes,"
            " submitted_container_inst_ids=excluded.submitted_container_inst_ids,"
            " live=excluded.live, wake_at=excluded.wake_at, version=excluded.version, record=excluded.record",
            (
                job.id,
                _stamp(job.created_at),
                job.cluster,
                str(len(job.ranks)),
                json.dumps([r.node for r in job.ranks]),
                json.dumps([r.instance.rpartition("/")[2] for r in job.ranks]),
                json.dumps([r.task_id for r in job.ranks if r.task_id]),
                _stamp(job.updated_at),
                _stamp(job.created_at),
                str(job.attempt),
                job.status.value,
                job.spec.name,
                None if job.status.final else 1,
                _stamp(job.wake_at(self._lost_after)),
                job.version,
                self._codec.text(job),
            ),
        )

    def _held_nodes(self, conn: sqlite3.Connection, job: Job, changes: rows.Changes) -> list[Node]:
        """The nodes as this step of their job leaves them. One that can't be read is left out, and its job goes on;
        one that a newer release wrote is not ours to write."""
        held: list[Node] = []
        for rank, lines in changes.nodes:
            found = conn.execute(
                "SELECT record FROM ecs_node WHERE node_name=? AND job_id=?", (rank.node, job.id)
            ).fetchone()
            with suppress(Unreadable):
                node = rows.held_node(self._codec.node(rank.node, found[0]), job, lines) if found else None
                held += [node] if node is not None else []
        return held

    def job_of_task(self, task_id: str) -> str | None:
        found = self.read("SELECT job_id FROM ecs_task WHERE ecs_task_id=?", task_id)
        return str(found[0][0]) if found else None

    def jobs(self, *, status: JobStatus | None = None, limit: int = 50, after: str = "") -> Page:
        created, _, last = after.partition(" ")
        if after and not (created and last):
            raise Refused(f"{after!r} is not a place in a list of jobs")
        where, args = ["1=1"], []
        if status is not None:
            where.append("job_status=?")
            args.append(status.value)
        if after:
            where.append("(created_at, job_id) < (?, ?)")
            args += [created, last]
        found = self.read(
            "SELECT job_id, job_name, job_status, retry, num_nodes, created_at, updated_at"  # noqa: S608
            f" FROM ecs_job WHERE {' AND '.join(where)} ORDER BY created_at DESC, job_id DESC LIMIT ?",
            *args,
            limit + 1,
        )
        lines, bad = each(_line, found[:limit])
        more = f"{found[limit - 1][5]} {found[limit - 1][0]}" if len(found) > limit else ""
        return Page(jobs=tuple(lines), next=more, bad=tuple(bad))

    def due_jobs(self, now: datetime, limit: int = 1000) -> Sequence[str]:
        due = "SELECT job_id FROM ecs_job WHERE wake_at IS NOT NULL AND wake_at<=? ORDER BY wake_at LIMIT ?"
        return [r[0] for r in self.read(due, _stamp(now), limit)]

    def live_jobs(self) -> Sequence[str]:
        return [r[0] for r in self.read("SELECT job_id FROM ecs_job WHERE live=1 ORDER BY job_id")]

    def waits(self) -> bool:
        """Whether any record has a moment to wait for."""
        return bool(
            self.read(
                "SELECT 1 FROM ecs_job WHERE wake_at IS NOT NULL"
                " UNION ALL SELECT 1 FROM ecs_node WHERE wake_at IS NOT NULL LIMIT 1"
            )
        )

    # -- nodes ---------------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        found = self.read("SELECT node_name, version, record FROM ecs_node WHERE node_name=?", name)
        if not found:
            raise NotFound(f"no node {name}")
        return self._node_in(found[0])

    def _node_in(self, row: Sequence[Any]) -> Node:
        """From the node's name, its version and its record."""
        name, version, record = row
        try:
            return self._codec.node(name, record)
        except BadRecord as exc:
            exc.version = version
            raise

    def node_of_instance(self, instance: str) -> Node | None:
        found = self.read(
            "SELECT node_name, record FROM ecs_node WHERE container_instance_id=?",
            instance.rpartition("/")[2],
        )
        return self._codec.node(*found[0]) if found else None

    def nodes(self) -> Nodes:
        """Asked for with every look, so what has not changed since is not read again."""
        found = self.read("SELECT node_name, version, record FROM ecs_node ORDER BY node_name")
        known = self._nodes

        def read(row: Sequence[Any]) -> Node:
            node = known.get(row[0])
            return node if node is not None and node.version == row[1] else self._node_in(row)

        nodes = Nodes(*each(read, found))
        self._nodes = {node.name: node for node in nodes}
        return nodes

    def add_node(self, node: Node) -> None:
        def act(conn: sqlite3.Connection) -> None:
            if conn.execute("SELECT 1 FROM ecs_node WHERE node_name=?", (node.name,)).fetchone() is None:
                self._put_node(conn, node)

        self.write(act)

    def commit_node(self, node: Node) -> None:
        def act(conn: sqlite3.Connection) -> None:
            _check_next(conn, node)
            self._put_node(conn, node)

        self.write(act)

    def _put_node(self, conn: sqlite3.Connection, node: Node) -> None:
        row = rows.node_row(node)
        conn.execute(
            "INSERT OR REPLACE INTO ecs_node VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                row["node_name"],
                row["container_instance_id"],
                row["container_instance_arn"],
                row["cluster_name"],
                row["node_status"],
                row["ip"],
                row["ibdev"],
                _stamp(node.created_at),
                _stamp(node.updated_at),
                node.job_id or None,
                _stamp(node.wake_at(self._lost_after)),
                node.version,
                self._codec.text(node),
            ),
        )

    def due_nodes(self, now: datetime) -> Sequence[str]:
        due = "SELECT node_name FROM ecs_node WHERE wake_at IS NOT NULL AND wake_at<=? ORDER BY wake_at"
        return [r[0] for r in self.read(due, _stamp(now))]

    def release_orphan(self, name: str, job_id: str, now: datetime) -> None:
        """In one transaction neither can come to be; only another tool can have left it."""

        def act(conn: sqlite3.Connection) -> None:
            found = conn.execute(
                "SELECT record FROM ecs_node WHERE node_name=? AND job_id=?", (name, job_id)
            ).fetchone()
            holder = conn.execute("SELECT record FROM ecs_job WHERE job_id=?", (job_id,)).fetchone()
            node = self._codec.node(name, found[0]) if found else None
            if node is not None:
                job = self._codec.job(job_id, holder[0]) if holder else None
                free = rows.freed_node(node, job, now)
                if free is not None:
                    self._put_node(conn, free)

        self.write(act)

    def tell_once(self, kind: str, name: str, why: str, tell: Callable[[], None]) -> bool:
        """Noted among the keys of what was done once and for all."""
        key = keys.bad_record(kind, name, why)
        if self.read("SELECT 1 FROM archived WHERE key=?", key):
            return False
        tell()
        self.write(lambda conn: conn.execute("INSERT OR IGNORE INTO archived VALUES (?)", (key,)))
        return True


def _check_next(conn: sqlite3.Connection, node: Node) -> None:
    """Before anything is written: a refusal takes nothing back."""
    found = conn.execute("SELECT version FROM ecs_node WHERE node_name=?", (node.name,)).fetchone()
    if found is None:
        raise NotFound(f"no node {node.name}")
    if found[0] != node.version - 1:
        raise VersionConflict(f"node {node.name} is at version {found[0]}, not {node.version - 1}")


def _stamp(at: datetime | None) -> str | None:
    """Text that sorts as time does."""
    return None if at is None else at.isoformat(timespec="microseconds")


def _line(row: Sequence[Any]) -> JobLine:
    try:
        return JobLine.read(*row)
    except (ValueError, TypeError) as exc:
        raise Unreadable("job", str(row[0]), str(exc)) from exc
