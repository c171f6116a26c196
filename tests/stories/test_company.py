"""A cluster is shared: no node is rebooted while somebody else's task runs there, and nobody's task is ended for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from ecs_gpu_recovery.core.node.repair import COMPANY, TOLD
from tests.stories.plots import gpu_fault
from tests.stories.world import CLUSTER, World, container


def somebody_runs(world: World, node: str, family: str = "theirs") -> str:
    ecs = world.cloud.client("ecs")
    ecs.register_task_definition(
        family=family, containerDefinitions=[container("theirs", 0) | {"resourceRequirements": []}]
    )
    arn = world.cloud.control.node(node)["arn"]
    reply = ecs.start_task(cluster=CLUSTER, taskDefinition=family, containerInstances=[arn])
    assert not reply["failures"]
    world.pass_time(2)
    return str(reply["tasks"][0]["taskArn"]).rpartition("/")[2]


def boots(world: World) -> int:
    return int(world.cloud.control.node("n1")["boots"])


def test_a_reboot_waits_until_somebody_else_s_task_has_ended(world: World) -> None:
    world.begin(2)
    before, task = boots(world), somebody_runs(world, "n1")
    gpu_fault(world)
    world.until(lambda: world.records().node("n1").held)
    world.until(lambda: world.cloud.agenda.now() % 600 < 10, minutes=20)
    node = world.records().node("n1")
    assert (boots(world), node.status, world.messages()) == (before, NodeStatus.PENDING_HEALTHCHECK, [])
    (line,) = (entry for entry in node.timeline if entry.why == COMPANY)
    assert line.evidence == f"task {task} of theirs"
    assert world.cloud.control.exit_task(task, 0, "")
    world.until(lambda: world.job().attempt == 1 and world.job().status is JobStatus.IN_PROGRESS)
    assert boots(world) == before + 1


def test_after_an_hour_a_person_is_told_once(world: World) -> None:
    world.begin(2)
    before = boots(world)
    somebody_runs(world, "n1")
    gpu_fault(world)
    world.until(lambda: bool(world.messages()), minutes=90)
    (told,) = world.messages()
    assert "n1 waits for its reboot" in told.splitlines()[0]
    world.until(lambda: world.cloud.agenda.now() % 3600 < 10, minutes=70)
    assert (len(world.messages()), boots(world)) == (1, before)
    assert [entry.why for entry in world.records().node("n1").timeline].count(TOLD) == 1


@pytest.mark.parametrize("setting", ["REBOOT_BESIDE", "NODE_DAEMON_TASKS"])
def test_daemons_need_not_be_waited_for(world: World, setting: str) -> None:
    world.settings = replace(world.settings, **{setting: "theirs"})  # type: ignore[arg-type]
    world.new_process()
    world.begin(2)
    before = boots(world)
    somebody_runs(world, "n1")
    gpu_fault(world)
    world.until(lambda: boots(world) == before + 1, minutes=30)
