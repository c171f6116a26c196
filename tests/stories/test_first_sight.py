"""A machine that joins the cluster becomes a node, and is examined before a job gets it: nobody opens a page first.
One that is terminated is forgotten as quietly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ecs_gpu_recovery.core.model import NodeStatus
from tests.stories.world import CLUSTER, World, a_world, with_policy


@pytest.fixture
def world() -> Iterator[World]:
    with a_world(policy=with_policy(admission_check=True)) as made:
        yield made


def known(world: World) -> dict[str, NodeStatus]:
    return {node.name: node.status for node in world.records().nodes()}


@pytest.mark.parametrize("told", [True, False], ids=["by its event", "by the sweeper alone"])
def test_a_new_machine_is_recorded_examined_and_free(world: World, told: bool) -> None:
    world.events = told
    world.joins("n0")
    if told:
        world.pass_time(1)
        assert known(world) == {"n0": NodeStatus.PENDING_HEALTHCHECK}
    world.until(lambda: known(world) == {"n0": NodeStatus.AVAILABLE}, minutes=10)
    node = world.records().node("n0")
    assert [(e.after, e.why) for e in node.timeline] == [
        ("PENDING_HEALTHCHECK", "new, or back from a person: examined before a job gets it"),
        ("AVAILABLE", "the check found no GPU fault"),
    ]
    assert (node.fresh, node.ip != "", node.passed_at is not None) == (False, True, True)


def test_one_that_could_not_be_tested_is_used_and_marked(world: World) -> None:
    world.joins("n0", health=3)
    world.until(lambda: known(world) == {"n0": NodeStatus.AVAILABLE}, minutes=10)
    assert world.records().node("n0").timeline[-1].why == "not tested: the check gave no answer"


def test_one_that_is_bad_is_repaired_before_its_first_job(world: World) -> None:
    world.joins("n0", health=1)
    world.until(lambda: known(world) == {"n0": NodeStatus.AVAILABLE}, minutes=30)
    assert [each.outcome for each in world.records().node("n0").condemned] == ["cured"]


@pytest.mark.parametrize(
    "about", [{"gpus": 0}, {"tag": ""}, {"tag": "another"}], ids=["no GPU", "no tag", "another's"]
)
def test_machines_that_are_none_of_ours_are_left_alone(world: World, about: dict[str, object]) -> None:
    world.joins("n0", **about)  # type: ignore[arg-type]
    world.until(lambda: world.cloud.agenda.now() % 300 < 10, minutes=10)
    assert known(world) == {}


def test_while_nothing_is_new_a_look_is_one_list_call(world: World) -> None:
    world.joins("n0")
    world.until(lambda: known(world) == {"n0": NodeStatus.AVAILABLE}, minutes=10)
    world.tick()
    calls = len(world.wire.calls)
    world.tick()
    asked = [
        call for call in world.wire.calls[calls:] if "container_instances" in call[1] or call[0] == "ssm"
    ]
    assert asked.count(("ecs", "list_container_instances")) == 1
    assert not [call for call in asked if call[0] == "ssm"]


def test_a_free_node_with_which_ecs_itself_finds_fault_is_repaired(world: World) -> None:
    world.joins("n0")
    world.until(lambda: known(world) == {"n0": NodeStatus.AVAILABLE}, minutes=10)
    world.cloud.control.health("n0", 1)
    world.cloud.control.impair("n0", reason="XID_79")
    world.until(lambda: bool(world.records().node("n0").condemned), minutes=10)
    world.until(lambda: known(world) == {"n0": NodeStatus.AVAILABLE}, minutes=30)
    assert [each.outcome for each in world.records().node("n0").condemned] == ["cured"]


# -- machines that are terminated ---------------------------------------------------------------------------------


def forgotten_at(world: World) -> datetime | None:
    """When DynamoDB deletes the row of n0."""
    at = world.account.rows("node_table")["n0"].get("forget_at")
    return None if at is None else datetime.fromtimestamp(int(at), UTC)


def gone(world: World, *, quietly: bool = False) -> None:
    world.joins("n0")
    world.until(lambda: known(world) == {"n0": NodeStatus.AVAILABLE}, minutes=10)
    if quietly:
        world.cloud.control.disconnect("n0")
        world.pass_time(120)
    world.cloud.control.terminate("n0")


@pytest.mark.parametrize("quietly", [False, True], ids=["ECS says so", "only EC2 says so"])
def test_a_terminated_machine_calls_nobody_and_is_forgotten_after_a_week(world: World, quietly: bool) -> None:
    gone(world, quietly=quietly)
    world.until(lambda: forgotten_at(world) is not None, minutes=40)
    node = world.records().node("n0")
    assert node.away_since is not None
    assert (node.status, node.retired) == (NodeStatus.UNKNOWN, True)
    assert forgotten_at(world) == node.away_since.replace(microsecond=0) + timedelta(days=7)
    assert world.messages() == []


def test_a_machine_in_its_place_is_not_forgotten(world: World) -> None:
    gone(world)
    world.until(lambda: forgotten_at(world) is not None, minutes=40)
    world.cloud.control.add_node(name="n1", cluster=CLUSTER, gpus=8, attributes={"node_name": "n0"})
    world.until(lambda: known(world) == {"n0": NodeStatus.AVAILABLE}, minutes=10)
    assert forgotten_at(world) is None


def test_a_machine_that_is_only_deregistered_keeps_its_record(world: World) -> None:
    world.joins("n0")
    world.until(lambda: known(world) == {"n0": NodeStatus.AVAILABLE}, minutes=10)
    instance = world.records().node("n0").instance
    world.cloud.client("ecs").deregister_container_instance(
        cluster=CLUSTER, containerInstance=instance, force=True
    )
    world.until(lambda: world.records().node("n0").retired, minutes=30)
    world.pass_time(1200)
    world.tick()
    assert forgotten_at(world) is None
    assert world.messages() == []


def test_what_somebody_writes_meanwhile_is_not_forgotten(world: World) -> None:
    (name,) = world.add_nodes(1)
    store, node = world.records(), world.records().node(name)
    store.commit_node(replace(node, ip="10.0.0.9", version=node.version + 1))
    assert not store.forget_node(node, world.now())
    assert store.forget_node(store.node(name), world.now())
