"""The rung above the reboot, on AWS: an instance that no reboot cures is terminated in its group, and another comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from ecs_gpu_recovery.aws import last_look
from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.model import NodeStatus
from ecs_gpu_recovery.core.node_record import Node
from tests.stories.test_crashes import READS
from tests.stories.test_evidence import BUCKET, keeping
from tests.stories.test_permits import a_person, guard_of
from tests.stories.world import CLUSTER, World, a_world, with_policy

TERMINATE = "terminate_instance_in_auto_scaling_group"
RUNGS = {"admission_check": True, "repair_rungs": "reboot,replace"}


@pytest.fixture
def world() -> Iterator[World]:
    with a_world(policy=with_policy(**RUNGS)) as made:
        yield made


def joins(world: World, name: str, group: str = "gpu-asg", **about: Any) -> None:
    """A free node, in a group or in none."""
    world.cloud.control.add_node(name=name, cluster=CLUSTER, attributes={"node_name": name}, **about)
    world.cloud.control.tag_host(name, {"GpuRecovery": CLUSTER})
    world.cloud.control.put_in_group(name, group)
    world.until(lambda: known(world).get(name) is NodeStatus.AVAILABLE, minutes=10)


def known(world: World) -> dict[str, NodeStatus]:
    return {node.name: node.status for node in world.records().nodes()}


def breaks(world: World, name: str, verdict: int) -> None:
    world.cloud.control.health(name, verdict)
    world.cloud.control.impair(name)


def node(world: World, name: str = "n0") -> Node:
    return world.records().node(name)


def others(world: World) -> list[Node]:
    return [one for one in world.records().nodes() if one.name != "n0"]


def replaced(world: World) -> bool:
    return node(world).condemned[-1:] != () and node(world).condemned[-1].outcome.startswith("replaced by ")


def test_an_instance_that_must_be_replaced_is_and_its_successor_is_examined_first(world: World) -> None:
    joins(world, "n0")
    breaks(world, "n0", 2)
    world.until(lambda: replaced(world), minutes=30)
    (new,) = others(world)
    world.until(lambda: node(world, new.name).status is NodeStatus.AVAILABLE, minutes=10)
    assert (
        node(world, new.name).timeline[0].why == "new, or back from a person: examined before a job gets it"
    )
    assert [entry.after for entry in node(world).timeline if entry.before != entry.after][-3:] == [
        "PENDING_HEALTHCHECK",
        "REBOOTING",
        "UNKNOWN",
    ]
    assert (node(world).deadline, node(world).outbox) == (None, ())
    calls = [action for service, action in world.wire.calls if service == "autoscaling"]
    assert calls == [TERMINATE], "once"
    assert not node(world).reboot_key.startswith("node/n0/reboot")
    (told,) = world.messages()
    assert f"Node n0 was replaced by {new.name}" in told


def test_what_a_machine_knows_is_kept_before_it_is_taken_away(world: World) -> None:
    """Nobody can ask it afterwards."""
    keeping(world)
    world.cloud.documents.put(last_look.name("EcsGpuRecoveryStack"), last_look.content(BUCKET))
    joins(world, "n0")
    breaks(world, "n0", 2)
    world.until(lambda: node(world).status is NodeStatus.UNKNOWN, minutes=30)
    orders = [action for _, action in world.wire.calls if action in ("send_command", TERMINATE)]
    assert orders == ["send_command", TERMINATE]
    (address,) = world.cloud.cluster.kept
    archive = keys.evidence(node(world).reboot_key)
    assert urlsplit(address).path == f"/evidence/n0/{archive}"
    assert ("what its replacement would wipe is kept first", f"gpu-recovery evidence n0: {archive}") in [
        (entry.why, entry.evidence) for entry in node(world).timeline
    ]
    assert world.messages() == [], "that it takes a minute is nobody's trouble"


@pytest.mark.parametrize("trouble", ["it is off", "no document"])
def test_a_machine_that_can_tell_nothing_is_taken_away_all_the_same(world: World, trouble: str) -> None:
    """EC2 tells that it is gone: ECS keeps a machine for ever whose agent was away when it went."""
    keeping(world)
    if trouble == "it is off":
        world.cloud.documents.put(last_look.name("EcsGpuRecoveryStack"), last_look.content(BUCKET))
        world.cloud.control.knobs(command_s=20.0)
    joins(world, "n0")
    breaks(world, "n0", 2)
    if trouble == "it is off":
        world.until(lambda: node(world).status is NodeStatus.REBOOTING, minutes=10)
        world.cloud.control.power_off("n0")
    world.until(lambda: replaced(world), minutes=60)
    assert world.cloud.cluster.kept == []
    assert "gpu-recovery evidence" not in str(node(world).timeline) + str(world.messages())


def goes_one_rung_up(world: World, why: str, minutes: int, **reboot: bool) -> None:
    joins(world, "n0")
    world.cloud.control.next_reboot("n0", **reboot)
    breaks(world, "n0", 1)
    world.until(lambda: replaced(world), minutes=minutes)
    (fault,) = node(world).condemned
    assert fault.repair == "replace"
    assert f"{why}; its machine is replaced" in [entry.why for entry in node(world).timeline]


def test_a_gate_that_fails_goes_one_rung_up_and_never_round(world: World) -> None:
    goes_one_rung_up(world, "the reboot did not cure it", minutes=60, cures=False)


def test_a_machine_that_does_not_come_back_from_its_reboot_goes_one_rung_up(world: World) -> None:
    goes_one_rung_up(world, "did not come back in time", minutes=90, returns=False)
    orders = [action for _, action in world.wire.calls if action in ("send_command", TERMINATE)]
    assert orders == ["send_command", TERMINATE], "a reboot, and then another machine"
    (told,) = world.messages()
    assert f"Node n0 was replaced by {others(world)[0].name}" in told


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"group": ""}, "no Auto Scaling group would start another"),
        ({"external": True}, "is no EC2 instance"),
    ],
    ids=["in no group", "ECS Anywhere"],
)
def test_what_nobody_would_start_again_is_left_to_a_person(world: World, about: Any, why: str) -> None:
    joins(world, "n0", **about)
    breaks(world, "n0", 2)
    world.until(lambda: node(world).status is NodeStatus.FAILED, minutes=30)
    assert why in node(world).findings
    (told,) = world.messages()
    assert "Node n0 failed" in told


def test_without_the_rung_nothing_is_terminated() -> None:
    with a_world(policy=with_policy(admission_check=True)) as world:
        joins(world, "n0")
        breaks(world, "n0", 2)
        world.until(lambda: node(world).status is NodeStatus.FAILED, minutes=30)
        assert not [action for service, action in world.wire.calls if service == "autoscaling"]


def test_no_machine_is_taken_away_in_a_frozen_fleet(world: World) -> None:
    joins(world, "n0")
    a_person(world, "freeze")
    breaks(world, "n0", 2)
    world.until(lambda: bool(guard_of(world).waiting), minutes=10)
    world.pass_time(1200)
    assert (node(world).held, others(world)) == (True, [])
    assert guard_of(world).waiting[0].what == "replace"
    a_person(world, "thaw")
    world.until(lambda: replaced(world), minutes=60)


@pytest.mark.parametrize("notices", ["ECS", "EC2"])
def test_a_machine_that_goes_while_its_replacement_waits_is_not_waited_for(notices: str) -> None:
    """ECS keeps one for ever whose agent was away when it went."""
    with a_world(policy=with_policy(**RUNGS, repairs="ask")) as world:
        joins(world, "n0")
        breaks(world, "n0", 2)
        world.until(lambda: node(world).being_replaced and node(world).held, minutes=30)
        if notices == "EC2":
            world.cloud.control.power_off("n0")
            world.cloud.control.ec2_says("n0", "terminated")
        else:
            world.cloud.control.terminate("n0")
        world.until(lambda: node(world).status is NodeStatus.UNKNOWN, minutes=10)
        joins(world, "ip-new")
        world.until(lambda: replaced(world), minutes=10)
        assert node(world).replaced_by == "ip-new"
        world.until(lambda: not guard_of(world).waiting, minutes=30)
        assert not [action for service, action in world.wire.calls if service == "autoscaling"]


def test_a_successor_that_never_comes_is_told_to_a_person(world: World) -> None:
    """There may be no capacity of this kind."""
    world.cloud.control.knobs(launch_s=-1.0)
    joins(world, "n0")
    breaks(world, "n0", 2)
    world.until(lambda: node(world).status is NodeStatus.UNKNOWN, minutes=30)
    world.until(lambda: node(world).status is NodeStatus.FAILED, minutes=120)
    (told,) = world.messages()
    assert "no other has come in its place" in told


def ends(after: int = 0) -> tuple[list[int], int]:
    """A machine is replaced, and a process dies at a call. The calls that write, and how many processes died."""
    with a_world(policy=with_policy(**RUNGS)) as world:
        keeping(world)
        world.cloud.documents.put(last_look.name("EcsGpuRecoveryStack"), last_look.content(BUCKET))
        joins(world, "n0")
        world.wire.forget()
        world.wire.die_after = after
        breaks(world, "n0", 2)
        world.until(lambda: replaced(world) and not node(world).outbox, minutes=60)
        world.until(lambda: len(known(world)) == 2, minutes=10)
        (new,) = others(world)
        world.until(lambda: node(world, new.name).status is NodeStatus.AVAILABLE, minutes=10)
        assert len(world.cloud.cluster.kept) == 1, "the host tells what it knows once"
        assert 1 <= len(world.messages()) <= 1 + world.wire.deaths
        assert [row["up"] for row in world.cloud.control.nodes()] == [False, True]
        calls = [n for n, (_, action) in enumerate(world.wire.calls, 1) if action not in READS]
        return calls, world.wire.deaths


def test_a_death_while_a_machine_is_replaced_changes_no_end(
    record_property: Callable[[str, object], None],
) -> None:
    points, _ = ends()
    assert {ends(after=number)[1] for number in points} == {1}
    record_property("crash_points", len(points))
