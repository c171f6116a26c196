"""The two fleets that exist for tests only, each with one node, behind the same hand as the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from ecs_gpu_recovery.core.effects import CheckNode, RebootNode, ReplaceNode, StartTask, StopTask
from ecs_gpu_recovery.core.errors import ClusterRefused
from ecs_gpu_recovery.core.events import CheckRefused, Fact, StartRefused
from ecs_gpu_recovery.core.job.table import submit
from ecs_gpu_recovery.core.model import Job, JobSpec, Rank
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.ports import Fleet
from tests.contract.fleets import POLICY, Behind
from tests.contract.worlds import a_node

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

    def forge(self, *order: object) -> None: ...


class Nights:
    spec = JobSpec()

    def __init__(self) -> None:
        from testbed.nights.cluster import SimulatedCluster
        from testbed.nights.weather import Weather
        from testbed.nights.world import World

        calm = Weather(nodes=1, jobs=1, work_s=1e6, sweep_s=60, trouble_s=0, tombstones=False, grouped=True)
        self.world = World(calm, Random(1))
        self.machine = self.world.machines["n0"]
        self._came: list[str] = []
        self.world.on_successor = lambda machine: self._came.append(machine.name)
        self.fleet: Fleet = SimulatedCluster(self.world, CalmNight(self.world))  # type: ignore[arg-type]

    def now(self) -> datetime:
        return self.world.time

    def node(self) -> Node:
        boot = f"boot{self.machine.boot}"
        return a_node(
            "n0", created_at=self.now(), updated_at=self.now(), instance="n0", host="n0", boot_id=boot
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

    def successors(self) -> int:
        return len(self._came)


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
        self._behind.state = self._behind.state.with_node(0, node)
        return self._do(None, lambda state: (self._behind.model.cluster.reboot(state, order), ()))

    def replace_node(self, node: Node, order: ReplaceNode, *, again: bool) -> Iterable[Fact]:
        raise ClusterRefused(node.name, "the model takes no machine away without a fault")

    def company(self, node: Node) -> Sequence[str]:
        return ()

    def label_nodes(self, nodes: Sequence[Node]) -> None:
        """The model has no labels."""

    def silence(self, job: Job, since: datetime) -> None:
        """What ranks write is not modelled: the model tells at any moment that they are silent."""

    def keep_hang(self, job: Job, ranks: Sequence[Rank], *, last: bool) -> None:
        """The model has no evidence."""

    def waited_for(self, job: Job, ranks: Sequence[Rank], since: datetime) -> None:
        """The model names no rank."""

    def observe_job(self, job: Job) -> Iterable[Fact]:
        self._behind.state = self._behind.state.with_job(job)
        return self._behind.model.cluster.observe(self._behind.state)

    def observe_nodes(self, nodes: Sequence[Node]) -> Iterable[tuple[str, Fact]]:
        (node,) = nodes
        self._behind.state = self._behind.state.with_node(0, node)
        return [("n0", fact) for fact in self._behind.model.cluster.observe_node(self._behind.state, 0)]

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
        self.state = State(job, (Machine(),), (self._node(T0),), T0, self.model.bounds.left)

    @staticmethod
    def _node(at: datetime, boot: int = 0) -> Node:
        seen = {"gpus_seen": 8, "seen_version": 1, "boot_id": f"boot{boot}"}
        return a_node("n0", cluster="c", created_at=at, updated_at=at, instance="", **seen)

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
