"""The embedded store under load: 1,000 nodes and 100 jobs, a thousand events at once, and how the cost grows.

Growth is a ratio of processor time within one run, taken in turns, so that a busy machine tells the same. It runs in a
process of its own, so that the memory is that of the load and of nothing else.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ecs_gpu_recovery.core.events import Fact, NodeSeen, TaskStarted
from ecs_gpu_recovery.core.model import JobSpec, NodeStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.engine.sweeper import Sweeper
from ecs_gpu_recovery.local.store import SqliteStore
from tools.benches._story import T0, SilentFleet, SilentNotifier

BURST = 1000
BURSTS = 3
AT_ONCE = 8
TURNS = 5
SAMPLE = 100


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    jobs: int
    gang: int = 10


FULL = Size(1000, 100)
SMALL = Size(100, 10)


class World:
    """A store with so many nodes and running jobs, and events to throw at it."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.size = size
        self.store = SqliteStore(folder / f"{size.nodes}-{size.jobs}-{size.gang}.db")
        self.runtime = Runtime(
            store=self.store, fleet=SilentFleet(), notifier=SilentNotifier(), policy=Policy(), dispatch=False
        )
        self.sweeper = Sweeper(self.runtime)
        self.at = T0
        self.turn = 0
        names = [f"n{i:04}" for i in range(size.nodes)]
        with ThreadPoolExecutor(32) as pool:  # many at once share their fsyncs
            list(pool.map(self.store.add_node, map(a_node, names)))
            gangs = [names[i * size.gang : (i + 1) * size.gang] for i in range(size.jobs)]
            list(pool.map(self._begin, enumerate(gangs)))
        self.jobs = [(f"j{i}", gang) for i, gang in enumerate(gangs)]

    def _begin(self, job: tuple[int, list[str]]) -> None:
        number, gang = job
        job_id = f"j{number}"
        self.runtime.submit(
            job_id=job_id, cluster="bench", spec=JobSpec(name="load"), nodes=gang, at=T0, check=False
        )
        started = [
            TaskStarted(at=T0, task_id=f"{job_id}-{rank}", attempt=0, rank=rank, running=True)
            for rank in range(len(gang))
        ]
        self.runtime.handle(job_id, started)

    def news(self, count: int) -> list[tuple[str, Fact]]:
        """Agents that go away and come back, over all jobs: each changes its record."""
        found: list[tuple[str, Fact]] = []
        while len(found) < count:
            self.turn += 1
            at = self.later()
            for rank in range(self.size.gang):
                for job_id, gang in self.jobs:
                    here = bool(self.turn % 2 == 0)
                    found.append((job_id, NodeSeen(at=at, node=gang[rank], connected=here)))
        return found[:count]

    def later(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at

    def handle(self, event: tuple[str, Fact]) -> float:
        began = time.perf_counter()
        self.runtime.handle(event[0], [event[1]])
        return time.perf_counter() - began

    def cost_per_event_s(self) -> float:
        """Processor time of one event, on one thread."""
        events = self.news(SAMPLE)
        began = time.process_time()
        for event in events:
            self.handle(event)
        return (time.process_time() - began) / len(events)

    def cost_of_a_look_s(self) -> float:
        """Processor time of one sweep over everything."""
        began = time.process_time()
        self.sweeper.sweep(self.at)
        return time.process_time() - began


def a_node(name: str) -> Node:
    status = NodeStatus.AVAILABLE
    return Node(
        name=name, cluster="bench", created_at=T0, updated_at=T0, status=status, gpus=8, connected=True
    )


def bursts(world: World) -> dict[str, float]:
    """A thousand events at once, in any order; several times. Latency is that of one event once it has its turn."""
    spent: list[float] = []
    took: list[float] = []
    for number in range(BURSTS):
        events = world.news(BURST)
        random.Random(number).shuffle(events)
        began = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            spent += pool.map(world.handle, events)
        took.append(time.perf_counter() - began)
    spent.sort()
    return {
        "load_events_per_s": BURST / statistics.median(took),
        "load_burst_s": statistics.median(took),
        "load_p50_ms": 1000 * spent[len(spent) // 2],
        "load_p99_ms": 1000 * spent[int(len(spent) * 0.99)],
    }


def growth(folder: Path, full: World) -> dict[str, float]:
    """Each pair differs in one thing, ten times as much of it. 1 means that it costs nothing, 10 that it is linear."""
    sizes = {
        "small": SMALL,
        "nodes": Size(1000, 10),
        "gang": Size(1000, 10, gang=100),
    }
    worlds = {name: World(folder, size) for name, size in sizes.items() if name != "nodes"}
    worlds["nodes"] = World(folder / "nodes", sizes["nodes"])
    worlds["full"] = full
    events: dict[str, list[float]] = {name: [] for name in worlds}
    looks: dict[str, list[float]] = {name: [] for name in worlds}
    for _ in range(TURNS):
        for name, world in worlds.items():
            events[name].append(world.cost_per_event_s())
            looks[name].append(world.cost_of_a_look_s())
    event = {name: statistics.median(found) for name, found in events.items()}
    look = {name: statistics.median(found) for name, found in looks.items()}
    for name in ("small", "nodes", "gang"):
        worlds[name].store.close()
    return {
        "load_growth": event["full"] / event["small"],
        "load_growth_nodes": event["nodes"] / event["small"],
        "load_growth_jobs": event["full"] / event["nodes"],
        "load_growth_gang": event["gang"] / event["nodes"],
        "load_growth_look": look["full"] / look["small"],
        "load_look_ms": 1000 * look["full"],
    }


def rss_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def run() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as place:
        folder = Path(place)
        empty = rss_mb()
        world = World(folder, FULL)
        found = bursts(world)
        found |= {"load_rss_mb": rss_mb(), "load_rss_grown_mb": rss_mb() - empty}
        found |= growth(folder, world)
        world.store.close()
        return found


def measure() -> dict[str, float]:
    told = subprocess.run(
        [sys.executable, "-m", "tools.benches.load"], check=True, stdout=subprocess.PIPE, timeout=600
    )
    found: dict[str, float] = json.loads(told.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(run()))
