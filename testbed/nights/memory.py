"""A store in memory with the same conditions as the real ones.

Records are frozen, so nothing is copied between processes of one release. Those of another release get what can be
written down and read back, as from any store.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import RLock
from typing import Generic, TypeVar

from ecs_gpu_recovery.core import rows
from ecs_gpu_recovery.core.codec import CODEC, Codec
from ecs_gpu_recovery.core.errors import (
    BadRecord,
    JobExists,
    NodesTaken,
    NotFound,
    Refused,
    Unreadable,
    VersionConflict,
)
from ecs_gpu_recovery.core.guard import FleetGuard
from ecs_gpu_recovery.core.model import Job, JobStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.ports import JobLine, Nodes, Page, Store, each
from ecs_gpu_recovery.local.store import SqliteStore

PAY_WITHIN = timedelta(minutes=1)
Row = dict[str, str]
R = TypeVar("R", Job, Node)


@dataclass(slots=True)
class Kept(Generic[R]):
    """A record as its writer left it, and beside it what lists and conditions read without opening it."""

    record: R
    writer: Codec
    wakes: list[datetime]
    damage: str | None = None  #: what stands in its place

    def restore(self) -> None:
        self.damage = None

    @property
    def text(self) -> str:
        return self.writer.text(self.record) if self.damage is None else self.damage


class MemoryStore:
    """All rows are written in the commit, as in SQLite, or those of so many ranks that fit, as in DynamoDB."""

    def __init__(
        self,
        *,
        rows_fit: int | None = None,
        lost_after: timedelta = timedelta(minutes=10),
        codec: Codec = CODEC,
    ) -> None:
        self._rows_fit = rows_fit
        self._lost_after, self._codec = lost_after, codec
        self._jobs: dict[str, Kept[Job]] = {}
        self._nodes: dict[str, Kept[Node]] = {}
        self._tasks: dict[str, tuple[int, Row]] = {}  #: rows, each with the version of the job that wrote it
        self._told: set[tuple[str, str, str]] = set()
        self._lock = RLock()

    def seen_by(self, codec: Codec) -> MemoryStore:
        """The same records, as another release has them."""
        other = copy.copy(self)
        other._codec = codec
        return other

    def kept(self, kind: str, name: str) -> Kept[Job] | Kept[Node]:
        """Behind the store: what is really there."""
        return self._jobs[name] if kind == "job" else self._nodes[name]

    def _keep_job(self, job: Job) -> Job:
        """As its own release has it, whoever made it."""
        job = job if self._codec is CODEC else self._codec.job(job.id, self._codec.text(job))
        wake = job.wake_at(self._lost_after)
        wakes = [*([job.updated_at + PAY_WITHIN] if job.owed else []), *([wake] if wake is not None else [])]
        self._jobs[job.id] = Kept(job, self._codec, wakes)
        return job

    def _keep_node(self, node: Node) -> None:
        node = node if self._codec is CODEC else self._codec.node(node.name, self._codec.text(node))
        wake = node.wake_at(self._lost_after)
        self._nodes[node.name] = Kept(node, self._codec, [wake] if wake is not None else [])

    # -- jobs ------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether a commit may leave rows to be written."""
        return self._rows_fit is not None

    def create(self, job: Job) -> None:
        with self._lock:
            if job.id in self._jobs:
                raise JobExists(f"job {job.id} exists already")
            refused = {rank.node: self._refusal(rank.node) for rank in job.ranks}
            if any(refused.values()):
                raise NodesTaken({name: why for name, why in refused.items() if why})
            self.claim(job)
            self._keep_job(job)

    def _refusal(self, name: str) -> str:
        try:
            return self.node(name).refusal if name in self._nodes else "no such node"
        except BadRecord as exc:
            return str(exc)

    def claim(self, job: Job) -> None:
        for rank in job.ranks:
            self._keep_node(rows.claimed_node(self.node(rank.node), job))

    def job(self, job_id: str) -> Job:
        kept = self._jobs.get(job_id)
        if kept is None:
            raise NotFound(f"no job {job_id}")
        if kept.damage is None and kept.writer is self._codec:
            return kept.record
        return self._codec.job(job_id, kept.text)

    def last(self, job_id: str) -> Job | None:
        return None

    def commit(self, old: Job, new: Job, handed: Sequence[Node] = ()) -> Job:
        with self._lock:
            held = self.job(new.id)
            if (old.version, new.version) != (held.version, held.version + 1):
                raise VersionConflict(f"job {new.id} is at version {held.version}, not {new.version - 1}")
            if any(self.node(node.name).version != node.version - 1 for node in handed):
                raise VersionConflict(f"a node of job {new.id} was moved by somebody else")
            return self.put(old, new, handed)

    def put(self, old: Job, new: Job, handed: Sequence[Node] = ()) -> Job:
        for node in handed:
            self._keep_node(node)
        if any(rows.forgets(old, new, index) for index, _ in old.owed):
            self.pay(old)
        changes = rows.changes(old, new)
        if self._fits(old, changes):
            nodes = [(node, lines) for rank, lines in changes.nodes for node in self._readable([rank.node])]
            self._put_tasks(changes.tasks, new.version)
            for node, lines in nodes:
                self._keep_node(rows.held_node(node, new, lines) or node)
        else:
            new = replace(new, owed=rows.owing(old, new, changes))
        return self._keep_job(new)

    def _readable(self, names: Iterable[str]) -> list[Node]:
        """A damaged node is left out, and its job goes on. A newer release's is that release's to write."""
        good, bad = each(self.node, names)
        for exc in bad:
            if not isinstance(exc, Unreadable):
                raise exc
        return good

    def _fits(self, job: Job, changes: rows.Changes) -> bool:
        if self._rows_fit is None or not changes.ranks:
            return True
        nodes = [self._nodes[rank.node] for rank, _ in changes.nodes]
        ours = all(kept.record.job_id == job.id for kept in nodes)
        newer = any(kept.writer.format > self._codec.format for kept in nodes)
        some = len(changes.ranks) <= self._rows_fit and changes.ranks.isdisjoint(dict(job.owed))
        return ours and some and not newer and not changes.opens

    def settle(self, job: Job, old: Job | None = None, *, soon: bool = False) -> Job:
        while job.owed:
            self.pay(job)
            job = replace(job, owed=()) if soon else self.paid(job)
        return job

    def pay(self, job: Job) -> None:
        """The rows as this record has them, past the fence."""
        with self._lock:
            ranks = [job.ranks[index] for index, _ in job.owed]
            nodes = self._readable(rank.node for rank in ranks)
            for rank in ranks:
                row = rows.task_row(job, rank)
                self._put_tasks([row] if row is not None else [], job.version)
                for version, past in [
                    self._tasks.get(name.partition("/")[2], (0, {})) for name in rank.past_tasks
                ]:
                    if past.get("task_status") == "IN_PROGRESS" and version < job.version:
                        self._put_tasks([past | {"task_status": "TERMINATED"}], job.version)
            for node in nodes:
                self._keep_node(rows.held_node(node, job) or node)

    def paid(self, job: Job) -> Job:
        """Take note that they are written; the newest record, if that is another one by now."""
        with self._lock:
            newest = self.job(job.id)
            if newest.version == job.version:
                newest = self._keep_job(replace(newest, owed=()))
            return newest

    def _put_tasks(self, some: Iterable[Row], version: int) -> None:
        for row in some:
            before, known = self._tasks.get(row["ecs_task_id"], (-1, {}))
            if before < version:
                first = known.get("created_at", row["updated_at"])
                self._tasks[row["ecs_task_id"]] = (version, row | {"created_at": first})

    def task_row(self, task_id: str) -> Row:
        return self._tasks.get(task_id, (0, {}))[1]

    def job_of_task(self, task_id: str) -> str | None:
        return self.task_row(task_id).get("job_id")

    def jobs(self, *, status: JobStatus | None = None, limit: int = 50, after: str = "") -> Page:
        if after and len(after.split(" ")) != 2:
            raise Refused(f"{after!r} is not a place in a list of jobs")
        found = sorted(
            (k.record for k in self._jobs.values() if status in (None, k.record.status)),
            key=lambda j: (j.created_at, j.id),
            reverse=True,
        )
        names = [f"{job.created_at.isoformat()} {job.id}" for job in found]
        begin = names.index(after) + 1 if after in names else 0
        shown = found[begin : begin + limit]
        lines = tuple(map(JobLine.of, shown))
        return Page(jobs=lines, next=names[begin + limit - 1] if begin + limit < len(found) else "")

    def due_jobs(self, now: datetime, limit: int = 1000) -> Sequence[str]:
        return _due(self._jobs, now)[:limit]

    def live_jobs(self) -> Sequence[str]:
        return sorted(job_id for job_id, kept in self._jobs.items() if not kept.record.status.final)

    # -- nodes -----------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        kept = self._nodes.get(name)
        if kept is None:
            raise NotFound(f"no node {name}")
        if kept.damage is None and kept.writer is self._codec:
            return kept.record
        try:
            return self._codec.node(name, kept.text)
        except BadRecord as exc:
            exc.version = kept.record.version
            raise

    def node_of_instance(self, instance: str) -> Node | None:
        wanted = instance.rpartition("/")[2]
        some = (
            name for name, kept in self._nodes.items() if kept.record.instance.rpartition("/")[2] == wanted
        )
        found = next(some, None) if wanted else None
        return None if found is None else self.node(found)

    def nodes(self) -> Nodes:
        return Nodes(*each(self.node, sorted(self._nodes)))

    def add_node(self, node: Node) -> None:
        if node.name not in self._nodes:
            self._keep_node(node)

    def commit_node(self, node: Node) -> None:
        with self._lock:
            held = self.node(node.name)
            if held.version != node.version - 1:
                raise VersionConflict(
                    f"node {node.name} is at version {held.version}, not {node.version - 1}"
                )
            self._keep_node(node)

    def due_nodes(self, now: datetime) -> Sequence[str]:
        return _due(self._nodes, now)

    def release_orphan(self, name: str, job_id: str, now: datetime) -> None:
        with self._lock:
            node = self.node(name)
            job = self.job(job_id) if job_id in self._jobs else None
            free = rows.freed_node(node, job, now) if node.job_id == job_id else None
            if free is not None:
                self._keep_node(free)

    def tell_once(self, kind: str, name: str, why: str, tell: Callable[[], None]) -> bool:
        if (kind, name, why) in self._told:
            return False
        tell()
        self._told.add((kind, name, why))
        return True


class MemoryGuard:
    """The record of the guard, with the same condition."""

    def __init__(self, cluster: str = "c", codec: Codec = CODEC) -> None:
        self._codec, self._lock, self.cluster = codec, RLock(), cluster
        self._record = FleetGuard(cluster=cluster)
        self.damage: str | None = None  #: what stands in its place

    def guard(self) -> FleetGuard:
        if self.damage is not None:
            return self._codec.guard(self._record.cluster, self.damage)
        return self._record

    def commit_guard(self, guard: FleetGuard) -> None:
        with self._lock:
            held = self.guard()
            if held.version != guard.version - 1:
                raise VersionConflict(f"the guard is at version {held.version}", held)
            self._record = self._codec.guard(guard.cluster, self._codec.text(guard))


def written(store: Store, kind: str, name: str) -> str:
    """A record as text, behind the store."""
    if isinstance(store, MemoryStore):
        return store.kept(kind, name).text
    assert isinstance(store, SqliteStore)
    table, key = ("ecs_job", "job_id") if kind == "job" else ("ecs_node", "node_name")
    return str(store.read(f"SELECT record FROM {table} WHERE {key}=?", name)[0][0])  # noqa: S608 (two names)


def _due(kept: dict[str, Kept[R]], now: datetime) -> list[str]:
    times = sorted((wake, name) for name, one in kept.items() for wake in one.wakes if wake <= now)
    return list(dict.fromkeys(name for _, name in times))
