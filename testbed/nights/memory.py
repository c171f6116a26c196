"""A store in memory with the same conditions as the real ones. Records are frozen: nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from ecs_gpu_recovery.core import rows
from ecs_gpu_recovery.core.errors import JobExists, NodesTaken, NotFound, VersionConflict
from ecs_gpu_recovery.core.model import Job, JobStatus, Node
from ecs_gpu_recovery.engine.ports import JobLine, Page

ORPHAN_AGE = timedelta(minutes=10)


class MemoryStore:
    """Node rows are written in the commit, as in SQLite, or by an order of their own."""

    def __init__(self, *, rows_in_commit: bool = True, lost_after: timedelta = timedelta(minutes=10)) -> None:
        self.writes_rows = rows_in_commit
        self._lost_after = lost_after
        self._jobs: dict[str, Job] = {}
        self._nodes: dict[str, Node] = {}
        self._task_jobs: dict[str, str] = {}

    # -- jobs ------------------------------------------------------------------------------------------

    def create(self, job: Job) -> None:
        if job.id in self._jobs:
            raise JobExists(f"job {job.id} exists already")
        refused = {
            rank.node: self._nodes[rank.node].refusal for rank in job.ranks if self._nodes[rank.node].refusal
        }
        if refused:
            raise NodesTaken(refused)
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

    def commit(self, job: Job) -> None:
        held = self.job(job.id)
        if held.version != job.version - 1:
            raise VersionConflict(f"job {job.id} is at version {held.version}, not {job.version - 1}")
        self.put(job)

    def commit_with_rows(self, job: Job, ranks: Sequence[int]) -> bool:
        """All or nothing; a node that is not this job's any more has to be looked at first."""
        held = self.job(job.id)
        if held.version != job.version - 1:
            raise VersionConflict(f"job {job.id} is at version {held.version}, not {job.version - 1}")
        if any(self._nodes[job.ranks[index].node].job_id != job.id for index in ranks):
            return False
        self._jobs[job.id] = job
        self._put_rows(job, ranks)
        return True

    def put(self, job: Job) -> None:
        self._jobs[job.id] = job
        if self.writes_rows:
            self._put_rows(job)

    def write_rows(
        self, job: Job, announce: Callable[[Sequence[Node]], None] | None = None, ranks: Sequence[int] = ()
    ) -> None:
        """From the newest record; with `ranks`, only theirs, as this one says, past the fence."""
        newest = self._jobs.get(job.id)
        if newest is not None:
            self._put_rows(job if ranks else newest, ranks)

    def _put_rows(self, job: Job, ranks: Sequence[int] = ()) -> None:
        for rank in [job.ranks[index] for index in ranks] or job.ranks:
            if rank.task_id:
                self._task_jobs[rank.task_id] = job.id
            node = self._nodes[rank.node]
            shown = (node.status, node.instance) == (rank.node_status, rank.instance)
            if node.job_id == job.id and (job.status.final or not shown):
                self._nodes[rank.node] = rows.held_node(node, job) or node

    def job_of_task(self, task_id: str) -> str | None:
        return self._task_jobs.get(task_id)

    def jobs(self, *, status: JobStatus | None = None, limit: int = 50, after: str = "") -> Page:
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
        times = sorted(
            (wake, j.id)
            for j in self._jobs.values()
            if (wake := j.wake_at(self._lost_after)) is not None and wake <= now
        )
        return [job_id for _, job_id in times[:limit]]

    def live_jobs(self) -> Sequence[str]:
        return sorted(j.id for j in self._jobs.values() if not j.status.final)

    # -- nodes -----------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        try:
            return self._nodes[name]
        except KeyError:
            raise NotFound(f"no node {name}") from None

    def node_of_instance(self, instance: str) -> Node | None:
        return next((n for n in self._nodes.values() if n.instance == instance), None)

    def nodes(self) -> Sequence[Node]:
        return [self._nodes[name] for name in sorted(self._nodes)]

    def add_node(self, node: Node) -> None:
        self._nodes.setdefault(node.name, node)

    def commit_node(self, node: Node) -> None:
        held = self.node(node.name)
        if held.version != node.version - 1:
            raise VersionConflict(f"node {node.name} is at version {held.version}, not {node.version - 1}")
        self._nodes[node.name] = node

    def due_nodes(self, now: datetime) -> Sequence[str]:
        return sorted(
            n.name
            for n in self._nodes.values()
            if (wake := n.wake_at(self._lost_after)) is not None and wake <= now
        )

    def release_orphan(self, name: str, job_id: str, now: datetime) -> None:
        node = self.node(name)
        if node.job_id == job_id and job_id not in self._jobs and now - node.updated_at >= ORPHAN_AGE:
            self._nodes[name] = rows.orphaned_node(node, now)
