"""Whose command proves a reboot: the one with the stack's document, the order's key, and the node's own host."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ecs_gpu_recovery.aws import reboot_document
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from tests.stories.world import CLUSTER, DOCUMENT, World, a_world

KEY = "j1/1/1/reboot"
COMMENT = f"gpu-recovery {CLUSTER} reboot {KEY}"
SEND = ("ssm", "send_command")


@pytest.fixture
def world() -> Iterator[World]:
    """A job whose second node is to be rebooted, and SSM takes no order of ours yet. All events are delivered."""
    with a_world() as made:
        made.begin(2)
        made.deliver_all = True
        made.finish_attempt(1)
        made.cloud.control.health("n1", 1)
        made.wire.fail_all[SEND] = "ThrottlingException"
        made.fail_rank(0)
        made.until(lambda: made.job().status is JobStatus.PENDING_RESTART)
        yield made


def others_command(world: World, node: str, document: str, parameters: dict[str, list[str]]) -> None:
    """Somebody else in the account sends it, with the words of our order, and it succeeds."""
    if document == "AWS-RunShellScript":
        world.cloud.control.script_result(node, 0)
    host = world.cloud.control.node(node)["host_id"]
    world.cloud.client("ssm").send_command(
        InstanceIds=[host], DocumentName=document, Comment=COMMENT, Parameters=parameters
    )
    world.pass_time(90)


def goes_on_to_the_real_reboot(world: World, boots: int) -> None:
    world.tick()
    assert world.job().ranks[1].node_status is NodeStatus.REBOOTING, "nobody has proven anything"
    assert world.cloud.control.node("n1")["boots"] == boots
    del world.wire.fail_all[SEND]
    assert world.run().status is JobStatus.COMPLETE
    assert world.cloud.control.node("n1")["boots"] == boots + 1
    world.watch.check(spontaneous=1)
    assert world.rules_broken == []


def test_a_command_of_another_document_proves_no_reboot_whatever_its_comment_says(world: World) -> None:
    others_command(world, "n1", "AWS-RunShellScript", {"commands": ["true"]})
    goes_on_to_the_real_reboot(world, boots=1)


def test_another_stacks_order_of_the_same_name_is_not_ours(world: World) -> None:
    """Two stacks in one account, each with a job of this name: each has a document and markers of its own."""
    name = reboot_document.name("Other")
    content = json.dumps(reboot_document.content())
    world.cloud.client("ssm").create_document(Name=name, Content=content, DocumentType="Command")
    others_command(world, "n1", name, reboot_document.arguments(name, CLUSTER, KEY))
    goes_on_to_the_real_reboot(world, boots=2)


def test_our_own_document_on_another_host_proves_nothing_for_this_one(world: World) -> None:
    others_command(world, "n0", DOCUMENT, reboot_document.arguments(DOCUMENT, CLUSTER, KEY))
    goes_on_to_the_real_reboot(world, boots=1)


def test_an_order_that_was_given_up_is_called_back_and_reboots_nobody_later() -> None:
    """The agent dies with the script in hand, and is back when a person has let the node in again."""
    with a_world() as world:
        world.begin(2)
        world.cloud.control.health("n1", 1)
        world.cloud.control.knobs(command_s=30)
        world.fail_rank(0)
        world.until(lambda: world.job().status is JobStatus.PENDING_RESTART)
        world.pass_time(45)
        world.cloud.control.ssm_agent("n1", up=False)
        assert world.run().status is JobStatus.FAILED
        assert world.side.store.node("n1").status is NodeStatus.FAILED
        world.tick()
        world.cloud.control.ssm_agent("n1", up=True)
        world.pass_time(300)
        assert world.cloud.control.node("n1")["boots"] == 1
        (command,) = world.cloud.client("ssm").list_commands()["Commands"]
        assert command["Status"] == "Cancelled"
        assert world.sent("CancelCommand") == 1
