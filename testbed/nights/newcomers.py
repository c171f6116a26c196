"""Machines that join in the night. As on ECS, an event may tell of one; the sweeper looks for the others."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from ecs_gpu_recovery.core.events import Tick
from ecs_gpu_recovery.core.model import NodeStatus
from ecs_gpu_recovery.core.node_record import Node

from .luck import poisson
from .machine import GPUS, Machine

if TYPE_CHECKING:
    from .night import Night


class Newcomers:
    """Some are broken when they come, and some jobs want one before anybody has examined it."""

    def __init__(self, night: Night) -> None:
        self._night, self._world = night, night.world
        self._chance = Random(f"{night.seed}/newcomers")  # noqa: S311 - of their own, so that older nights stay
        self._world.on_successor = self._comes_for
        self._came = 0

    def prepare(self) -> None:
        w, chance = self._world.weather, self._chance
        for number in range(poisson(chance, w.newcomers)):
            self._world.after(chance.uniform(0, w.trouble_s), partial(self._joins, f"x{number}"))

    def _comes_for(self, machine: Machine) -> None:
        """Its group has started another one."""
        self._came += 1
        self._join(f"y{self._came}", "")

    def _join(self, name: str, fault: str) -> None:
        world = self._world
        machine = world.machines[name] = Machine(name, registered=world.now, new=True, fault=fault)
        world.note("joins", name, fault)
        world.changed(machine)

    def _joins(self, name: str) -> None:
        chance = self._chance
        self._world.struck["newcomers"] += 1
        self._join(name, chance.choice(("", "", "reboot", "replace")))
        if chance.random() < 0.5:
            self._night.people.want(name, chance.choice((0.5, 2.0, 60.0, 300.0)))

    def meet(self, name: str) -> None:
        """First sight, by whoever hears of it or looks. Two may meet it at once."""
        night, w = self._night, self._world.weather
        machine, now = self._world.machines[name], night.clock
        night.before("first sight", name)
        night.runtime.store.add_node(
            Node(
                name=name,
                cluster="c",
                created_at=now,
                updated_at=now,
                gpus=GPUS,
                gpus_seen=GPUS,
                instance=f"{name}.{machine.registration}" if w.forgetful else name,
                host=name,
                registered_at=self._world.stamp(machine.registered),
                connected=machine.connected,
                away_since=None if machine.connected else now,
                seen_version=machine.version if w.ordered else 0,
                status=NodeStatus.AVAILABLE if machine.connected else NodeStatus.UNKNOWN,
                kind="alike",
                fresh=True,
            )
        )
        night.after("first sight", name)
        night.runtime.handle_node(name, [Tick(at=now)])

    def look(self) -> None:
        """The sweeper's own: what the cluster has and the records have not."""
        known = {node.name for node in self._night.runtime.store.nodes()}
        for name, machine in self._world.machines.items():
            if machine.new and name not in known and not machine.gone:
                self.meet(name)
