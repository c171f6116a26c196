"""The embedded store: SQLite in WAL mode with full durability. The same contract as the DynamoDB store.

Writers queue up; whoever finds no one writing takes the whole queue into one transaction and one fsync. A write whose
version condition fails changes nothing and does not disturb its neighbours.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ..core import codec, rows
from ..core.errors import JobExists, NodesTaken, NotFound, RecoveryError, Refused, Transient, VersionConflict
from ..core.model import Job, JobStatus, Node
from ..ports import JobLine, Page
from .schema import SCHEMA, SCHEMA_VERSION, TASK_COLUMNS

#: A claim this young may belong to a job that is being recorded right now.
ORPHAN_AGE = timedelta(minutes=10)
_CACHE = 2000
#: How long a writer waits for another process before it says that the database is busy.
_BUSY_S = 20.0


@dataclass(slots=True)
class _Write:
    act: Callable[[sqlite3.Connection], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None


class SqliteStore:
    """Safe for many threads, and for many processes on one machine."""

    writes_rows = True

    def __init__(self, path: Path, *, lost_after: timedelta = timedelta(minutes=10)) -> None:
        self.path = Path(path)
        self._lost_after = lost_after
        self._local = threading.local()
        self._queue: list[_Write] = []
        self._queue_lock = threading.Lock()
        self._writing = threading.Lock()
        self._cache: OrderedDict[str, Job] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._open: list[sqlite3.Connection] = []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _translated(self.path):
                self._writer = self._connect()
                self._prepare()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        conn = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
        self._open.append(conn)
        self._must_be_known(conn)  # before the first change: a newer release wants its file back as it was
        _into_wal(conn)
        conn.execute("PRAGMA synchronous=FULL")
        return conn

    def _must_be_known(self, conn: sqlite3.Connection) -> int:
        version = int(conn.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise Refused(
                f"{self.path} was written by a newer release (schema {version}, this one knows {SCHEMA_VERSION}):"
                " update, or use another state folder"
            )
        return version

    def _prepare(self) -> None:
        version = self._must_be_known(self._writer)
        if version < SCHEMA_VERSION:
            self._writer.execute("BEGIN IMMEDIATE")
            version = self._must_be_known(self._writer)
            for statement in SCHEMA if version < SCHEMA_VERSION else ():  # another process may have been faster
                self._writer.execute(statement)
            self._writer.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            self._writer.execute("COMMIT")

    def close(self) -> None:
        for conn in self._open:
            conn.close()
        self._open.clear()

    @property
    def _reader(self) -> sqlite3.Connection:
        conn: sqlite3.Connection | None = getattr(self._local, "conn", None)
        if conn is None:
            conn = self._local.conn = self._connect()
        return conn

    def read(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        with _translated(self.path):
            return self._reader.execute(sql, args).fetchall()

    # -- group commit ------------------------------------------------------------------------------------------

    def write(self, act: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run a write durably. It checks its conditions before it changes anything, so a refusal needs no undo."""
        mine = _Write(act)
        with self._queue_lock:
            self._queue.append(mine)
        while not mine.done.is_set():
            if self._writing.acquire(blocking=False):
                try:
                    self._write_queue()
                finally:
                    self._writing.release()
            else:
                mine.done.wait(0.05)
        if mine.error is not None:
            raise mine.error
        return mine.result

    def _write_queue(self) -> None:
        with self._queue_lock:
            batch, self._queue = self._queue, []
        if not batch:
            return
        try:
            with _translated(self.path):
                self._writer.execute("BEGIN IMMEDIATE")
                for write in batch:
                    try:
                        write.result = write.act(self._writer)
                    except RecoveryError as exc:
                        write.error = exc
                self._writer.execute("COMMIT")
        except BaseException as exc:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            for write in batch:
                write.error = write.error or exc
        finally:
            for write in batch:
                write.done.set()

    # -- jobs --------------------------------------------------------------------------------------------------

    def create(self, job: Job) -> None:
        def act(conn: sqlite3.Connection) -> None:
            if conn.execute("SELECT 1 FROM ecs_job WHERE job_id=?", (job.id,)).fetchone():
                raise JobExists(f"job {job.id} exists already")
            nodes, refused = [], {}
            for rank in job.ranks:
                found = conn.execute("SELECT record FROM ecs_node WHERE node_name=?", (rank.node,)).fetchone()
                node = codec.load_node(json.loads(found[0])) if found else None
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
        job = codec.load_job(json.loads(found[0][0]))
        self._remember(job)
        return job

    def _remember(self, job: Job) -> None:
        with self._cache_lock:
            self._cache[job.id] = job
            self._cache.move_to_end(job.id)
            while len(self._cache) > _CACHE:
                self._cache.popitem(last=False)

    def commit(self, job: Job) -> None:
        def act(conn: sqlite3.Connection) -> None:
            found = conn.execute("SELECT version FROM ecs_job WHERE job_id=?", (job.id,)).fetchone()
            if found is None:
                raise NotFound(f"no job {job.id}")
            if found[0] != job.version - 1:
                raise VersionConflict(f"job {job.id} is at version {found[0]}, not {job.version - 1}")
            self._put_job(conn, job)
            self._put_rows(conn, job, before)

        before = self._cache.get(job.id)
        if before is not None and before.version != job.version - 1:
            before = None
        self.write(act)
        self._remember(job)

    def write_rows(self, job: Job, announce: Callable[[Sequence[Node]], None] | None = None, since: Job | None = None) -> None:
        """`commit` has written them already; this is for a release that was missed."""


        def act(conn: sqlite3.Connection) -> None:
            found = conn.execute("SELECT version FROM ecs_job WHERE job_id=?", (job.id,)).fetchone()
            if found is not None and found[0] == job.version:  # a newer record has brought its own rows
                self._put_rows(conn, job)

        self.write(act)

    def _put_job(self, conn: sqlite3.Connection, job: Job) -> None:
        conn.execute(
            "INSERT INTO ecs_job VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT(job_id) DO UPDATE SET job_status=excluded.job_status,"
            " retry=excluded.retry, updated_at=excluded.updated_at, submitted_ecs_task_ids=excluded.submitted_ecs_task_ids,"
            " live=excluded.live, wake_at=excluded.wake_at, version=excluded.version, record=excluded.record",
            (job.id, _stamp(job.created_at), job.cluster, str(len(job.ranks)), json.dumps([r.node for r in job.ranks]),
             json.dumps([r.instance.rpartition("/")[2] for r in job.ranks]), json.dumps([r.task_id for r in job.ranks if r.task_id]), _stamp(job.updated_at),
             _stamp(job.created_at), str(job.attempt), job.status.value, job.spec.name, None if job.status.final else 1,
             _stamp(job.wake_at(self._lost_after)), job.version, json.dumps(codec.dump(job), separators=(",", ":"))),
        )  # fmt: skip

    def _put_rows(self, conn: sqlite3.Connection, job: Job, before: Job | None = None) -> None:
        """The rows of every rank that differs from the version before, or of all where that is not at hand."""
        for rank in job.ranks:
            if before is not None and before.ranks[rank.index] == rank and not job.status.final:
                continue
            row = rows.task_row(job, rank)
            if row is not None:
                row["created_at"] = row["updated_at"]
                conn.execute(
                    "INSERT INTO ecs_task VALUES (" + ",".join("?" * len(TASK_COLUMNS)) + ") ON CONFLICT(ecs_task_id) DO UPDATE SET"
                    " task_status=excluded.task_status, exit_code=excluded.exit_code, exit_reason=excluded.exit_reason,"
                    " updated_at=excluded.updated_at WHERE task_status IS NOT excluded.task_status",
                    tuple(row.get(name) for name in TASK_COLUMNS),
                )
            found = conn.execute("SELECT record FROM ecs_node WHERE node_name=? AND job_id=? AND node_status IS NOT ?",
                                 (rank.node, job.id, None if job.status.final else rank.node_status.value)).fetchone()  # fmt: skip
            node = rows.held_node(codec.load_node(json.loads(found[0])), job) if found else None
            if node is not None:
                self._put_node(conn, node)

    def job_of_task(self, task_id: str) -> str | None:
        found = self.read("SELECT job_id FROM ecs_task WHERE ecs_task_id=?", task_id)
        return str(found[0][0]) if found else None

    def jobs(self, *, status: JobStatus | None = None, limit: int = 50, after: str = "") -> Page:
        created, _, last = after.partition(" ")
        where, args = ["1=1"], []
        if status is not None:
            where.append("job_status=?")
            args.append(status.value)
        if after:
            where.append("(created_at, job_id) < (?, ?)")
            args += [created, last]
        found = self.read(f"SELECT job_id, job_name, job_status, retry, num_nodes, created_at, updated_at FROM ecs_job WHERE {' AND '.join(where)}"  # noqa: S608
                          " ORDER BY created_at DESC, job_id DESC LIMIT ?", *args, limit + 1)  # fmt: skip
        lines = tuple(
            JobLine(id=r[0], name=r[1], status=JobStatus(r[2]), attempt=int(r[3]), nodes=int(r[4]),
                    created_at=datetime.fromisoformat(r[5]), updated_at=datetime.fromisoformat(r[6]))
            for r in found[:limit]
        )  # fmt: skip
        more = len(found) > limit
        return Page(jobs=lines, next=f"{found[limit - 1][5]} {found[limit - 1][0]}" if more else "")

    def due_jobs(self, now: datetime, limit: int = 1000) -> Sequence[str]:
        return [r[0] for r in self.read("SELECT job_id FROM ecs_job WHERE wake_at IS NOT NULL AND wake_at<=? ORDER BY wake_at LIMIT ?", _stamp(now), limit)]

    def live_jobs(self) -> Sequence[str]:
        return [r[0] for r in self.read("SELECT job_id FROM ecs_job WHERE live=1 ORDER BY job_id")]

    # -- nodes -------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        found = self.read("SELECT record FROM ecs_node WHERE node_name=?", name)
        if not found:
            raise NotFound(f"no node {name}")
        return codec.load_node(json.loads(found[0][0]))

    def node_of_instance(self, instance: str) -> Node | None:
        found = self.read("SELECT record FROM ecs_node WHERE container_instance_id=?", instance.rpartition("/")[2])
        return codec.load_node(json.loads(found[0][0])) if found else None

    def nodes(self) -> Sequence[Node]:
        return [codec.load_node(json.loads(r[0])) for r in self.read("SELECT record FROM ecs_node ORDER BY node_name")]

    def add_node(self, node: Node) -> None:
        def act(conn: sqlite3.Connection) -> None:
            if conn.execute("SELECT 1 FROM ecs_node WHERE node_name=?", (node.name,)).fetchone() is None:
                self._put_node(conn, node)

        self.write(act)

    def commit_node(self, node: Node) -> None:
        def act(conn: sqlite3.Connection) -> None:
            found = conn.execute("SELECT version FROM ecs_node WHERE node_name=?", (node.name,)).fetchone()
            if found is None:
                raise NotFound(f"no node {node.name}")
            if found[0] != node.version - 1:
                raise VersionConflict(f"node {node.name} is at version {found[0]}, not {node.version - 1}")
            self._put_node(conn, node)

        self.write(act)

    def _put_node(self, conn: sqlite3.Connection, node: Node) -> None:
        row = rows.node_row(node)
        conn.execute(
            "INSERT OR REPLACE INTO ecs_node VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (row["node_name"], row["container_instance_id"], row["container_instance_arn"], row["cluster_name"], row["node_status"],
             row["ip"], row["ibdev"], _stamp(node.created_at), _stamp(node.updated_at), node.job_id or None,
             _stamp(node.wake_at(self._lost_after)), node.version, json.dumps(codec.dump(node), separators=(",", ":"))),
        )  # fmt: skip

    def due_nodes(self, now: datetime) -> Sequence[str]:
        return [r[0] for r in self.read("SELECT node_name FROM ecs_node WHERE wake_at IS NOT NULL AND wake_at<=? ORDER BY wake_at", _stamp(now))]

    def release_orphan(self, name: str, job_id: str, now: datetime) -> None:
        """In one transaction a claim without its job can't come to be; only another tool can have left it."""

        def act(conn: sqlite3.Connection) -> None:
            found = conn.execute("SELECT record FROM ecs_node WHERE node_name=? AND job_id=?", (name, job_id)).fetchone()
            node = codec.load_node(json.loads(found[0])) if found else None
            if node is not None and now - node.updated_at >= ORPHAN_AGE:
                self._put_node(conn, rows.orphaned_node(node, now))

        self.write(act)


def _stamp(at: datetime | None) -> str | None:
    """Text that sorts as time does."""
    return None if at is None else at.isoformat(timespec="microseconds")


def _into_wal(conn: sqlite3.Connection) -> None:
    """Two processes that make the same database at once: here SQLite refuses without its usual patience."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            conn.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """SQLite's errors in words that say what to do."""
    try:
        yield
    except sqlite3.OperationalError as exc:
        text = str(exc)
        if "full" in text:
            raise Transient(f"the disk of {path.parent} is full: nothing was changed; free some space and it goes on by itself") from exc
        if "locked" in text or "busy" in text:
            raise Transient(f"{path} is locked by another process for too long") from exc
        if "unable to open" in text or "readonly" in text:
            raise Refused(f"{path} cannot be opened for writing ({text}): check the folder's permissions") from exc
        if "disk I/O" in text:
            raise Transient(f"the disk of {path.parent} failed: {text}") from exc
        raise
    except sqlite3.DatabaseError as exc:
        if "malformed" in str(exc) or "not a database" in str(exc):
            raise Refused(f"{path} is damaged ({exc}): move it away and start with an empty state, or restore a copy") from exc
        raise
