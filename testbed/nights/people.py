"""What people do in a night: they submit and stop, ask nodes for things, and damage a record and put it back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from ecs_gpu_recovery.core import guard
from ecs_gpu_recovery.core.errors import JobExists
from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.guard import FleetGuard
from ecs_gpu_recovery.core.model import JobSpec

from .cluster import FAMILY
from .luck import poisson
from .memory import MemoryStore

if TYPE_CHECKING:
    from .night import Night


class People:
    """Each of their commands is a process, with all that can happen to one."""

    def __init__(self, night: Night) -> None:
        self._night, self._world, self._weather = night, night.world, night.weather
        self._chance = Random(f"{night.seed}/guard")  # noqa: S311 - of their own, so that older nights stay
        self.to_submit = 0  #: jobs that nobody has recorded or given up yet

    def prepare(self) -> None:
        w, rng, world = self._weather, self._world.rng, self._world
        for number in range(w.jobs):
            self.to_submit += 1
            size = rng.randint(1, max(1, w.nodes if w.jobs == 1 else w.nodes - 1))
            nodes = sorted(rng.sample(world.named, size))
            nodes, size = ([world.named[number]], 1) if w.apart else (nodes, size)
            check = rng.random() < 0.3
            world.sizes[f"j{number}"] = size
            begin = rng.uniform(0, 60 if number == 0 else 2400)
            world.after(begin, partial(self._submit, number, nodes, check, 6))
        for mean, act in (
            (w.stops, self._stop_a_job),
            (w.task_stops, self._stop_a_task),
            (w.node_asks, self._ask_a_node),
        ):
            for _ in range(poisson(rng, mean)):
                world.after(rng.uniform(0, w.trouble_s), act)
        for _ in range(poisson(self._chance, w.freezes)):
            world.after(self._chance.uniform(0, w.trouble_s), self._freeze)
        world.after(self._chance.uniform(300, 1800), self._look_after_the_fleet)
        if w.leaves:
            chance = Random(f"{self._night.seed}/leaves")  # noqa: S311
            for _ in range(poisson(chance, w.leaves)):
                name, begins = chance.choice(sorted(world.machines)), chance.uniform(0, w.trouble_s)
                world.after(begins, partial(self._empty_a_node, name, chance.choice((600, 4000))))

    def _empty_a_node(self, name: str, lasts: float) -> None:
        """A person wants to work on it, and gives it back later."""
        self._world.machines[name].announced = True
        self._world.struck["leaves"] += 1
        self._ask(name, "move")
        self._world.after(lasts, partial(self._ask, name, "release"))

    def prepare_damage(self) -> None:
        w, more = self._weather, self._night.more
        if w.poisoned and more.random() < w.poisoned:
            self._world.after(more.uniform(0, w.trouble_s), self._damage)

    def want(self, name: str, after: float) -> None:
        """A job of its own on a machine that has just joined, whoever has seen it by then."""
        number = self._weather.jobs + int(name[1:])
        self.to_submit += 1
        self._world.sizes[f"j{number}"] = 1
        self._world.after(after, partial(self._submit, number, [name], check=False, tries=6))

    def _submit(self, number: int, nodes: list[str], check: bool, tries: int) -> None:
        done = False

        def act() -> None:
            nonlocal done
            with suppress(JobExists):  # the first try was made after all
                self._night.runtime.submit(
                    job_id=f"j{number}",
                    cluster="c",
                    spec=JobSpec(
                        task_def=f"{FAMILY}:1", failover=self._weather.failover, fenced=number % 2 == 1
                    ),
                    nodes=nodes,
                    at=self._world.time,
                    check=check,
                )
            done = True

        self._night.process(act, self._world.time)
        if done or tries == 0:
            self.to_submit -= 1
        else:
            self._world.after(600, lambda: self._submit(number, nodes, check, tries - 1))

    def _stop_a_job(self) -> None:
        world, night = self._world, self._night
        world.struck["stops"] += 1
        job_id = f"j{world.rng.randrange(self._weather.jobs)}"
        night.process(lambda: night.desk.stop(job_id, by="ann", why="enough", at=world.time), world.time)

    def _stop_a_task(self) -> None:
        alive = [t for t in self._world.tasks.values() if t.alive and t.running and not t.check]
        if alive:
            self._world.struck["task_stops"] += 1
            self._world.stop(self._world.rng.choice(alive), "stopped by hand")

    def _ask_a_node(self) -> None:
        world, rng = self._world, self._world.rng
        world.struck["node_asks"] += 1
        name = rng.choice(sorted(world.machines))
        self._ask(name, rng.choice(("drain", "release", "check", "reboot", "release")))

    def _ask(self, name: str, ask: str) -> None:
        night, now = self._night, self._world.time
        night.judge.reboots.asked(name, ask)
        fact = NodeAsked(at=now, node=name, ask=ask, by="ben", why="to see")
        night.process(lambda: night.desk.handle_node(name, [fact]), now)

    def _freeze(self) -> None:
        self._world.struck["freezes"] += 1
        self._change_guard(lambda record: guard.freeze(record, by="ann", why="to see", at=self._world.time))

    def _look_after_the_fleet(self) -> None:
        """Now and then: they thaw what is frozen, and answer what waits for them."""
        world, chance, record = self._world, self._chance, self._night.guard.guard()
        for each in record.waiting:
            said = chance.random()
            if said < 0.1 and each.what != guard.STOP:  # a gang that is frozen for good would wait for ever
                self._change_guard(partial(guard.refuse, name=each.key, by="ben", why="not that one"))
            elif said < (0.6 if self._weather.policy.repairs == "ask" else 0.2):
                self._change_guard(partial(guard.allow, name=each.key, by="ben"))
        if record.frozen is not None and chance.random() < 0.5:
            self._change_guard(lambda now: guard.thaw(now, by="ben", why="seen", at=world.time))
        world.after(chance.uniform(300, 1800), self._look_after_the_fleet)

    def _change_guard(self, decide: Callable[[FleetGuard], FleetGuard]) -> None:
        permits = self._night.desk.permits
        assert permits is not None
        self._night.process(lambda: permits.change(decide), self._world.time)

    def _damage(self) -> None:
        """A record that nobody can read from now on, or until somebody puts it back as it was."""
        night, world, more = self._night, self._world, self._night.more
        if not isinstance(night.store, MemoryStore):
            return
        jobs = [("job", name) for name in night.store.live_jobs()]
        record = more.choice([*jobs, *(("node", name) for name in world.machines)])
        kept = night.store.kept(*record)
        kept.damage = more.choice(("", "[]", '{"id": 5'))
        world.struck["poisoned"] += 1
        world.note("poisoned", *record)
        if self._weather.restored:
            world.after(more.uniform(60, 7200), kept.restore)
        else:
            night.judge.poisoned.add(record)
