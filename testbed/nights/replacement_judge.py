"""Whether machines are replaced only where that is allowed and asked for, and each by one other machine."""

from __future__ import annotations

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from ecs_gpu_recovery.core.node.replacement import GONE
from ecs_gpu_recovery.core.node_record import REPLACED_BY, Node

from .machine import Machine, Reboot, verdict_of
from .permit_judge import PermitJudge
from .reboot_judge import RebootJudge
from .violation import demand
from .world import World


class ReplacementJudge:
    """Of one night."""

    def __init__(self, world: World, permits: PermitJudge, reboots: RebootJudge) -> None:
        self._world, self._permits, self._reboots = world, permits, reboots
        self._came_for: dict[str, str] = {}  #: each machine that came, and the node whose record names it
        self._over: set[str] = set()  #: reboots from which a node was let back
        world.on_replace = self.ordered

    def ordered(self, machine: Machine, order: Reboot) -> None:
        """Only where that is allowed, on a check that no reboot answers or after a reboot that had its time, and over
        no task that is meant to run."""
        allowed = "replace" in self._world.weather.policy.repair_rungs
        demand(allowed, f"{machine.name} is replaced; nobody allowed it")
        self._permits.rebooted(machine.name, order.key)
        running = [t.id for t in machine.tasks if t.alive and not (t.check or t.stopping or t.stray)]
        demand(not running, f"{machine.name} is taken away under {running}")
        demand(not machine.strangers, f"{machine.name} is taken away under somebody else's task")
        told = [verdict_of(t) for t in machine.tasks if t.check and t.told]
        gated = Verdict.REBOOT in told and any(r.done for r in machine.reboots.values())
        proven = Verdict.REPLACE in told or gated or self._never_back(machine)
        demand(proven, f"{machine.name} is replaced, and no check asks for it")

    def _never_back(self, machine: Machine) -> bool:
        """Its last reboot reached it, was no failure, and has had all its time."""
        sent = [each for each in machine.reboots.values() if not _replaces(each.key)]
        waited = self._world.now - sent[-1].at if sent else 0.0
        had = waited >= self._world.weather.policy.reboot_timeout.total_seconds() - 0.01
        return had and not sent[-1].failed

    def _given_up_too_soon(self, node: Node) -> bool:
        """Its reboot for a fault did not return, another machine was to be had, and yet it is left to a person."""
        machine = self._world.machines[node.name]
        reboot = machine.reboots.get(node.reboot_key)
        others = self._over | self._reboots.by_person
        if reboot is None or reboot.failed or machine.gone or node.reboot_key in others:
            return False
        return not _replaces(reboot.key) and "replace" in self._world.weather.policy.repair_rungs

    def committed(self, node: Node) -> None:
        """A machine is gone if it is, and whoever came for it came for nobody else."""
        if node.status is NodeStatus.AVAILABLE:
            self._over.add(node.reboot_key)
        last = node.timeline[-1] if node.timeline else None
        if last is not None and (last.before, last.after) == (NodeStatus.REBOOTING, NodeStatus.FAILED):
            soon = self._given_up_too_soon(node)
            demand(not soon, f"{node.name} is given up after its reboot, and may be replaced")
        if last is not None and last.why == GONE:
            gone = self._world.machines[node.name].gone
            demand(gone, f"{node.name} counts as replaced, and its machine is still there")
        needless = node.being_replaced and node.held and node.gone
        demand(not needless, f"{node.name} waits for a permit to take away a machine that is gone")
        for each in node.condemned:
            if each.outcome.startswith(REPLACED_BY):
                new = each.outcome.removeprefix(REPLACED_BY)
                demand(self._world.machines[new].new, f"{new} was there before {node.name} was replaced")
                other = self._came_for.setdefault(new, node.name)
                demand(other == node.name, f"{new} came for {node.name}, and for {other}")

    @staticmethod
    def at_rest(node: Node) -> None:
        demand(not node.being_replaced, f"{node.name} was never replaced, and nobody was told")


def _replaces(key: str) -> bool:
    """Whether it is an order to take a machine away, and none to reboot it."""
    said = keys.parse(key)
    return said is not None and said.kind == "replace"
