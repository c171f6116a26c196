"""Ranks that move: how long the control plane takes for it here, and how many calls on AWS.

Here with real processes: a GPU of one node breaks for good, and a spare that was found healthy of late takes its place.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from ecs_gpu_recovery.jobfile import parse
from ecs_gpu_recovery.local.controller import Controller, NodeWish
from ecs_gpu_recovery.local.files import read_json
from ecs_gpu_recovery.local.wiring import LOCAL_POLICY
from tests.stories.queued import running_again
from tests.stories.world import a_world

RANKS, JOBS = 4, 7
PATIENCE_S = 120.0


def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-failover-") as folder:
        return {"failover_control_s": control_s(Path(folder)), "calls_failover_32": calls(32)}


def calls(nodes: int) -> float:
    """From the failing task's event until all ranks run again, one of them on another node."""
    with a_world() as world:
        names = world.add_nodes(nodes + 1, alike=True)
        world.submit(names[:nodes], failover="any")
        world.pass_time(60)
        world.cloud.control.health("n1", 2)
        world.wire.forget()
        world.fail_rank(0)
        world.until(lambda: running_again(world), minutes=60)
        assert world.job().ranks[1].node == names[nodes]
        assert not world.rules_broken, world.rules_broken
        return float(len(world.wire.calls))


def control_s(folder: Path) -> float:
    """From the end of the last check to the last order to start, the median of several jobs."""
    with _controlled(folder) as side:
        return statistics.median(_failover(side, folder, number) for number in range(JOBS))


@contextmanager
def _controlled(folder: Path) -> Iterator[LocalBackend]:
    wishes = [NodeWish(name=f"node-{i}", boot_seconds=0.2) for i in range(RANKS + JOBS)]
    with Controller(folder, nodes=wishes, policy=replace(LOCAL_POLICY, freeze_nodes=1000)) as controller:
        stop = threading.Event()
        loop = threading.Thread(target=controller.run, args=(stop,))
        loop.start()
        side = LocalBackend(folder)
        try:
            _wait(lambda: all(node.connected for node in side.nodes()))
            for i in range(RANKS, RANKS + JOBS):  # a fresh pass on record: it is not examined again
                side.ask_node(f"node-{i}", "spare", why="for the bench")
                side.ask_node(f"node-{i}", "check", why="")
            _wait(lambda: all(node.status is NodeStatus.AVAILABLE for node in side.nodes()))
            yield side
        finally:
            side.close()
            stop.set()
            loop.join()
            controller.parts.cluster.shutdown()


def _failover(side: LocalBackend, folder: Path, number: int) -> float:
    job_id = f"job-{number}"
    train = [sys.executable, "-c", "import time; time.sleep(3600)"]
    request = {"id": job_id, "command": train, "any_nodes": RANKS, "check": "none", "failover": "spares"}
    side.submit(parse(request, python=sys.executable))
    _wait(lambda: all(rank.live for rank in side.job(job_id).ranks))
    victim = side.job(job_id).ranks[0].node
    side.inject(victim, "permanent")
    _wait(lambda: side.job(job_id).status is JobStatus.IN_PROGRESS and side.job(job_id).attempt == 1)
    job = side.job(job_id)
    assert victim not in {rank.node for rank in job.ranks}, "it was not left"
    side.stop(job_id, why="measured")
    _wait(lambda: side.job(job_id).status.final)
    tasks = [read_json(str(spec)) or {} for spec in folder.glob("nodes/*/tasks/*/spec.json")]
    starts = [task for task in tasks if (task["job"], task["attempt"], task["kind"]) == (job_id, 1, "train")]
    ends = [
        (read_json(str(spec.parent / "exit.json")) or {})["ended_at"]
        for spec in folder.glob("nodes/*/tasks/*/spec.json")
        if ((task := read_json(str(spec)) or {})["job"], task["kind"]) == (job_id, "check")
    ]
    side.inject(victim, "clear")
    side.ask_node(victim, "release", why="measured")
    last = max(datetime.fromisoformat(start["ordered_at"]) for start in starts)
    return (last - max(map(datetime.fromisoformat, ends))).total_seconds()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)
