"""What a recovery costs on AWS: calls by size of the gang, by length of the tables, conflicts, and the pace of calls.

Everything is the real code on a simulated ECS and SSM. Calls are counted on tables in memory, and again with queues and
the limits of AWS in virtual time. Conflicts are made on a local AWS, by threads: there a commit takes as long as
it takes. Write units are those of the tables, without their indexes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from ecs_gpu_recovery.aws.items import job_item
from ecs_gpu_recovery.core.errors import VersionConflict
from ecs_gpu_recovery.core.model import Job, JobStatus
from ecs_gpu_recovery.core.node_record import Node
from testbed.aws.server import serve
from tests.aws.test_store_cost import a_bad_night, after_a_hundred_attempts, size
from tests.contract.worlds import a_job, a_node, running
from tests.stories.account import InMemory
from tests.stories.queued import a_queued_world, everybody_dies, queued_recovery, running_again
from tests.stories.world import CHECK, World, a_world

ROOT = Path(__file__).resolve().parents[2]
THREADS = 16
OLD_ROWS = 100_000


def recovery(
    nodes: int, *, concurrent: bool = False, prepare: Callable[[World], None] | None = None
) -> World:
    """From the failing task's event until all ranks run again; one node is rebooted."""
    with a_world() as world:
        world.begin(nodes)
        if prepare is not None:
            prepare(world)
        world.tick()  # as it came by every minute before
        world.concurrent = concurrent
        world.cloud.control.health("n1", 1)
        world.wire.forget()
        world.watch.modified_at.clear()
        world.fail_rank(0)
        world.until(lambda: running_again(world), minutes=30)
        world.watch.check()
        assert not world.rules_broken, world.rules_broken
        return world


def calls() -> dict[str, float]:
    """One process that stays warm and takes event after event; and the worst case, in which each meets a new one."""
    found = {f"calls_recovery_{nodes}": float(len(recovery(nodes).wire.calls)) for nodes in (2, 8, 32, 256)}
    found["calls_recovery_cold_32"] = len(recovery(32, concurrent=True).wire.calls)
    return found


def through_queues() -> dict[str, float]:
    """As it is deployed, within the limits of AWS: one rank fails, one node is rebooted, all run again."""
    found, calls, units = dict[str, float](), dict[int, int](), dict[int, int]()
    for nodes in (2, 8, 32, 256, 1024):
        world = queued_recovery(nodes)
        calls[nodes], units[nodes] = len(world.wire.calls), sum(world.limits.units.values())
        found[f"wcu_recovery_{nodes}"] = units[nodes]
        found[f"calls_queued_{nodes}"] = calls[nodes]
        if nodes == 256:
            found["commits_recovery_256"] = world.commits
            found["functions_at_once_256"] = world.most_at_once
            found["modify_calls_per_s_256"] = world.watch.most_in_a_second(over=5)
    found["wcu_per_node_growth"] = (units[1024] / 1024) / (units[32] / 32)
    found["calls_per_node"] = (calls[256] - calls[32]) / 224
    return found


def all_at_once(nodes: int = 1024) -> dict[str, float]:
    """Every rank dies within two seconds. The reboot, and the checks before and after it, are not the time of the
    control plane."""
    with a_queued_world() as world:
        seconds = everybody_dies(world, nodes)
        assert not world.dead_letters
    knobs = world.cloud.knobs
    return {f"recovery_{nodes}_control_s": seconds - knobs.reboot_s - 2 * knobs.check_s}


def old_rows(world: World) -> None:
    """Task rows of jobs long gone, and those jobs."""
    account = world.account
    assert isinstance(account, InMemory)
    job = account._tables.rows("ecs_job")["j1"]
    for number in range(OLD_ROWS):
        account.write(
            "task_table", {"ecs_task_id": {"S": f"old-{number:06}"}, "job_id": {"S": f"old-{number // 8:06}"}}
        )
    for number in range(OLD_ROWS // 8):
        kept = {key: value for key, value in job.items() if key not in ("live", "wake_at")}
        account.write(
            "job_table", {**kept, "job_id": {"S": f"old-{number:06}"}, "job_status": {"S": "COMPLETE"}}
        )


def growth() -> dict[str, float]:
    """Calls of a recovery with long tables over the same with short ones."""
    return {
        "calls_growth_rows_100k": len(recovery(4, prepare=old_rows).wire.calls) / len(recovery(4).wire.calls)
    }


def examined(nodes: int) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """The tables of a gang that waits for its verdicts, and the verdicts."""
    with a_world() as world:
        account = world.account
        assert isinstance(account, InMemory)
        world.begin(nodes)
        world.cloud.control.knobs(check_s=600.0)
        world.fail_rank(0)
        world.pass_time(60)
        assert all(rank.check_id for rank in world.job().ranks)
        rows = {role: list(account._tables.rows(name).values()) for role, name in account.tables.items()}
        world.events = False
        world.cloud.advance(700)
        stopped = [
            e for e in world.cloud.control.events() if CHECK in str(e["detail"].get("taskDefinitionArn"))
        ]
        return rows, [e for e in stopped if e["detail"]["lastStatus"] == "STOPPED"]


def conflicts() -> dict[str, float]:
    """All verdicts of a gang of 256 at once, from 16 threads, each with clients of its own."""
    subprocess.run([sys.executable, "-m", "tools.environment", "ministack"], cwd=ROOT, check=True)
    rows, verdicts = examined(256)
    lost: list[int] = []
    with serve(ROOT / ".venv-ministack" / "bin" / "python") as server, a_world(server.url) as world:
        for role, items in rows.items():
            for item in items:
                world.account.write(role, item)
        sides = [world.a_process() for _ in range(THREADS)]
        for side in sides:
            side.fleet._pace.wait = lambda: None  # type: ignore[method-assign]
            commit = side.store.commit

            def counted(old: Job, new: Job, handed: Sequence[Node] = (), commit: Any = commit) -> Job:
                try:
                    return cast(Job, commit(old, new, handed))
                except VersionConflict:
                    lost.append(1)
                    raise

            side.store.commit = counted  # type: ignore[method-assign]
        assert len(verdicts) == 256
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda pair: sides[pair[0] % THREADS].intake.take(pair[1]), enumerate(verdicts)))
        job = world.job()
        assert job.status is JobStatus.FAILED, job.status
        assert all(rank.verdict is not None for rank in job.ranks)
    return {"conflicts_256": len(lost)}


def sizes() -> dict[str, float]:
    """What one job takes of the 400 KB that an item may have."""

    def kilobytes(job: Job) -> float:
        return size(job_item(job, timedelta(minutes=10))) / 1024

    gangs = {nodes: a_job("j1", [a_node(f"n{i:04}") for i in range(nodes)]) for nodes in (256, 1024)}
    full = {f"item_kb_full_{nodes}": kilobytes(a_bad_night(job)) for nodes, job in gangs.items()}
    aged = kilobytes(after_a_hundred_attempts(a_bad_night(gangs[1024])))
    return {"item_kb_256": kilobytes(running(gangs[256])), **full, "item_kb_aged_1024": aged}


def measure() -> dict[str, float]:
    return {**calls(), **through_queues(), **all_at_once(), **growth(), **sizes(), **conflicts()}
