"""A store that dies, stalls and loses answers around a real one. The judge sees every commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING

from ecs_gpu_recovery.core.effects import Archive, Notify
from ecs_gpu_recovery.core.errors import Transient, VersionConflict
from ecs_gpu_recovery.core.guard import FleetGuard
from ecs_gpu_recovery.core.model import Job, JobStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.ports import GuardStore, Nodes, Page, Store

from ..releases import marked_job, marked_node
from .memory import MemoryStore, written

if TYPE_CHECKING:
    from .night import Night


class HostileStore:
    """Passes everything on; between two steps the night may have its way."""

    def __init__(self, store: Store, night: Night) -> None:
        self._store, self._night = store, night

    def _written(self, kind: str, name: str) -> None:
        """What is really there, whoever wrote it."""
        if self._night.weather.mixed:
            self._night.judge.kept(kind, name, written(self._store, kind, name))

    def create(self, job: Job) -> None:
        self._night.before("create", job.id)
        if isinstance(self._store, MemoryStore) and self._store.owes and self._night.dies():
            if all(node.claimable for node in map(self._store.node, (rank.node for rank in job.ranks))):
                self._store.claim(job)  # claims are made first; the record is not there yet
            self._night.die("create", job.id)
        self._store.create(job)
        self._night.judge.committed(None, job)
        self._night.after("create", job.id)

    def job(self, job_id: str) -> Job:
        self._night.before("read", job_id)
        return self._store.job(job_id)

    def last(self, job_id: str) -> Job | None:
        return self._store.last(job_id)

    def commit(self, old: Job, new: Job, handed: Sequence[Node] = ()) -> Job:
        """Where a hand-over does not fit into one write, its nodes are written first, and the job may not follow."""
        self._night.before("commit", new.id)
        store, handed = self._store, [marked_node(node) for node in handed]
        given = [node for node in handed if node.job_id == new.id and node.own]
        if given and isinstance(store, MemoryStore) and store.owes and self._night.dies():
            with suppress(VersionConflict):
                store.commit_node(given[0])
                self._night.judge.committed_node(given[0])
            self._night.die("hand over", new.id)
        newest = store.job(new.id)
        new = store.commit(old, marked_job(new), handed)
        self._night.judge.committed(newest, new)
        for node in handed:
            self._night.judge.committed_node(node)
            self._written("node", node.name)
        self._written("job", new.id)
        self._night.after("commit", new.id)
        return new

    def settle(self, job: Job, old: Job | None = None, *, soon: bool = False) -> Job:
        """As DynamoDB does it: the rows, and then the note that they are written, or none where a commit follows."""
        while job.owed and isinstance(self._store, MemoryStore):
            self._night.before("rows", job.id)
            self._store.pay(job)
            self._night.after("rows", job.id)
            if soon:
                return replace(job, owed=())
            self._night.before("paid", job.id)
            job = self._store.paid(job)
        return job

    def job_of_task(self, task_id: str) -> str | None:
        return self._store.job_of_task(task_id)

    def jobs(self, *, status: JobStatus | None = None, limit: int = 50, after: str = "") -> Page:
        return self._store.jobs(status=status, limit=limit, after=after)

    def due_jobs(self, now: datetime, limit: int = 1000) -> Sequence[str]:
        return self._store.due_jobs(now, limit)

    def live_jobs(self) -> Sequence[str]:
        return self._store.live_jobs()

    def node(self, name: str) -> Node:
        return self._store.node(name)

    def node_of_instance(self, instance: str) -> Node | None:
        return self._store.node_of_instance(instance)

    def nodes(self) -> Nodes:
        return self._store.nodes()

    def add_node(self, node: Node) -> None:
        self._store.add_node(node)

    def commit_node(self, node: Node) -> None:
        self._night.before("commit node", node.name)
        self._store.commit_node(marked_node(node))
        self._night.judge.committed_node(node)
        self._written("node", node.name)
        self._night.after("commit node", node.name)

    def due_nodes(self, now: datetime) -> Sequence[str]:
        return self._store.due_nodes(now)

    def release_orphan(self, name: str, job_id: str, now: datetime) -> None:
        self._store.release_orphan(name, job_id, now)

    def tell_once(self, kind: str, name: str, why: str, tell: Callable[[], None]) -> bool:
        return self._store.tell_once(kind, name, why, tell)


class HostileGuard:
    """The same for the record of the guard. It has chances of its own, so that older nights stay as they were."""

    def __init__(self, store: GuardStore, night: Night) -> None:
        self._store, self._night, self.cluster = store, night, store.cluster
        self._chance = Random(f"{night.seed}/permits")  # noqa: S311

    def guard(self) -> FleetGuard:
        self._before("read")
        return self._store.guard()

    def commit_guard(self, guard: FleetGuard) -> None:
        self._before("commit")
        old = self._store.guard()
        self._store.commit_guard(guard)
        self._night.judge.permits.guarded(old, guard)
        self._meets("after", "commit", self._night.weather.unanswered)

    def _before(self, step: str) -> None:
        night, w = self._night, self._night.weather
        self._meets("before", step, w.transient)
        if night.world.troubled and w.ordered and self._chance.random() < w.stall:
            night.stall(step, "guard", self._chance.uniform(0, w.stall_s))

    def _meets(self, when: str, step: str, no_answer: float) -> None:
        night = self._night
        if not night.world.troubled:
            return
        if self._chance.random() < night.weather.crash:
            night.die(f"{when} {step}", "guard")
        if self._chance.random() < no_answer:
            night.judge.mishaps += 1
            raise Transient(f"{step} the guard: no answer")


class Inbox:
    """People's messages, as they arrive."""

    def __init__(self, night: Night) -> None:
        self._night = night
        self.told: Counter[str] = Counter()

    def notify(self, message: Notify) -> None:
        self._night.before("notify", message.key)
        self.told[message.key] += 1
        self._night.world.note("told", message.key)
        self._night.after("notify", message.key)

    def resolved(self, message: Notify) -> None:
        """Nobody is called."""

    def archive(self, record: str, order: Archive) -> None:
        self._night.before("archive", order.key)
        self._night.after("archive", order.key)
