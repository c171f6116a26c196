"""A week of simulated failures: the report must say what the simulation knows."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from random import Random

import pytest

from ecs_gpu_recovery.core.model import JobSpec, JobStatus
from ecs_gpu_recovery.ledger import TRAINING, account
from tests.stories.world import CLUSTER, TRAIN, World

NODES, GPUS, DAYS = 4, 8, 7


def trained_s(world: World) -> float:
    """The simulation's own account: from when the last rank of an attempt ran until the first ended."""
    runs: dict[str, dict[str, tuple[datetime, datetime]]] = defaultdict(dict)
    for event in world.seen:
        task = event["detail"]
        if event["detail-type"] == "ECS Task State Change" and task.get("startedAt"):
            (container,) = task["overrides"]["containerOverrides"]
            env = {pair["name"]: pair["value"] for pair in container["environment"]}
            if env["GPU_RECOVERY_KIND"] == "train":
                end = task.get("stoppedAt") or world.now().isoformat()
                span = datetime.fromisoformat(task["startedAt"]), datetime.fromisoformat(end)
                runs[env["JOB_ATTEMPT"]][task["taskArn"]] = span
    spans = [tuple(zip(*gang.values(), strict=True)) for gang in runs.values()]
    return sum((min(ends) - max(starts)).total_seconds() for starts, ends in spans)


def test_the_report_of_a_week_agrees_with_the_simulation(world: World) -> None:
    luck = Random(14)
    spec = JobSpec(name="train", task_def=f"{TRAIN}:1", container="main")
    world.clock.set({"time": world.now().isoformat()})
    world.side.runtime.submit(
        job_id="j1",
        cluster=CLUSTER,
        spec=spec,
        nodes=world.add_nodes(NODES),
        at=world.now(),
        check=False,
        max_retries=50,
    )
    began, faults = world.now(), 0
    while (world.now() - began).days < DAYS:
        world.until(lambda: world.job().status is JobStatus.IN_PROGRESS)
        world.pass_time(luck.uniform(18, 30) * 3600)
        victim = faults % NODES  # no node is condemned three times in a week
        world.cloud.control.health(f"n{victim}", 1)
        world.fail_rank(victim)
        faults += 1
        world.until(lambda faults=faults: world.job().attempt == faults)
    world.until(lambda: world.job().status is JobStatus.IN_PROGRESS)
    told = account([world.job()], world.now())
    whole_h = (world.now() - began).total_seconds() / 3600 * NODES * GPUS
    assert told.total == pytest.approx(whole_h, rel=0.01)
    assert told.hours[TRAINING] == pytest.approx(trained_s(world) / 3600 * NODES * GPUS, rel=0.01)
    assert (len(told.failures), {row.cause for row in told.causes}) == (faults, {"GPU fault"})
    assert {row.rule for row in told.causes} == {"Xid 79"}
