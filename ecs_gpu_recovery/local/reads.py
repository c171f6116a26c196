"""What people, pages and metrics ask of the embedded store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BadRecord, NotFound
from ..core.model import Entry, Job, JobStatus
from ..engine.ports import each
from ..engine.reads import BEGINNING, NodeChanges, Notice, TaskLine
from ..report import archived
from .store import SqliteStore

#: When more nodes than this have moved, one look at all of them is cheaper.
_FEW = 20


class SqliteReads:
    """Holds no lock, and keeps nothing."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def some_jobs(self, job_ids: Iterable[str]) -> Sequence[Job]:
        found = []
        for job_id in job_ids:
            try:
                found.append(self._store.job(job_id))
            except (NotFound, BadRecord):
                continue  # gone since the list was made, or bad: its own page says so
        return found

    def job_counts(self, statuses: Iterable[JobStatus]) -> Mapping[JobStatus, int]:
        count = "SELECT count(*) FROM ecs_job WHERE job_status=?"
        return {status: int(self._store.read(count, status.value)[0][0]) for status in statuses}

    def job_restarts(self) -> int:
        """Of all jobs together, since the beginning."""
        ((count,),) = self._store.read("SELECT coalesce(sum(CAST(retry AS INTEGER)), 0) FROM ecs_job")
        return int(count)

    def changed_nodes(self, known: Mapping[str, int]) -> NodeChanges:
        """All versions are told in a millisecond; only records that moved are opened."""
        versions = dict(self._store.read("SELECT node_name, version FROM ecs_node"))
        moved = [name for name, version in versions.items() if known.get(name) != version]
        if len(moved) > _FEW:
            nodes = self._store.nodes()
            changed = [node for node in nodes if known.get(node.name) != node.version]
            bad = [exc for exc in nodes.bad if known.get(exc.name) != exc.version]
        else:
            changed, bad = each(self._store.node, moved)
        gone = frozenset(known.keys() - versions.keys())
        return NodeChanges(changed=tuple(changed), bad=tuple(bad), gone=gone)

    def tasks(self, job: Job) -> Sequence[TaskLine]:
        found = self._store.read(
            "SELECT node_index_in_job, retry, node_name, ecs_task_id FROM ecs_task WHERE job_id=?"
            " ORDER BY created_at, CAST(node_index_in_job AS INTEGER), ecs_task_id",
            job.id,
        )
        return [
            TaskLine(rank=int(rank), attempt=int(attempt), node=node, task_id=task_id)
            for rank, attempt, node, task_id in found
        ]

    def earlier_entries(self, record: str) -> Sequence[Entry]:
        found = self._store.read("SELECT line FROM timeline WHERE record=? ORDER BY seq", record)
        return archived(line for (line,) in found)

    def notices(self, limit: int, after: str = "") -> Sequence[Notice]:
        at, _, key = (after or BEGINNING).partition(" ")
        rows = self._store.read(
            "SELECT at, body FROM notice WHERE (at, key) < (?, ?) ORDER BY at DESC, key DESC LIMIT ?",
            at,
            key,
            limit,
        )
        return [{"at": when, **json.loads(body)} for when, body in rows]

    def notice_count(self) -> int:
        ((count,),) = self._store.read("SELECT count(*) FROM notice")
        return int(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """How a database file looks from outside."""

    version: int
    integrity: str  #: `ok`, or what SQLite has found
    jobs: int


def live_jobs(path: Path) -> int:
    """How many jobs of a file have not ended, without changing it. Raises `sqlite3.Error`."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as conn:
        (count,) = conn.execute("SELECT COUNT(*) FROM ecs_job WHERE live=1").fetchone()
    return int(count)


def examine_file(path: Path) -> FileState:
    """Look at a file without changing it, also one of another release. Raises `sqlite3.Error`."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as conn:
        (version,) = conn.execute("PRAGMA user_version").fetchone()
        (integrity,) = conn.execute("PRAGMA integrity_check(1)").fetchone()
        (jobs,) = conn.execute("SELECT COUNT(*) FROM ecs_job").fetchone()
    return FileState(version=version, integrity=integrity, jobs=jobs)
