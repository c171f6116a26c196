"""The sweeper's function also keeps the nodes in shape: daemons on external nodes, checks of free ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ecs_gpu_recovery.core.keys import agents_token
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from ecs_gpu_recovery.lambdas import recovery_sweeper
from tests.stories.functions import fresh_process
from tests.stories.world import CHECK, CLUSTER, World, a_world

WATCH, METRICS = "Stack-watch", "Stack-metrics-agent"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The function as it is deployed: told by variables, its clients made by itself, on a simulated cloud."""
    with a_world() as made, fresh_process():
        for family in (WATCH, METRICS):
            container = {"name": family, "image": "image:1", "cpu": 32, "memory": 128}
            made.cloud.client("ecs").register_task_definition(family=family, containerDefinitions=[container])
        told = {
            "ECS_CLUSTER_NAME": CLUSTER,
            "DCGM_HEALTH_CHECK_TASK": CHECK,
            "SNS_TOPIC_ARN": made.account.topic,
            "ADMISSION_CHECK": "false",
        }
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("ecs_gpu_recovery.lambdas.entry.Session", lambda: made.session)
        monkeypatch.setattr("ecs_gpu_recovery.lambdas.entry.real_time", made.now)
        yield made


def tick(world: World, seconds: float = 60.0) -> dict[str, Any]:
    """A minute passes, and the scheduler calls. Events reach the other functions as always."""
    world.pass_time(seconds)
    at = world.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    event = {"source": "aws.scheduler", "detail-type": "Scheduled Event", "time": at, "detail": "{}"}
    return dict(recovery_sweeper.lambda_handler(event, None))


def running(world: World, family: str) -> list[str]:
    """The nodes on which such a daemon runs, once for each."""
    ecs = world.cloud.client("ecs")
    arns = ecs.list_tasks(cluster=CLUSTER, startedBy=agents_token(CLUSTER, family))["taskArns"]
    tasks = ecs.describe_tasks(cluster=CLUSTER, tasks=arns)["tasks"] if arns else []
    names = {node["arn"]: node["name"] for node in world.cloud.control.nodes()}
    return sorted(names[task["containerInstanceArn"]] for task in tasks)


def test_nothing_is_kept_or_examined_unless_it_was_asked_for(world: World) -> None:
    world.add_nodes(4)
    calls = len(world.wire.calls)
    tick(world)
    assert running(world, WATCH) == []
    assert world.wire.calls[calls:].count(("ecs", "list_container_instances")) == 1, "a look for new nodes"
    assert world.tasks("check") == []


def test_every_external_node_runs_one_of_each_daemon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_DAEMON_TASKS", f"{WATCH},{METRICS}")
    names = world.add_nodes(4)
    external = names[1::2]
    for _ in range(3):
        assert tick(world)["taken"]
        world.pass_time(30)
        assert running(world, WATCH) == running(world, METRICS) == external


def test_events_of_daemons_are_nobodys_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_DAEMON_TASKS", WATCH)
    names = world.begin(2)
    before = world.job()
    tick(world)
    world.pass_time(30)
    assert running(world, WATCH) == [names[1]]
    (task,) = [t for t in world.cloud.control.tasks() if t["startedBy"] == agents_token(CLUSTER, WATCH)]
    world.cloud.client("ecs").stop_task(cluster=CLUSTER, task=task["taskArn"])
    world.pass_time(60)
    after = world.job()
    assert (after.status, after.timeline, world.errors) == (before.status, before.timeline, [])


def test_daemons_that_cannot_be_kept_now_hold_up_no_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_DAEMON_TASKS", WATCH)
    world.add_nodes(2)
    world.wire.fail_all[("ecs", "list_container_instances")] = "ThrottlingException"
    assert tick(world)["taken"]
    assert running(world, WATCH) == []
    del world.wire.fail_all[("ecs", "list_container_instances")]
    tick(world)
    world.pass_time(30)
    assert len(running(world, WATCH)) == 1


def examined(world: World) -> dict[str, Verdict | None]:
    return {node.name: node.verdict for node in world.side.store.nodes()}


def asked(world: World) -> dict[str, int]:
    return {
        node.name: sum(entry.after == NodeStatus.PENDING_HEALTHCHECK for entry in node.timeline)
        for node in world.side.store.nodes()
    }


def test_free_nodes_are_examined_in_turn_and_one_that_no_reboot_cures_is_set_aside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDLE_CHECK_MINUTES", "60")
    names = world.add_nodes(3)
    world.cloud.control.health(names[1], verdict=2)
    tick(world)
    assert len(world.tasks("check")) == 1, "one node at a time"
    for _ in range(6):
        tick(world)
    assert examined(world) == {
        names[0]: Verdict.HEALTHY,
        names[1]: Verdict.REPLACE,
        names[2]: Verdict.HEALTHY,
    }
    assert world.node_statuses()[names[1]] == NodeStatus.FAILED
    assert world.sent("SendCommand") == 0, "no reboot cures it"
    assert len(world.messages()) == 1
    assert asked(world) == dict.fromkeys(names, 1)
    for _ in range(45):
        tick(world)
    assert asked(world) == dict.fromkeys(names, 1), "not due again"
    for _ in range(20):
        tick(world)
    assert asked(world) == {names[0]: 2, names[1]: 1, names[2]: 2}, "the one that is set aside is left alone"


def test_a_free_node_that_a_reboot_may_cure_is_rebooted_once_and_nobody_is_called(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDLE_CHECK_MINUTES", "60")
    names = world.add_nodes(3)
    world.cloud.control.health(names[1], verdict=1)
    for _ in range(15):
        tick(world)
    assert world.node_statuses() == dict.fromkeys(names, NodeStatus.AVAILABLE)
    assert world.sent("SendCommand") == 1
    assert world.messages() == []
    assert asked(world) == {**dict.fromkeys(names, 1), "n1": 2}, "its gate"


def test_a_node_that_a_job_holds_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDLE_CHECK_MINUTES", "1")
    world.begin(2)
    for _ in range(3):
        tick(world)
    assert world.tasks("check") == []


def test_the_level_is_passed_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDLE_CHECK_MINUTES", "60")
    monkeypatch.setenv("IDLE_CHECK_LEVEL", "2")
    world.add_nodes(1)
    tick(world)
    (check,) = world.tasks("check")
    assert check["env"]["GPU_HEALTH_LEVEL"] == "2"
