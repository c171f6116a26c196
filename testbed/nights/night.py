"""One night: the real runtime, sweeper and rules in a hostile world, the same for the same seed.

Processes are cut into steps by the ports they call. Between two steps the night may kill the process, let a
call go unanswered, or let it stand still while the whole world, other processes included, goes on.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random

from ecs_gpu_recovery.core.effects import CheckNode, StartTask
from ecs_gpu_recovery.core.errors import Refused, Transient
from ecs_gpu_recovery.core.model import Job, NodeStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.ports import GuardStore, Store
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.engine.sweeper import Sweeper
from ecs_gpu_recovery.local.guard import SqliteGuard
from ecs_gpu_recovery.local.store import SqliteStore

from ..releases import BREAKING, NEXT
from .checkers import Judge
from .cluster import SimulatedCluster
from .deliveries import Deliveries
from .forgery import forgery
from .hangs import Hangs
from .hostile import HostileGuard, HostileStore, Inbox
from .luck import brew, brew_leaves, brew_strangers, poisson
from .machine import GPUS
from .memory import MemoryGuard, MemoryStore
from .newcomers import Newcomers
from .people import People
from .skies import SKIES
from .violation import Violation
from .weather import Weather
from .world import T0, World

#: After the troubled hours everything must come to rest within this long.
PATIENCE_S = 8 * 3600.0
#: A process can't live longer than this: shorter than the lease, as a deployment demands.
LIFE_S = 120.0
#: A lease holds only between clocks that agree this well, where senders can stand still.
SKEW_S = 45.0
_DEPTH = 3


class Crash(BaseException):
    """The process dies here. Nothing may catch it but the night itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a night."""

    seed: int
    violation: str
    digest: str
    seconds: float  #: virtual
    steps: int
    ended: tuple[str, ...]
    history: tuple[tuple[object, ...], ...]
    weather: Weather
    struck: Counter[str]  #: how often each trouble struck
    sky: str = "any"

    @property
    def reproduction(self) -> str:
        sky = "" if self.sky == "any" else f" --sky {self.sky}"
        return f"python -m testbed.nights --seed {self.seed}{sky}"

    def __str__(self) -> str:
        if not self.violation:
            return f"seed {self.seed}: well ({', '.join(self.ended)})"
        return f"seed {self.seed}: {self.violation}\n  {self.reproduction}"


class Night:
    """Everything that one seed stands for."""

    def __init__(self, seed: int, *, database: Path | None = None, sky: str = "any") -> None:
        self.seed, self.sky = seed, sky
        rng = Random(seed)  # noqa: S311 (chance that can be repeated is the point)
        self.more = Random(f"{seed}/more")  # noqa: S311
        self.weather = SKIES[sky](rng, self.more)
        self.world = World(self.weather, rng)
        self.judge = Judge(self.world)
        lost = self.weather.policy.node_lost_after
        self.store: Store = (
            SqliteStore(database, lost_after=lost)
            if database is not None
            else MemoryStore(rows_fit=self.weather.rows_fit, lost_after=lost)
        )
        self.guard: GuardStore = (
            SqliteGuard(self.store, "c") if isinstance(self.store, SqliteStore) else MemoryGuard()
        )
        self.inbox = Inbox(self)
        self.cluster = SimulatedCluster(self.world, self)
        chances = (Random(f"{seed}/{what}") for what in ("hangs", "nccl", "files"))  # noqa: S311
        self.hangs = Hangs(self, *chances)
        self._stores = [self.store, *([self._later(database)] if self.weather.mixed else [])]
        dispatches = (True, rng.random() < 0.5)
        #: Of each release: the functions, and what people use.
        self._sides = [
            [
                Runtime(
                    store=HostileStore(store, self),
                    fleet=self.cluster,
                    notifier=self.inbox,
                    policy=self.weather.policy,
                    guard=HostileGuard(self.guard, self),
                    dispatch=dispatch,
                    clock=lambda: self.world.time,
                    on_commit=self.hangs.committed,
                )
                for dispatch in dispatches
            ]
            for store in self._stores
        ]
        self._release = 0  #: of the running process
        self.people = People(self)
        self.newcomers = Newcomers(self)
        self.deliveries = Deliveries(self)
        self.world.news = self.deliveries.news
        self._throttled: list[tuple[float, float]] = []
        self.judge.moves.late = self.deliveries.late
        self._depth = 0
        self.as_of: datetime | None = None  #: what a fact of an event that is told takes for now
        self._dies_at = 0.0
        self._resting = 0

    def _later(self, database: Path | None) -> Store:
        """The same records, as a later release has them."""
        codec = BREAKING if self.weather.breaking else NEXT
        if isinstance(self.store, MemoryStore):
            return self.store.seen_by(codec)
        assert database is not None
        return SqliteStore(database, lost_after=self.weather.policy.node_lost_after, codec=codec)

    def _release_now(self) -> int:
        if self.weather.mixed and self.world.troubled:
            return int(self.world.strikes("mixed"))
        return int(self.weather.deployed)

    @property
    def runtime(self) -> Runtime:
        return self._sides[self._release][0]

    @property
    def desk(self) -> Runtime:
        return self._sides[self._release][1]

    @property
    def clock(self) -> datetime:
        """What the running process takes for now: the time of its event."""
        return self.as_of or self.world.time

    # -- a process between two steps -------------------------------------------------------------------

    def before(self, step: str, key: str) -> None:
        w, world = self.weather, self.world
        if world.now > self._dies_at:
            self.die("timeout", key)
        if not world.troubled:
            return
        if self.dies():
            self.die(f"before {step}", key)
        if world.strikes("transient") or (self._in_a_throttle() and world.strikes("throttles", 0.7)):
            self.judge.mishaps += 1
            raise Transient(f"{step} {key}: throttled")
        if (
            w.ordered
            and self._depth < _DEPTH
            and world.strikes("stall", w.stall * (3 if step in ("commit", "start", "stop") else 1))
        ):
            self.stall(step, key, world.rng.uniform(0, w.stall_s))

    def after(self, step: str, key: str) -> None:
        self.judge.carried_out[key] += 1
        if not self.world.troubled:
            return
        if self.dies():
            self.die(f"after {step}", key)
        if self.world.strikes("unanswered"):
            self.judge.mishaps += 1
            raise Transient(f"{step} {key}: no answer")

    def _in_a_throttle(self) -> bool:
        return any(begin <= self.world.now < end for begin, end in self._throttled)

    def dies(self) -> bool:
        return self.world.troubled and self.world.strikes("crash")

    def die(self, where: str, key: str) -> None:
        self.world.note("crash", where, key)
        raise Crash

    def stall(self, step: str, key: str, seconds: float) -> None:
        """The process stands still, and the world goes on."""
        if self._depth >= _DEPTH:
            return
        self.world.note("stall", step, key)
        saved = self.as_of, self._dies_at
        self.world.run_until(self.world.now + seconds)
        self.as_of, self._dies_at = saved
        if self.world.now > self._dies_at:
            self.die("timeout", key)

    def process(self, act: Callable[[], object], at: datetime, tries: int = 1) -> None:
        """Run one invocation. One that dies is perhaps invoked again."""
        saved = self.as_of, self._dies_at, self._release
        self.as_of, self._dies_at, self._release = at, self.world.now + LIFE_S, self._release_now()
        self._depth += 1
        try:
            act()
        except (Crash, Transient):
            self.judge.mishaps += 1
            if tries < 3 and self.world.strikes("retried"):
                self.world.after(self.world.rng.uniform(1, 120), lambda: self.process(act, at, tries + 1))
        except Refused as exc:
            self.world.note("refused", type(exc).__name__)
        finally:
            self._depth -= 1
            self.as_of, self._dies_at, self._release = saved

    def forge(self, job: Job | None, node: Node, order: StartTask | CheckNode) -> None:
        """A neighbour who knows all that there is to know starts a task of his own, which is not quite the one."""
        if self.world.troubled and self.world.strikes("forged", self.weather.forged):
            fact = forgery(self.more, job, node, order, self.clock)
            self.world.note("forged", type(fact).__name__, order.key)
            if job is not None:
                self.process(partial(self.runtime.handle, job.id, [fact]), self.clock)
            else:
                self.process(partial(self.runtime.handle_node, node.name, [fact]), self.clock)

    # -- people and the clock --------------------------------------------------------------------------

    def _prepare(self) -> None:
        w, rng, world = self.weather, self.world.rng, self.world
        boot = "" if w.blind else "boot0"
        for name in world.machines:
            self.store.add_node(
                Node(
                    name=name,
                    cluster="c",
                    created_at=T0,
                    updated_at=T0,
                    gpus=GPUS,
                    gpus_seen=GPUS,
                    instance=f"{name}.0" if w.forgetful else name,
                    host=name,
                    registered_at=T0,
                    connected=True,
                    seen_version=1 if w.ordered else 0,
                    boot_id=boot,
                    status=NodeStatus.AVAILABLE,
                    kind="odd" if w.odd and name == world.spares[0] else "alike",
                    spare=name in world.spares,
                )
            )
        self.people.prepare()
        self.newcomers.prepare()
        brew(world)
        brew_strangers(world)
        brew_leaves(world)
        for number in range(w.sweepers):
            chance = self.more if number else rng
            sweepers = [Sweeper(functions) for functions, _ in self._sides]
            world.after(chance.uniform(1, w.sweep_s), partial(self._sweep, sweepers))
        for _ in range(poisson(self.more, w.throttles)):
            begin = self.more.uniform(0, w.trouble_s)
            self._throttled.append((begin, begin + self.more.uniform(30, 600)))
        for _ in range(poisson(self.more, w.late_functions)):
            begin = self.more.uniform(0, w.trouble_s)
            self.deliveries.late.append((begin, begin + self.more.uniform(60, 3600)))
        self.people.prepare_damage()

    def _sweep(self, sweepers: Sequence[Sweeper]) -> None:
        now = self.world.time
        if self.world.troubled and self.weather.skew_s and self.world.rng.random() < 0.2:
            self.world.struck["skew_s"] += 1
            ahead = SKEW_S if self.weather.stall else self.weather.skew_s
            now += timedelta(
                seconds=self.world.rng.uniform(-self.weather.skew_s, min(ahead, self.weather.skew_s))
            )
        self.deliveries.invoke(lambda: self._look(sweepers[self._release], now), now)
        self.world.after(self.weather.sweep_s, partial(self._sweep, sweepers))

    def _look(self, sweeper: Sweeper, now: datetime) -> None:
        begun, mishaps = self.world.now, self.judge.mishaps
        sweeper.sweep(now).raise_unforeseen()
        self.newcomers.look()
        if self.judge.mishaps == mishaps:
            self.judge.permits.swept(begun)

    # -- the whole night -------------------------------------------------------------------------------

    def run(self) -> Outcome:
        violation = ""
        logger = logging.getLogger("ecs_gpu_recovery")
        quiet, logger.disabled = logger.disabled, True
        try:
            self._prepare()
            self._until_rest()
            self.judge.at_rest(self._stores[-1], self.inbox.told)
        except (Violation, Exception) as exc:  # noqa: BLE001 - whatever gets out is a night that ended badly
            violation = f"{type(exc).__name__}: {exc}"
        finally:
            logger.disabled = quiet
            for store in self._stores:
                if isinstance(store, SqliteStore):
                    store.close()
        history = self.world.history
        digest = hashlib.sha256("\n".join(map(repr, history)).encode()).hexdigest()
        ended = tuple(f"{job} {status}" for job, status in sorted(self.judge.final.items()))
        return Outcome(
            self.seed,
            violation,
            digest,
            self.world.now,
            len(history),
            ended,
            tuple(history),
            self.weather,
            self.world.struck,
            self.sky,
        )

    def _until_rest(self) -> None:
        """Step by sweeps until nothing is left to do, and then once more."""
        world, limit = self.world, self.weather.trouble_s + PATIENCE_S
        while self._resting < 2:
            world.run_until(world.now + self.weather.sweep_s)
            self.judge.moves.look(self._stores[-1])
            self._resting = self._resting + 1 if self._at_rest() else 0
            if world.now > limit:
                return

    def _at_rest(self) -> bool:
        store, bad = self._stores[-1], {name for kind, name in self.judge.poisoned if kind == "job"}
        if (
            self.people.to_submit
            or not bad.issuperset(store.live_jobs())
            or self.judge.untold(self.inbox.told)
        ):
            return False
        far = self.world.time + timedelta(days=365)
        nodes = [node for node in store.nodes() if node.job_id not in bad]
        return bad.issuperset(store.due_jobs(far)) and not any(
            n.outbox or n.job_id or n.deadline for n in nodes
        )


def run(seed: int, *, database: Path | None = None, sky: str = "any") -> Outcome:
    return Night(seed, database=database, sky=sky).run()
