"""A store in memory with the same conditions as the real ones. Records are frozen: nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from threading import RLock

from ecs_gpu_recovery.core import rows
from ecs_gpu_recovery.core.errors import JobExists, NodesTaken, NotFound, Refused, VersionConflict
from ecs_gpu_recovery.core.model import Job, JobStatus, Node
from ecs_gpu_recovery.engine.ports import JobLine, Page

PAY_WITHIN = timedelta(minutes=1)
Row = dict[str, str]


class MemoryStore:
    """All rows are written in the commit, as in SQLite, or those of so many ranks that fit, as in DynamoDB."""

    def __init__(self, *, rows_fit: int | None = None, lost_after: timedelta = timedelta(minutes=10)) -> None:
        self._rows_fit = rows_fit
        self._lost_after = lost_after
        self._jobs: dict[str, Job] = {}
        self._nodes: dict[str, Node] = {}
        self._tasks: dict[str, tuple[int, Row]] = {}  #: rows, each with the version of the job that wrote it
        self._lock = RLock()

    # -- jobs ------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether a commit may leave rows to be written."""
        return self._rows_fit is not None

    def create(self, job: Job) -> None:
        with self._lock:
            if job.id in self._jobs:
                raise JobExists(f"job {job.id} exists already")
            known = {rank.node: self._nodes.get(rank.node) for rank in job.ranks}
            refused = {name: node.refusal if node else "no such node" for name, node in known.items()}
            if any(refused.values()):
                raise NodesTaken({name: why for name, why in refused.items() if why})
            self.claim(job)
            self._jobs[job.id] = job

    def claim(self, job: Job) -> None:
        for rank in job.ranks:
            self._nodes[rank.node] = rows.claimed_node(self._nodes[rank.node], job)

    def job(self, job_id: str) -> Job:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise NotFound(f"no job {job_id}") from None

    def last(self, job_id: str) -> Job | None:
        return None

    def commit(self, old: Job, new: Job) -> Job:
        with self._lock:
            held = self.job(new.id)
            if (old.version, new.version) != (held.version, held.version + 1):
                raise VersionConflict(f"job {new.id} is at version {held.version}, not {new.version - 1}")
            return self.put(old, new)

    def put(self, old: Job, new: Job) -> Job:
        if any(rows.forgets(old, new, index) for index in old.owed):
            self.pay(old)
        changes = rows.changes(old, new)
        if self._fits(old, changes):
            self._put_tasks(changes.tasks, new.version)
            for rank, lines in changes.nodes:
                node = self._nodes[rank.node]
                self._nodes[rank.node] = rows.held_node(node, new, lines) or node
        else:
            new = replace(new, owed=tuple(sorted({*old.owed, *changes.ranks})))
        self._jobs[new.id] = new
        return new

    def _fits(self, job: Job, changes: rows.Changes) -> bool:
        if self._rows_fit is None or not changes.ranks:
            return True
        ours = all(self._nodes[rank.node].job_id == job.id for rank, _ in changes.nodes)
        some = len(changes.ranks) <= self._rows_fit and changes.ranks.isdisjoint(job.owed)
        return ours and some and not changes.opens

    def settle(self, job: Job) -> Job:
        while job.owed:
            self.pay(job)
            job = self.paid(job)
        return job

    def pay(self, job: Job) -> None:
        """The rows as this record has them, past the fence."""
        with self._lock:
            for rank in [job.ranks[index] for index in job.owed]:
                row = rows.task_row(job, rank)
                self._put_tasks([row] if row is not None else [], job.version)
                for version, past in [
                    self._tasks.get(name.partition("/")[2], (0, {})) for name in rank.past_tasks
                ]:
                    if past.get("task_status") == "IN_PROGRESS" and version < job.version:
                        self._put_tasks([past | {"task_status": "TERMINATED"}], job.version)
                node = self._nodes[rank.node]
                self._nodes[rank.node] = rows.held_node(node, job) or node

    def paid(self, job: Job) -> Job:
        """Take note that they are written; the newest record, if that is another one by now."""
        with self._lock:
            newest = self.job(job.id)
            if newest.version == job.version:
                newest = self._jobs[job.id] = replace(newest, owed=())
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
            (j for j in self._jobs.values() if status in (None, j.status)),
            key=lambda j: (j.created_at, j.id),
            reverse=True,
        )
        names = [f"{job.created_at.isoformat()} {job.id}" for job in found]
        begin = names.index(after) + 1 if after in names else 0
        shown = found[begin : begin + limit]
        lines = tuple(
            JobLine(
                id=j.id,
                name=j.spec.name,
                status=j.status,
                attempt=j.attempt,
                nodes=len(j.ranks),
                created_at=j.created_at,
                updated_at=j.updated_at,
            )
            for j in shown
        )
        return Page(jobs=lines, next=names[begin + limit - 1] if begin + limit < len(found) else "")

    def due_jobs(self, now: datetime, limit: int = 1000) -> Sequence[str]:
        times = sorted((wake, j.id) for j in self._jobs.values() for wake in self._wakes(j) if wake <= now)
        return list(dict.fromkeys(job_id for _, job_id in times))[:limit]

    def _wakes(self, job: Job) -> list[datetime]:
        wake = job.wake_at(self._lost_after)
        return [*([job.updated_at + PAY_WITHIN] if job.owed else []), *([wake] if wake is not None else [])]

    def live_jobs(self) -> Sequence[str]:
        return sorted(j.id for j in self._jobs.values() if not j.status.final)

    # -- nodes -----------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        try:
            return self._nodes[name]
        except KeyError:
            raise NotFound(f"no node {name}") from None

    def node_of_instance(self, instance: str) -> Node | None:
        name = instance.rpartition("/")[2]
        return next((n for n in self._nodes.values() if name and n.instance.rpartition("/")[2] == name), None)

    def nodes(self) -> Sequence[Node]:
        return [self._nodes[name] for name in sorted(self._nodes)]

    def add_node(self, node: Node) -> None:
        self._nodes.setdefault(node.name, node)

    def commit_node(self, node: Node) -> None:
        with self._lock:
            held = self.node(node.name)
            if held.version != node.version - 1:
                raise VersionConflict(
                    f"node {node.name} is at version {held.version}, not {node.version - 1}"
                )
            self._nodes[node.name] = node

    def due_nodes(self, now: datetime) -> Sequence[str]:
        times = sorted(
            (wake, n.name)
            for n in self._nodes.values()
            if (wake := n.wake_at(self._lost_after)) is not None and wake <= now
        )
        return [name for _, name in times]

    def release_orphan(self, name: str, job_id: str, now: datetime) -> None:
        with self._lock:
            node = self.node(name)
            free = rows.freed_node(node, self._jobs.get(job_id), now) if node.job_id == job_id else None
            self._nodes[name] = free or node
