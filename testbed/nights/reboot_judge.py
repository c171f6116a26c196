"""Whether machines are rebooted only for a cause, once for it, and used again only when they are well."""

from __future__ import annotations

from collections import Counter

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from ecs_gpu_recovery.core.node_record import Node

from .machine import Machine, Reboot, verdict_of
from .move_judge import MoveJudge
from .permit_judge import PermitJudge
from .suspect_judge import SuspectJudge
from .violation import demand
from .world import World


class RebootJudge:
    """Of one night."""

    def __init__(self, world: World, permits: PermitJudge, moves: MoveJudge, suspects: SuspectJudge) -> None:
        self._world, self._permits, self._moves, self._suspects = world, permits, moves, suspects
        self._asked: set[str] = set()  #: nodes whose reboot a person asked for
        self._used: set[tuple[str, int, str]] = set()  #: job, attempt and node of every reboot
        self._repairs: Counter[str] = Counter()  #: of each node, since a person released it
        self._looked_at: set[str] = set()  #: nodes that were out of use, and that a person has examined
        self.by_person: set[str] = set()  #: keys of reboots that a person asked for
        self._proofs: set[str] = set()  #: checks of nodes on their own that led to a reboot
        self._round: set[str] = set()  #: nodes that were rebooted, and not let back or given up since
        self._booted: dict[str, float] = {}  #: when each node was rebooted last, as its record knows it
        world.on_reboot = self.rebooted

    def asked(self, node: str, ask: str) -> None:
        if ask == "reboot":
            self._asked.add(node)
        elif ask == "release":
            del self._repairs[node]

    def rebooted(self, machine: Machine, reboot: Reboot) -> None:
        """Only on a verdict of the failed attempt, once for it, and over no task that is meant to run."""
        self._permits.rebooted(machine.name, reboot.key)
        running = [t.id for t in machine.tasks if t.alive and not (t.check or t.stopping or t.stray)]
        demand(not running, f"{machine.name} is rebooted under {running}")
        demand(not machine.strangers, f"{machine.name} is rebooted under somebody else's task")
        key = keys.parse(reboot.key)
        assert key is not None, reboot.key
        demand(machine.name not in self._round, f"{machine.name} is rebooted once more, as its gate failed")
        self._round.add(machine.name)
        if key.node:
            self._for_its_own_sake(machine, reboot)
            return
        attempt = max(0, key.attempt - 1)  # or it failed the check before the first start
        place = (key.job, key.attempt, key.rank)
        waits = (
            place in self._moves.last or place in self._suspects.told
        )  # examined for the attempt that comes
        attempts = (attempt, key.attempt) if key.last or waits else (attempt,)
        proof = [
            t
            for t in machine.tasks
            if t.check
            and t.job == key.job
            and t.attempt in attempts
            and t.told
            and verdict_of(t) is Verdict.REBOOT
        ]
        demand(
            bool(proof) or self._was_stuck(machine, key.job, attempt),
            f"{machine.name} is rebooted by {reboot.key} without a verdict of attempt {attempt}",
        )
        used = (reboot.key, attempt, machine.name)
        demand(used not in self._used, f"{machine.name} is rebooted twice for one verdict")
        self._used.add(used)
        self._repaired(machine)

    def _for_its_own_sake(self, machine: Machine, reboot: Reboot) -> None:
        """No job waits for it. A person has asked, or a check of the node has condemned it."""
        if reboot.key in self.by_person:
            demand(machine.name in self._asked, f"{machine.name} is rebooted, and nobody asked for it")
            return
        told = (t for t in machine.tasks if t.check and not t.job and t.told and t.id not in self._proofs)
        proof = [t.id for t in told if verdict_of(t) is Verdict.REBOOT]
        demand(bool(proof), f"{machine.name} is rebooted by {reboot.key}, and no check asks for it")
        self._proofs.update(proof)
        if machine.name not in self._looked_at:
            self._repaired(machine)

    def _repaired(self, machine: Machine) -> None:
        self._repairs[machine.name] += 1
        demand(self._repairs[machine.name] < 3, f"{machine.name} is repaired again and again")

    def _was_stuck(self, machine: Machine, job: str, attempt: int) -> bool:
        """Whether a task of that attempt did not end in the time of a stop. No clock jumps."""
        w = self._world.weather
        wait = w.policy.stop_timeout.total_seconds() - 0.01
        mine = [
            t for t in machine.tasks if t.job == job and t.attempt == attempt and not t.check and t.asked >= 0
        ]
        long = [t for t in mine if (self._world.now if t.alive else t.ended) - t.asked >= wait]
        return bool(long or (mine and (w.skew_s or w.jolt_s)))

    def committed(self, node: Node) -> None:
        """What is kept of its repairs, to be held against what follows."""
        machine = self._world.machines[node.name]
        if node.status is NodeStatus.AVAILABLE and node.name in self._round:
            self.passed_the_gate(machine, node.reboot_key)
        if node.status not in (NodeStatus.REBOOTING, NodeStatus.PENDING_HEALTHCHECK):
            self._round.discard(node.name)
        reboot = machine.reboots.get(node.reboot_key)
        if reboot is not None and node.rebooted:
            self._booted[node.name] = reboot.at
        last = node.timeline[-1] if node.timeline else None
        if last is not None and last.why.startswith("reboot asked for by"):
            self.by_person.add(node.reboot_key)
        if last is not None and last.why.startswith("check asked for by"):
            (self._looked_at.add if last.before == NodeStatus.FAILED else self._looked_at.discard)(node.name)
        elif node.status is NodeStatus.AVAILABLE:
            self._looked_at.discard(node.name)
        if last is not None and last.why.startswith("a fault was seen"):
            seen = float(last.evidence.rpartition(" ")[2])
            old = seen < self._booted.get(node.name, -1.0)
            self._round.discard(node.name)  # its gate opened in the same step
            demand(not old, f"{node.name} is examined for a fault of {seen}, and was rebooted since")

    def passed_the_gate(self, machine: Machine, key: str) -> None:
        """Whoever rebooted it: it is used again when a check has found it healthy, and not before."""
        reboot = machine.reboots.get(key)
        if reboot is not None and self._world.weather.policy.post_reboot_check:
            since = (
                t for t in machine.tasks if t.check and not t.job and t.began > reboot.at and not t.alive
            )
            well = any(verdict_of(t) is Verdict.HEALTHY for t in since)
            demand(well, f"{machine.name} is let back, and no check has found it healthy since its reboot")
