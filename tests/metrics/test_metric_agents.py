from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ecs_gpu_recovery.aws.metric_agents import Agents, ensure_agents
from ecs_gpu_recovery.core.errors import Transient
from ecs_gpu_recovery.core.keys import agents_token
from testbed.aws.cloud import Cloud

CLUSTER = "gpus"
AGENT: dict[str, Any] = {
    "family": "metrics-agent",
    "containerDefinitions": [{"name": "agent", "image": "agent:1", "cpu": 64, "memory": 256}],
}


@pytest.fixture
def cloud() -> Cloud:
    made = Cloud(seed=3)
    made.client("ecs").create_cluster(clusterName=CLUSTER)
    made.client("ecs").register_task_definition(**AGENT)
    for number in range(13):
        made.control.add_node(name=f"far-{number}", cluster=CLUSTER, external=True)
    made.control.add_node(name="near", cluster=CLUSTER)
    return made


def ensure(cloud: Cloud, wait_s: float = 60) -> Agents:
    at = datetime.fromtimestamp(cloud.agenda.clock.now(), UTC)
    done = ensure_agents(cloud.client("ecs"), CLUSTER, "metrics-agent", at)  # type: ignore[arg-type]
    cloud.advance(wait_s)
    return done


def arn(cloud: Cloud, node: str) -> str:
    return str(cloud.control.node(node)["arn"])


def running(cloud: Cloud) -> list[str]:
    ecs = cloud.client("ecs")
    arns = ecs.list_tasks(cluster=CLUSTER, startedBy=agents_token(CLUSTER, "metrics-agent"))["taskArns"]
    tasks = ecs.describe_tasks(cluster=CLUSTER, tasks=arns)["tasks"] if arns else []
    return sorted(str(task["containerInstanceArn"]) for task in tasks)


def test_every_external_node_gets_one_and_a_second_call_changes_nothing(cloud: Cloud) -> None:
    far = sorted(arn(cloud, f"far-{number}") for number in range(13))
    first = ensure(cloud)
    assert (sorted(first.started), first.stopped, first.refused) == (far, (), ())
    again = ensure(cloud)
    assert (again.started, again.stopped, sorted(again.present)) == ((), (), far)
    assert running(cloud) == far, "one on each, and none on the EC2 node, where ECS keeps a daemon"


def test_a_new_node_gets_one_by_itself(cloud: Cloud) -> None:
    ensure(cloud)
    cloud.control.add_node(name="new", cluster=CLUSTER, external=True)
    assert ensure(cloud).started == (arn(cloud, "new"),)


def test_an_agent_that_died_is_started_again(cloud: Cloud) -> None:
    ensure(cloud)
    ecs = cloud.client("ecs")
    task = ecs.list_tasks(cluster=CLUSTER, containerInstance=arn(cloud, "far-4"))["taskArns"][0]
    ecs.stop_task(cluster=CLUSTER, task=task)
    cloud.advance(120)
    assert ensure(cloud).started == (arn(cloud, "far-4"),)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [({"exit_code": 3, "after_s": 1}, "exit code 3"), ({"accident": "cannot pull"}, "CannotPull")],
)
def test_one_that_ends_at_once_is_tried_again_every_ten_minutes_and_no_sooner(
    cloud: Cloud, outcome: dict[str, Any], why: str
) -> None:
    cloud.control.script(node="far-4", family="metrics-agent", times=None, **outcome)
    looks = [ensure(cloud) for _ in range(60)]
    assert 4 <= sum(arn(cloud, "far-4") in look.started for look in looks) <= 6
    ((node, said),) = looks[-1].failing
    assert (node, why in said) == (arn(cloud, "far-4"), True)
    assert len(looks[-1].present) == 12, "the others are left alone"


def test_a_new_revision_is_tried_at_once_where_the_old_one_failed(cloud: Cloud) -> None:
    cloud.control.script(node="far-4", family="metrics-agent", times=1, exit_code=3, after_s=1)
    ensure(cloud)
    assert ensure(cloud).started == ()
    cloud.client("ecs").register_task_definition(**AGENT)
    assert arn(cloud, "far-4") in ensure(cloud).started


def test_one_that_ran_for_long_is_back_at_once(cloud: Cloud) -> None:
    cloud.control.script(node="far-4", family="metrics-agent", times=1, exit_code=1, after_s=3600)
    ensure(cloud)
    cloud.advance(3600)
    assert ensure(cloud).started == (arn(cloud, "far-4"),)


def test_of_two_on_one_node_the_older_stays(cloud: Cloud) -> None:
    ensure(cloud)
    ecs = cloud.client("ecs")
    first = ecs.list_tasks(cluster=CLUSTER, containerInstance=arn(cloud, "far-4"))["taskArns"][0]
    twin = ecs.start_task(
        cluster=CLUSTER,
        taskDefinition="metrics-agent",
        containerInstances=[arn(cloud, "far-4")],
        startedBy=agents_token(CLUSTER, "metrics-agent"),
    )["tasks"][0]["taskArn"]
    cloud.advance(60)
    assert ensure(cloud).stopped == (twin,)
    assert ecs.list_tasks(cluster=CLUSTER, containerInstance=arn(cloud, "far-4"))["taskArns"] == [first]


def test_a_new_revision_takes_over(cloud: Cloud) -> None:
    ensure(cloud)
    cloud.client("ecs").register_task_definition(**AGENT)
    moved = ensure(cloud)
    assert (len(moved.stopped), len(moved.started)) == (13, 13)
    cloud.advance(120)
    assert ensure(cloud).started == ()
    assert len(running(cloud)) == 13


def test_a_node_that_is_away_is_left_alone(cloud: Cloud) -> None:
    cloud.hosts.disconnect(cloud.cluster.nodes[arn(cloud, "far-4")])
    assert arn(cloud, "far-4") not in ensure(cloud).started
    cloud.hosts.connect(cloud.cluster.nodes[arn(cloud, "far-4")])
    assert ensure(cloud).started == (arn(cloud, "far-4"),)


def test_a_node_without_room_is_told_and_tried_again(cloud: Cloud) -> None:
    cloud.control.add_node(name="full", cluster=CLUSTER, external=True, memory=100)
    assert [node for node, _ in ensure(cloud).refused] == [arn(cloud, "full")]
    assert [node for node, _ in ensure(cloud).refused] == [arn(cloud, "full")]


def test_a_busy_service_is_no_bug(cloud: Cloud) -> None:
    cloud.knobs.throttle = True

    def without_end() -> None:
        for _ in range(500):
            ensure(cloud, wait_s=0)

    with pytest.raises(Transient):
        without_end()


def test_the_name_of_the_agents_fits_ecs() -> None:
    assert len(agents_token("c" * 255, "f" * 255)) <= 36
    assert agents_token("arn:aws:ecs:eu-west-1:1:cluster/gpus", "f") == agents_token("gpus", "f")
