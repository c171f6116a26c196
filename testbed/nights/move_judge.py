"""Whether a node is held by one job at a time, and ranks leave theirs, and find others, as they should."""

from __future__ import annotations

from collections.abc import Sequence

from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus, Rank, Verdict
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.ports import Store, each

from .permit_judge import PermitJudge
from .violation import demand
from .world import World


class MoveJudge:
    """Of one night."""

    def __init__(self, world: World, permits: PermitJudge) -> None:
        self._world, self._permits = world, permits
        self._holds: dict[str, frozenset[str]] = {}  #: the nodes of each job that has not ended
        self.last: dict[tuple[str, int, int], float] = {}  #: of a job, in an attempt, of a rank: the last
        self._idle: dict[tuple[str, str], float] = {}  #: since when a job waits, and this node is free for it
        self.late: Sequence[tuple[float, float]] = ()  #: stretches in which nobody hears of anything

    def holds_alone(self, job: Job) -> None:
        names = frozenset() if job.status.final else frozenset(rank.node for rank in job.ranks)
        for other, theirs in self._holds.items():
            both = sorted(names & theirs) if other != job.id else []
            demand(not both, f"{both} is held by {job.id} and by {other}")
        self._holds[job.id] = names

    def left(self, job: Job, rank: Rank) -> None:
        """A rank has moved away. What it ran there is over, or was asked to stop and is out of reach for long."""
        self.last[job.id, job.attempt, rank.index] = self._world.now
        self._world.struck["moves"] += 1
        if rank.handed and rank.verdict in (Verdict.REBOOT, Verdict.REPLACE):
            self._permits.moved(rank.node)
        w, machine = self._world.weather, self._world.machines[rank.node]
        told = not (w.lost or w.late or w.reordered or w.together or w.skew_s or w.jolt_s or w.late_functions)
        for task in machine.tasks:
            if task.alive and task.job == job.id and not task.check and not task.stray:
                since = task.asked if machine.away_since is None else machine.away_since
                took = self._world.now - since + 1.0
                back = (
                    machine.connected and self._world.now - machine.last_away < 300
                )  # and nobody knows it yet
                task.left = True
                demand(
                    not told or back or took >= w.policy.failover_lost_after.total_seconds(),
                    f"job {job.id} left {machine.name} behind, where {task.id} still runs",
                )

    def look(self, store: Store) -> None:
        """No job waits for a node while one is free for it, but for ranks whose nodes broke in a frozen fleet."""
        waits: dict[tuple[str, str], float] = {}
        nobody = any(begin <= self._world.now < end for begin, end in self.late)
        if not self._world.troubled and not nobody:
            for job in each(store.job, store.live_jobs())[0]:
                ready = [r for r in job.ranks if r.handed and not r.live and not r.anew]
                if self._permits.frozen:
                    ready = [r for r in ready if r.verdict not in (Verdict.REBOOT, Verdict.REPLACE)]
                if job.status is JobStatus.PENDING_RESTART and ready and job.ending is None:
                    some = {(job.id, node.name) for node in store.nodes() if self._suits(job, node)}
                    waits |= {pair: self._idle.get(pair, self._world.now) for pair in some}
        self._idle = waits
        most = 1800.0 + 3 * self._world.weather.sweep_s
        late = [pair for pair, since in waits.items() if self._world.now - since > most]
        demand(not late, f"{late[:1]}: the one waits, and the other is free")

    def _suits(self, job: Job, node: Node) -> bool:
        usable = node.status is NodeStatus.AVAILABLE and node.connected and node.gpus_seen == node.gpus
        may = job.spec.failover == "any" or (job.spec.failover == "spares" and node.spare)
        usable = usable and node.hold is None and node.leave is None
        return usable and may and node.kind == "alike" and not node.job_id
