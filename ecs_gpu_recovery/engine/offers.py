"""Offering nodes to the jobs that wait for others than their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from ..core.errors import BadRecord, NodesTaken, NotFound
from ..core.events import Fact, NodesOffered
from ..core.job import claim
from ..core.model import Job, JobStatus
from ..core.node_record import Node
from .permits import Permits
from .ports import Store
from .records import R

log = logging.getLogger("ecs_gpu_recovery")
#: How often a job that waits for nodes looks again, if others were faster; and how many such jobs are asked at once.
TRIES, WAITING = 5, 100


class Offers:
    """Which jobs are shown which nodes, and when. What they take, their own rules say."""

    def __init__(
        self, store: Store, permits: Permits | None, handle: Callable[[str, Iterable[Fact]], Job]
    ) -> None:
        self._store, self._permits, self._handle = store, permits, handle

    def follow(self, old: R, record: R, at: datetime) -> R:
        """A job that needs other nodes is shown what there is; a node that has become free is shown to such jobs."""
        if isinstance(record, Job):
            more = claim.wanted(record) - claim.wanted(old)
            if more:
                return self.show(record, at)
        if _free(record) and not _free(old):
            self._show_all(at)
        return record

    def show(self, job: Job, at: datetime, nodes: Sequence[Node] | None = None) -> Job:
        """Show a job that waits for nodes those that there are, as just read or as they are now.

        Another job may be faster with one that it picks; then it looks again.
        """
        for _ in range(TRIES):
            shown = tuple(self._store.nodes() if nodes is None else nodes)
            offer = NodesOffered(at=at, nodes=shown, frozen=self._frozen_for(job))
            try:
                return self._handle(job.id, [offer])
            except NodesTaken as exc:
                log.info("a node was taken by another job", extra={"job": job.id, "why": str(exc)})
                nodes = None
        return job  # the sweeper offers again

    def _frozen_for(self, job: Job) -> bool:
        """Whether the ranks whose nodes are condemned have to wait with them."""
        return self._permits is not None and any(map(claim.condemned, job.ranks)) and self._permits.frozen()

    def _show_all(self, at: datetime) -> None:
        """Whoever has waited longest chooses first."""
        waiting: list[Job] = []
        for line in self._store.jobs(status=JobStatus.PENDING_RESTART, limit=WAITING).jobs:
            try:
                waiting.append(self._store.job(line.id))
            except (BadRecord, NotFound) as exc:
                log.warning("no node is offered", extra={"job": line.id, "why": str(exc)})
        for job in sorted(filter(claim.wanted, waiting), key=claim.age):
            self.show(job, at)


def _free(record: Job | Node) -> bool:
    """Whether ranks of other jobs could have its nodes."""
    return not record.engaged if isinstance(record, Node) else record.status.final
