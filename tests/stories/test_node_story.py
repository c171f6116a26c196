"""What happened to a node in the hands of a job is in the node's own record: the runbook sends people there."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.cli.render import print_node, story
from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.plots import gpu_fault
from tests.stories.world import World


def told(world: World, name: str) -> list[str]:
    return [f"{e.before} -> {e.after}" for e in world.side.store.node(name).timeline if e.before != e.after]


def test_a_node_that_was_rebooted_for_its_job_says_so_while_the_job_goes_on(world: World) -> None:
    world.begin(2)
    gpu_fault(world)
    world.until(lambda: world.job().attempt == 1 and world.job().status is JobStatus.IN_PROGRESS)
    assert told(world, "n1") == [
        "AVAILABLE -> ASSIGNED",
        "ASSIGNED -> IN_PROGRESS",
        "IN_PROGRESS -> PENDING",
        "PENDING -> PENDING_HEALTHCHECK",
        "PENDING_HEALTHCHECK -> REBOOTING",
        "REBOOTING -> PENDING_HEALTHCHECK",
        "PENDING_HEALTHCHECK -> AVAILABLE",
        "AVAILABLE -> IN_PROGRESS",
    ]
    (why,) = (e for e in world.side.store.node("n1").timeline if e.after == "REBOOTING")
    assert (why.job, why.attempt) == ("j1", 1)
    assert story(why).endswith("(job j1)")


def test_after_the_job_the_story_is_still_there_and_a_person_can_read_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.begin(2)
    gpu_fault(world)
    world.run()
    assert told(world, "n0")[-1] == "IN_PROGRESS -> AVAILABLE"
    assert told(world, "n1")[-1] == "IN_PROGRESS -> AVAILABLE"
    print_node(world.side.store.node("n1"), world.now())
    shown = " ".join(capsys.readouterr().out.split())
    assert "n1: PENDING_HEALTHCHECK -> REBOOTING" in shown
    assert "taken by job j1" in shown
