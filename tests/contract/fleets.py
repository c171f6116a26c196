"""The four fleets with one node each, and a hand on what lies behind them.

Two are real: processes on this machine, and Amazon ECS and SSM as far as they are simulated at the API. Two are doubles
in which nights and the model search run. Whoever tests with a double tests only what the double promises as well.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Protocol

from ecs_gpu_recovery.core.effects import CheckNode, Effect, RebootNode, StartTask, StopTask
from ecs_gpu_recovery.core.errors import ClusterRefused
from ecs_gpu_recovery.core.events import CheckRefused, Fact, StartRefused, StopAsked
from ecs_gpu_recovery.core.job.table import decide, submit
from ecs_gpu_recovery.core.model import Job, JobSpec, Node, NodeStatus
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.ports import Fleet

POLICY = Policy(healthcheck_exit_codes=frozenset({1, 143}))


class Behind(Protocol):
    """What a test may do and see on the other side of the port. There is one node."""

    fleet: Fleet
    spec: JobSpec

    def now(self) -> datetime: ...

    def node(self) -> Node:
        """The node as a record would have it."""

    def passes(self) -> None:
        """A little time goes by."""

    def tasks(self) -> int:
        """How many tasks live on the node, checks included."""

    def program_ends(self, task_id: str, code: int) -> None: ...

    def breaks(self) -> None:
        """The next check finds what a reboot may cure."""

    def disconnects(self) -> None: ...

    def connects(self) -> None: ...

    def boots(self) -> int:
        """How often the node has booted."""


class Story:
    """A job of one rank on the one node: the record as the engine would have it, and the orders it gave."""

    def __init__(self, behind: Behind, *, check: bool = False, job_id: str = "j") -> None:
        self.behind, self.fleet = behind, behind.fleet
        step = submit(
            job_id=job_id,
            cluster="gpus",
            spec=behind.spec,
            nodes=[behind.node()],
            policy=POLICY,
            at=behind.now(),
            check=check,
        )
        self.job: Job = step.job
        self.given: list[Effect] = [order.effect for order in step.orders]
        self.heard: list[Fact] = []

    def hears(self, facts: Iterable[Fact]) -> list[Fact]:
        told = list(facts)
        for fact in told:
            step = decide(self.job, fact, POLICY)
            self.job = step.job
            self.given += [order.effect for order in step.orders]
        self.heard += told
        return told

    def order(self, kind: type[Any]) -> Any:
        """The last order of this kind."""
        return [effect for effect in self.given if isinstance(effect, kind)][-1]

    def starts(self, *, again: bool = False) -> list[Fact]:
        return self.hears(self.fleet.start_task(self.job, self.order(StartTask), again=again))

    def checks(self, *, again: bool = False) -> list[Fact]:
        return self.hears(
            self.fleet.check_node(self.job, self.behind.node(), self.order(CheckNode), again=again)
        )

    def stops(self) -> list[Fact]:
        if not any(isinstance(effect, StopTask) for effect in self.given):
            self.hears([StopAsked(at=self.behind.now(), by="ann")])
        return self.hears(self.fleet.stop_task(self.job.id, self.order(StopTask)))

    def reboots(self, *, again: bool = False) -> list[Fact]:
        return self.hears(self.fleet.reboot_node(self.behind.node(), self.order(RebootNode), again=again))

    def looks(self) -> list[Fact]:
        return self.hears(self.fleet.observe_job(self.job))

    def until(self, kind: type[Any], holds: Callable[[Any], bool] = lambda fact: True) -> Any:
        """Look now and then, until such a fact is told; there are no events here."""
        for _ in range(400):
            found = [fact for fact in self.looks() if isinstance(fact, kind) and holds(fact)]
            if found:
                return found[0]
            self.behind.passes()
        raise AssertionError(f"never told: {kind.__name__}; but {self.heard[-5:]}")


# -- processes on this machine ---------------------------------------------------------------------------------


class Embedded:
    def __init__(self, state: Path) -> None:
        from ecs_gpu_recovery.local.cluster import Cluster
        from ecs_gpu_recovery.local.fleet import LocalFleet

        self.cluster = Cluster(state)
        self.cluster.create("n0", 2, boot_seconds=0.2)
        self.cluster.power_on("n0")
        self.fleet: Fleet = LocalFleet(self.cluster, self.now)
        self._end = state / "end"
        program = (
            f"import os, sys, time\nwhile not os.path.exists({str(self._end)!r}): time.sleep(0.02)\n"
            f"sys.exit(int(open({str(self._end)!r}).read()))"
        )
        self.spec = JobSpec(command=(sys.executable, "-c", program), gpus_per_node=2)
        self._wait(lambda: self.cluster.node("n0").connected)
        self._first_boot = self.cluster.node("n0").boot_id

    def _wait(self, holds: Callable[[], bool]) -> None:
        for _ in range(1000):
            if holds():
                return
            time.sleep(0.02)
        raise AssertionError("the node is not as it should be")

    def now(self) -> datetime:
        return datetime.now(UTC)

    def node(self) -> Node:
        view = self.cluster.node("n0")
        return Node(
            name="n0",
            cluster="gpus",
            created_at=self.now(),
            updated_at=self.now(),
            instance="n0",
            status=NodeStatus.AVAILABLE,
            gpus=2,
            gpus_seen=2,
            connected=view.connected,
            boot_id=view.boot_id or "",
        )

    def passes(self) -> None:
        time.sleep(0.05)
        self.cluster.tend()

    def tasks(self) -> int:
        return len(self.cluster.tasks("n0", live_only=True))

    def program_ends(self, task_id: str, code: int) -> None:
        self._end.write_text(str(code))

    def breaks(self) -> None:
        self.cluster.inject("n0", "xid", xid=79)

    def disconnects(self) -> None:
        self.cluster.power_off("n0")

    def connects(self) -> None:
        self.cluster.power_on("n0")
        self._wait(lambda: self.cluster.node("n0").connected)

    def boots(self) -> int:
        return len(list((self.cluster.node("n0").folder / "reboots").iterdir()))


@contextmanager
def embedded(folder: Path) -> Iterator[Behind]:
    made = Embedded(folder / "state")
    try:
        yield made
    finally:
        made.fleet.close()  # type: ignore[attr-defined]
        made.cluster.shutdown()
    assert made.cluster.processes() == []


# -- Amazon ECS and SSM, simulated at their API ----------------------------------------------------------------


class Ecs:
    def __init__(self, world: Any) -> None:
        self.world = world
        world.events = False
        world.add_nodes(1)
        self.fleet: Fleet = world.side.fleet
        self.spec = JobSpec(task_def="train:1", container="main")
        self.control = world.cloud.control
        self._clock()

    def _clock(self) -> None:
        self.world.clock.set({"time": self.world.now().isoformat()})

    def now(self) -> datetime:
        moment: datetime = self.world.now()
        return moment

    def node(self) -> Node:
        found: Node = self.world.side.store.node("n0")
        return found

    def passes(self) -> None:
        self.world.pass_time(5)
        self._clock()

    def tasks(self) -> int:
        return len([t for kind in ("train", "check") for t in self.world.tasks(kind, live=True)])

    def program_ends(self, task_id: str, code: int) -> None:
        assert self.control.exit_task(task_id, code)

    def breaks(self) -> None:
        self.control.health("n0", 1)

    def disconnects(self) -> None:
        self.control.disconnect("n0")

    def connects(self) -> None:
        self.control.connect("n0")

    def boots(self) -> int:
        return int(self.control.node("n0")["boots"]) - 1


@contextmanager
def ecs(folder: Path) -> Iterator[Behind]:
    from tests.stories.world import a_world

    with a_world() as world:
        yield Ecs(world)


# -- the nights ------------------------------------------------------------------------------------------------


class CalmNight:
    """No crash, no stall, no lost answer."""

    def __init__(self, world: Any) -> None:
        self._world = world

    @property
    def clock(self) -> datetime:
        moment: datetime = self._world.time
        return moment

    def before(self, step: str, key: str) -> None: ...

    def after(self, step: str, key: str) -> None: ...


class Nights:
    spec = JobSpec()

    def __init__(self) -> None:
        from testbed.nights.cluster import SimulatedCluster
        from testbed.nights.weather import Weather
        from testbed.nights.world import World

        calm = Weather(nodes=1, jobs=1, work_s=1e6, sweep_s=60, trouble_s=0, tombstones=False)
        self.world = World(calm, Random(1))
        self.machine = self.world.machines["n0"]
        self.fleet: Fleet = SimulatedCluster(self.world, CalmNight(self.world))  # type: ignore[arg-type]

    def now(self) -> datetime:
        return self.world.time

    def node(self) -> Node:
        return Node(
            name="n0",
            cluster="gpus",
            created_at=self.now(),
            updated_at=self.now(),
            instance="n0",
            host="n0",
            status=NodeStatus.AVAILABLE,
            gpus=8,
            connected=True,
            boot_id=f"boot{self.machine.boot}",
        )

    def passes(self) -> None:
        self.world.run_until(self.world.now + 10)

    def tasks(self) -> int:
        return sum(task.alive for task in self.machine.tasks)

    def program_ends(self, task_id: str, code: int) -> None:
        self.world.fail(self.world.tasks[task_id], code, "")

    def breaks(self) -> None:
        self.machine.fault = "reboot"

    def disconnects(self) -> None:
        self.world.agent_away(self.machine, 1e9)

    def connects(self) -> None:
        self.world.agent_back(self.machine)

    def boots(self) -> int:
        return self.machine.boot


@contextmanager
def nights(folder: Path) -> Iterator[Behind]:
    yield Nights()


# -- the model -------------------------------------------------------------------------------------------------


class ModelFleet:
    """The modelled cluster is a function of a state; here the state is kept, and refusals are raised."""

    def __init__(self, behind: ModelSearch) -> None:
        self._behind = behind

    def start_task(self, job: Job, order: StartTask, *, again: bool) -> Iterable[Fact]:
        return self._do(job, lambda state: self._behind.model.cluster.start(state, order))

    def check_node(self, job: Job | None, node: Node, order: CheckNode, *, again: bool) -> Iterable[Fact]:
        assert job is not None
        return self._do(job, lambda state: self._behind.model.cluster.check(state, order))

    def stop_task(self, job_id: str, order: StopTask) -> Iterable[Fact]:
        return self._do(None, lambda state: self._behind.model.cluster.stop(state, order))

    def reboot_node(self, node: Node, order: RebootNode, *, again: bool) -> Iterable[Fact]:
        return self._do(None, lambda state: (self._behind.model.cluster.reboot(state, order), ()))

    def label_nodes(self, nodes: Sequence[Node]) -> None:
        """The model has no labels."""

    def observe_job(self, job: Job) -> Iterable[Fact]:
        self._behind.state = self._behind.state.with_job(job)
        return self._behind.model.cluster.observe(self._behind.state)

    def observe_nodes(self, nodes: Sequence[Node]) -> Iterable[tuple[str, Fact]]:
        raise NotImplementedError("the model has no node that no job holds")

    def _do(self, job: Job | None, act: Callable[[Any], tuple[Any, tuple[Fact, ...]]]) -> list[Fact]:
        state = self._behind.state if job is None else self._behind.state.with_job(job)
        self._behind.state, facts = act(state)
        for fact in facts:
            if isinstance(fact, StartRefused | CheckRefused):
                raise ClusterRefused("n0", fact.reason)
        return list(facts)


class ModelSearch:
    spec = JobSpec()

    def __init__(self) -> None:
        from testbed.model.bounds import Bounds
        from testbed.model.model import T0, Model
        from testbed.model.state import State
        from testbed.model.world import Machine

        self.model = Model(Bounds(nodes=1, slow_start=True))
        self.verdict = "healthy"
        self.fleet: Fleet = ModelFleet(self)
        job = submit(
            job_id="j", cluster="c", spec=self.spec, nodes=[self._node(T0)], policy=POLICY, at=T0, check=False
        ).job
        self.state = State(job, (Machine(),), T0, self.model.bounds.left)

    @staticmethod
    def _node(at: datetime, boot: int = 0) -> Node:
        return Node(
            name="n0",
            cluster="c",
            created_at=at,
            updated_at=at,
            status=NodeStatus.AVAILABLE,
            gpus=8,
            gpus_seen=8,
            seen_version=1,
            connected=True,
            boot_id=f"boot{boot}",
        )

    def now(self) -> datetime:
        return self.state.now

    def node(self) -> Node:
        return self._node(self.state.now, self.state.machines[0].sight.boot)

    def passes(self) -> None:
        """A friendly world does the next thing that it does by itself."""
        from testbed.model.moves import moves

        self.state = replace(self.state, now=self.state.now + timedelta(seconds=1))
        for move in moves(self.model, self.state):
            if move.helps:
                label, state = list(move.act())[-1]
                if " finds: " not in label or label.endswith(self.verdict):
                    self.state = state
                    return

    def tasks(self) -> int:
        (machine,) = self.state.machines
        return sum(run.alive for run in machine.runs) + sum(check.alive for check in machine.checks)

    def program_ends(self, task_id: str, code: int) -> None:
        (machine,) = self.state.machines
        end = {0: "done", 1: "suspect"}[code]
        runs = tuple(
            run._replace(alive=False, end=end, at=self.now()) if run.id == task_id else run
            for run in machine.runs
        )
        self.state = self.state.with_machine(0, replace(machine, runs=runs))

    def breaks(self) -> None:
        self.verdict = "reboot"

    def disconnects(self) -> None:
        from testbed.model.world import sight

        self.state = self.state.with_machine(0, sight(self.state.machines[0], connected=False))

    def connects(self) -> None:
        from testbed.model.world import sight

        self.state = self.state.with_machine(0, sight(self.state.machines[0], connected=True))

    def boots(self) -> int:
        boot: int = self.state.machines[0].sight.boot
        return boot


@contextmanager
def model(folder: Path) -> Iterator[Behind]:
    yield ModelSearch()


FLEETS: dict[str, Callable[[Path], Any]] = {
    "embedded": embedded,
    "ecs": ecs,
    "nights": nights,
    "model": model,
}
