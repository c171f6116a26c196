"""The two fleets that people use, with one node each, and a hand on what lies behind them.

One is made of processes on this machine; the other is Amazon ECS and SSM, simulated at their API. The doubles in which
nights and the model search run are in `fleet_doubles`: who tests with a double tests what the double promises as well.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from ecs_gpu_recovery.core import handover
from ecs_gpu_recovery.core.effects import CheckNode, Effect, RebootNode, StartTask, StopTask
from ecs_gpu_recovery.core.events import Fact, NodeSeen, RebootProven, StopAsked
from ecs_gpu_recovery.core.job.table import decide, submit
from ecs_gpu_recovery.core.model import Job, JobSpec
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.core.rows import claimed_node
from ecs_gpu_recovery.engine.ports import Fleet
from tests.contract.worlds import a_node
from tests.embedded.helpers import living

#: Jobs start at once on nodes that were just added.
POLICY = Policy(healthcheck_exit_codes=frozenset({1, 143}), admission_check=False)


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

    def successors(self) -> int:
        """How many machines have come for the node's own."""


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
        self.node = claimed_node(behind.node(), self.job)
        self.given: list[Effect] = [order.effect for order in step.orders]
        self.heard: list[Fact] = []

    def hears(self, facts: Iterable[Fact]) -> list[Fact]:
        told = list(facts)
        for fact in told:
            if isinstance(fact, RebootProven | NodeSeen) and self.node.own:
                self.node = decide_node(self.node, fact, POLICY).node
                continue
            before, step = self.job, decide(self.job, fact, POLICY)
            self.job = step.job
            self.given += [order.effect for order in step.orders]
            held = self.node
            for node in handover.taken(before, self.job, lambda name, held=held: held, POLICY):
                self.node = node
                self.given += [order.effect for order in node.outbox]
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
        return self.hears(self.fleet.reboot_node(self.node, self.order(RebootNode), again=again))

    def looks(self) -> list[Fact]:
        """At the job, and at the node once the job has handed it over."""
        seen = list(self.fleet.observe_job(self.job))
        if self.node.own:
            seen += [fact for _, fact in self.fleet.observe_nodes([self.node])]
        return self.hears(seen)

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
        seen = {"connected": view.connected, "boot_id": view.boot_id or "", "gpus": 2, "gpus_seen": 2}
        return a_node("n0", created_at=self.now(), updated_at=self.now(), instance="n0", **seen)

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

    def successors(self) -> int:
        return 0


@contextmanager
def embedded(folder: Path) -> Iterator[Behind]:
    made = Embedded(folder / "state")
    try:
        yield made
    finally:
        made.fleet.close()  # type: ignore[attr-defined]
        made.cluster.shutdown()
    assert living(made.cluster) == []


# -- Amazon ECS and SSM, simulated at their API ----------------------------------------------------------------


class Ecs:
    def __init__(self, world: Any) -> None:
        self.world = world
        world.events = False
        world.add_nodes(1)
        self.fleet: Fleet = world.side.fleet
        self.spec = JobSpec(task_def="train:1", container="main")
        self.control = world.cloud.control
        self.control.put_in_group("n0", "gpus")
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

    def successors(self) -> int:
        return len(self.control.nodes()) - 1


@contextmanager
def ecs(folder: Path) -> Iterator[Behind]:
    from tests.stories.world import a_world

    with a_world() as world:
        yield Ecs(world)
