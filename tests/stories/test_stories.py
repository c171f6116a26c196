"""The stories people were promised, on the AWS side, whichever rank fails and whichever node is bad."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.world import World

pytestmark = pytest.mark.ministack


def test_a_gpu_fault_is_rebooted_away_and_the_job_completes(world: World) -> None:
    names = world.add_nodes(2)
    world.submit(names)
    world.cloud.control.health("n1", 1)
    world.cloud.control.exit_task(world.task_of(0), 1)
    world.settle(3)
    world.settle(120, 1)
    world.tick()
    job = world.job()
    assert (job.status, job.attempt) == (JobStatus.IN_PROGRESS, 1), job
    for rank in range(2):
        world.cloud.control.exit_task(world.task_of(rank), 0)
    job = world.run()
    assert job.status is JobStatus.COMPLETE
    assert world.node_statuses() == {"n0": "AVAILABLE", "n1": "AVAILABLE"}
    assert world.published() == []
