"""Whether machines are replaced only where that is allowed and asked for, and each by one other machine."""

from __future__ import annotations

from ecs_gpu_recovery.core.model import Verdict
from ecs_gpu_recovery.core.node.replacement import GONE
from ecs_gpu_recovery.core.node_record import REPLACED_BY, Node

from .machine import Machine, Reboot, verdict_of
from .permit_judge import PermitJudge
from .violation import demand
from .world import World


class ReplacementJudge:
    """Of one night."""

    def __init__(self, world: World, permits: PermitJudge) -> None:
        self._world, self._permits = world, permits
        self._came_for: dict[str, str] = {}  #: each machine that came, and the node whose record names it
        world.on_replace = self.ordered

    def ordered(self, machine: Machine, order: Reboot) -> None:
        """Only where that is allowed, on a check that no reboot answers, and over no task that is meant to run."""
        allowed = "replace" in self._world.weather.policy.repair_rungs
        demand(allowed, f"{machine.name} is replaced; nobody allowed it")
        self._permits.rebooted(machine.name, order.key)
        running = [t.id for t in machine.tasks if t.alive and not (t.check or t.stopping or t.stray)]
        demand(not running, f"{machine.name} is taken away under {running}")
        demand(not machine.strangers, f"{machine.name} is taken away under somebody else's task")
        told = [verdict_of(t) for t in machine.tasks if t.check and t.told]
        gated = Verdict.REBOOT in told and any(r.done for r in machine.reboots.values())
        demand(Verdict.REPLACE in told or gated, f"{machine.name} is replaced, and no check asks for it")

    def committed(self, node: Node) -> None:
        """A machine is gone if it is, and whoever came for it came for nobody else."""
        last = node.timeline[-1] if node.timeline else None
        if last is not None and last.why == GONE:
            gone = self._world.machines[node.name].gone
            demand(gone, f"{node.name} counts as replaced, and its machine is still there")
        for each in node.condemned:
            if each.outcome.startswith(REPLACED_BY):
                new = each.outcome.removeprefix(REPLACED_BY)
                demand(self._world.machines[new].new, f"{new} was there before {node.name} was replaced")
                other = self._came_for.setdefault(new, node.name)
                demand(other == node.name, f"{new} came for {node.name}, and for {other}")

    @staticmethod
    def at_rest(node: Node) -> None:
        demand(not node.being_replaced, f"{node.name} was never replaced, and nobody was told")
