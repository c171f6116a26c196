"""Whether a gang that waited is started on no node on which a fault was seen meanwhile, unless somebody looked."""

from __future__ import annotations

from typing import NamedTuple

from ecs_gpu_recovery.core.events import FAULT
from ecs_gpu_recovery.core.model import Entry, Job, JobStatus, NodeStatus, Rank

from .violation import demand
from .world import World


class Seen(NamedTuple):
    """A fault, the boot in which it happened, and when it was told."""

    node: str
    boot: int
    told: float
    line: Entry


class SuspectJudge:
    """Of one night."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Job, attempt and rank of every node on which a fault was seen while its job waited.
        self.told: dict[tuple[str, int, int], Seen] = {}

    def committed(self, old: Job, new: Job) -> None:
        for before in old.ranks if old.ending is None and not old.preflight else ():
            if not self._waits(old, before):
                continue
            news = (e for e in new.timeline if e.subject == before.node and e not in old.timeline)
            for line in (e for e in news if e.why == FAULT and " in boot " in e.evidence):
                boot = int(line.evidence.split(" in boot ")[1].split()[0])
                if boot >= self._world.machines[before.node].boot:
                    self._world.struck["suspects"] += 1
                    coming = old.attempt + (old.status is JobStatus.PENDING_HEALTHCHECK)
                    seen = Seen(before.node, boot, self._world.now, line)
                    self.told[new.id, coming, before.index] = seen
        if new.status is JobStatus.RESTARTING and old.status is not new.status:
            self._restarted(new)

    @staticmethod
    def _waits(job: Job, rank: Rank) -> bool:
        """Whether its node was examined, and nothing runs there until the others are ready."""
        examined = job.status is JobStatus.PENDING_HEALTHCHECK and rank.verdict is not None and rank.quiet
        ready = job.status is JobStatus.PENDING_RESTART and rank.node_status is NodeStatus.AVAILABLE
        return (examined or ready) and not rank.handed

    def _restarted(self, job: Job) -> None:
        """On a node that was examined since, or could not be; or that was rebooted, or left for another."""
        for rank in job.ranks:
            seen = self.told.get((job.id, job.attempt, rank.index))
            if seen is None or seen.node != rank.node:
                continue
            machine = self._world.machines[rank.node]
            looked = machine.boot > seen.boot or any(
                t.check and t.began >= seen.told and t.told for t in machine.tasks
            )
            lines = [entry for entry in job.timeline if entry.subject == rank.node]
            since = lines[lines.index(seen.line) :] if seen.line in lines else lines
            demand(
                looked or any(entry.why == "verdict inconclusive" for entry in since),
                f"job {job.id} restarts on {rank.node}, where a fault was seen while it waited",
            )
