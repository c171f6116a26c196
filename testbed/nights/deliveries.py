"""How the control plane hears of what happens: once, never, twice, late, out of order, alone or in company."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from ecs_gpu_recovery.core.errors import NotFound
from ecs_gpu_recovery.core.events import Fact, NodePulse
from ecs_gpu_recovery.core.node_record import Node

from .machine import Fault, Machine, News, Reboot, Warned

if TYPE_CHECKING:
    from .night import Night

#: What an event says, made when it is heard: of a job or else of a node, by name.
Told = Callable[[], tuple[str, str, list[Fact]]]


class Deliveries:
    """Of one night."""

    def __init__(self, night: Night) -> None:
        self._night, self._world, self._weather = night, night.world, night.weather
        self._gathered: list[tuple[datetime, Told]] = []
        self._held: dict[str, Callable[[], None]] = {}  #: news that waits for the next about its node
        self.late: list[tuple[float, float]] = []  #: when functions are invoked, but later

    def news(self, kind: str, machine: Machine, what: News) -> None:
        """Something happened; whoever listens may hear of it once, never, twice, late, or out of order."""
        if self._weather.lost >= 1.0:
            return
        self._spread(machine, self._delivery(kind, machine, what))

    def _spread(self, machine: Machine, act: Told) -> None:
        w, world, rng = self._weather, self._world, self._world.rng
        at = world.now
        for _ in range((0 if world.strikes("lost") else 1) + (1 if world.strikes("repeated") else 0)):
            delay = rng.uniform(0, w.late_s) if world.strikes("late") else rng.uniform(0.1, 3)
            self._tell(machine.name, delay, partial(self._hear, act, at))

    def tell_pulse(self, machine: Machine, fact: NodePulse) -> None:
        """A watch speaks on a bus that loses, repeats and delays as any other."""
        if self._weather.lost < 1.0:
            self._spread(machine, lambda: ("", machine.name, [fact]))

    def _tell(self, about: str, delay: float, hear: Callable[[], None]) -> None:
        """After a while; if it is to come out of order, right after the next news about the same node."""
        world = self._world
        if (held := self._held.pop(about, None)) is not None:
            world.after(delay + 0.1, held)
        elif world.strikes("reordered"):
            self._held[about] = hear
            world.after(900, lambda: self._held.pop(about, lambda: None)())
            return
        world.after(delay, hear)

    def _hear(self, news: Told, at: float) -> None:
        w, world = self._weather, self._world
        off = world.rng.uniform(-w.jolt_s, w.jolt_s) if w.jolt_s and world.strikes("jolt_s", 0.2) else 0.0
        told = world.stamp((at if w.ordered else world.now) + off), news
        if not w.together:
            self.invoke(lambda: self._take([told]), told[0])
            return
        if not self._gathered:
            world.after(self._night.more.choice((1.0, 5.0, 30.0)), self._hand_over)
        self._gathered.append(told)

    def _hand_over(self) -> None:
        """What a queue has gathered, in any order, to one function."""
        some, self._gathered = self._gathered, []
        self._night.more.shuffle(some)
        self.invoke(lambda: self._take(some), max(at for at, _ in some))

    def _take(self, some: Sequence[tuple[datetime, Told]]) -> None:
        """Each fact has the time of its own event; each record hears of all of them at once."""
        jobs: dict[str, list[Fact]] = {}
        nodes: dict[str, list[Fact]] = {}
        saved = self._night.as_of
        for at, news in some:
            self._night.as_of = at
            job, node, facts = news()
            if facts:
                (jobs.setdefault(job, []) if job else nodes.setdefault(node, [])).extend(facts)
        self._night.as_of = saved
        for job, facts in jobs.items():
            self._night.runtime.handle(job, facts)
        if nodes:
            self._night.runtime.handle_nodes([(self._record(node), facts) for node, facts in nodes.items()])

    def _record(self, name: str) -> Node:
        """Of a node; one that is heard of for the first time is recorded first."""
        try:
            return self._night.runtime.store.node(name)
        except NotFound:
            self._night.newcomers.meet(name)
            return self._night.runtime.store.node(name)

    def invoke(self, act: Callable[[], object], at: datetime) -> None:
        """A function is invoked for an event of this time: at once, or when functions are invoked again."""
        world = self._world
        late = max((end for begin, end in self.late if begin <= world.now < end), default=0.0)
        if late:
            world.struck["late_functions"] += 1
            world.after(
                late - world.now + self._night.more.uniform(0, 90), lambda: self._night.process(act, at)
            )
        else:
            self._night.process(act, at)

    def _delivery(self, kind: str, machine: Machine, what: News) -> Told:
        cluster, name = self._night.cluster, machine.name
        if isinstance(what, Reboot):
            reboot = what
            return lambda: ("", name, [cluster.rebooted(machine, reboot)])
        if isinstance(what, Fault):
            fault = what
            return lambda: ("", name, [cluster.faulty(machine, fault)])
        if isinstance(what, Warned):
            warned = what
            return lambda: ("", name, [cluster.leaving(machine, warned)])
        if what is None:
            if not self._weather.ordered:
                return lambda: ("", name, [cluster.seen(machine)])
            saved, self._night.as_of = self._night.as_of, self._world.time
            sighting = cluster.seen(machine)
            self._night.as_of = saved
            return lambda: ("", name, [sighting])
        task = what
        if kind == "fault":
            froze = cluster.faults(machine)
            return lambda: (task.job, name, froze)
        if kind == "progress":
            number = len(self._world.steps[task.job])
            return lambda: (task.job, name, cluster.trained(task.job, number))
        if task.check:
            return lambda: (task.job, name, [cluster.checked(task)] if kind != "running" else [])
        if kind == "running":
            return lambda: (task.job, name, [cluster.started(task, running=True)])
        return lambda: (task.job, name, [cluster.seen(machine), cluster.ended(task)])
