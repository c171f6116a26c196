"""The night's bad luck: what breaks, when, and where."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from .machine import Fault, Machine, Warned
from .world import World


def brew(world: World) -> None:
    """Put the night's bad luck on the agenda."""
    w, rng = world.weather, world.rng
    for machine in world.machines.values():
        strikes: tuple[tuple[str, Callable[[Machine], None]], ...] = (
            ("gpu_faults", lambda m: _break(world, m, "reboot")),
            ("frozen_gpus", lambda m: _freeze(world, m)),
            ("dead_gpus", lambda m: _break(world, m, "replace")),
            ("crashes", lambda m: _crash(world, m, 1, "Essential container in task exited")),
            (
                "other_exits",
                lambda m: _crash(
                    world, m, rng.choice((139, 2)), rng.choice(("", "OutOfMemoryError: killed"))
                ),
            ),
            ("power_cuts", lambda m: _cut(world, m)),
            ("flaps", lambda m: world.agent_away(m, rng.choice((20.0, 90.0, 300.0, 900.0, 2400.0)))),
            ("terminations", world.terminate),
        )
        for trouble, act in strikes:
            for _ in range(poisson(rng, getattr(w, trouble))):
                world.struck[trouble] += 1
                world.after(rng.uniform(0, w.trouble_s), partial(act, machine))


def brew_strangers(world: World) -> None:
    """A cluster is shared: others run tasks on any node, for a while."""
    if not world.weather.strangers:  # older nights stay as they are
        return
    rng = Random(f"strangers {world.rng.random()}")  # noqa: S311
    for machine in world.machines.values():
        for _ in range(poisson(rng, world.weather.strangers)):
            world.struck["strangers"] += 1
            begins, lasts = rng.uniform(0, world.weather.trouble_s), rng.choice((60.0, 600.0, 5000.0))
            world.after(begins, partial(_stranger, world, machine, lasts))


def _stranger(world: World, machine: Machine, lasts: float) -> None:
    if not machine.connected:
        return
    boot, machine.strangers = machine.boot, machine.strangers + 1
    world.note("a stranger", machine.name)

    def ends() -> None:
        if machine.up and machine.boot == boot:  # else it ended when the power went
            machine.strangers -= 1

    world.after(lasts, ends)


def brew_leaves(world: World) -> None:
    """Machines are taken away with notice: by EC2, or by people who drain them first. Some stay after all."""
    if not world.weather.leaves:  # older nights stay as they are
        return
    rng = Random(f"leaves {world.rng.random()}")  # noqa: S311
    for machine in world.machines.values():
        for _ in range(poisson(rng, world.weather.leaves)):
            act = rng.choice((_warned, _warned, _warned, _drained, _drained, _may_be_taken))
            world.after(rng.uniform(0, world.weather.trouble_s), partial(act, world, machine, rng))


def _warned(world: World, machine: Machine, rng: Random) -> None:
    """Two minutes before. Now and then nothing follows."""
    if machine.gone:
        return
    world.struck["leaves"] += 1
    machine.announced = True
    world.note("warned", machine.name)
    world.news("leaving", machine, Warned(world.now, world.now + 120))
    if rng.random() < 0.7:
        world.after(120, partial(world.terminate, machine))


def _may_be_taken(world: World, machine: Machine, rng: Random) -> None:
    world.struck["leaves"] += 1
    world.news("leaving", machine, Warned(world.now, None))


def _drained(world: World, machine: Machine, rng: Random) -> None:
    if machine.gone or machine.draining:
        return
    world.struck["leaves"] += 1
    machine.draining = machine.announced = True
    world.note("draining", machine.name)
    world.changed(machine)
    act = partial(world.terminate, machine) if rng.random() < 0.3 else partial(_kept, world, machine)
    world.after(rng.choice((60.0, 900.0, 5000.0)), act)


def _kept(world: World, machine: Machine) -> None:
    machine.draining = False
    world.changed(machine)


def _break(world: World, machine: Machine, fault: str) -> None:
    if not machine.up or machine.fault == "replace":
        return
    machine.fault = fault
    world.note("fault", machine.name, fault)
    if world.weather.watched:
        world.news("fault", machine, Fault(world.now, machine.boot))
    _crash(world, machine, 1, "Essential container in task exited")


def _freeze(world: World, machine: Machine) -> None:
    """A fatal fault is in the kernel log, and whoever waits for the GPU waits for ever."""
    running = [task for task in machine.tasks if task.alive and task.running and not task.check]
    if not machine.up or machine.fault or not running:
        return
    machine.fault, machine.froze = "reboot", world.now
    for task in running:
        task.frozen = True
    world.note("froze", machine.name)
    world.news("fault", machine, running[0])


def _crash(world: World, machine: Machine, code: int, reason: str) -> None:
    for task in machine.tasks:
        if task.alive and not task.check:
            world.fail(task, code, reason)


def _cut(world: World, machine: Machine) -> None:
    if not machine.up:
        return
    world.down(machine)
    if not world.strikes("no_return"):
        world.after(world.rng.choice((5.0, 60.0, 300.0, 1200.0, 3000.0)), lambda: world.boots(machine))


def poisson(rng: Random, mean: float) -> int:
    """How many, when so many are expected. Small means only."""
    if mean <= 0:
        return 0
    count, left = 0, rng.expovariate(1.0)
    while left < mean:
        count += 1
        left += rng.expovariate(1.0)
    return count
