"""Which events a rule lets through. The small matcher here knows the operators that the rules use, as AWS
describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.aws.strangers import STRANGERS

if TYPE_CHECKING:
    from tests.infra.stacks import Made

CLUSTER = "arn:aws:ecs:us-east-1:123456789012:cluster/gpu-cluster"
FAMILY = "arn:aws:ecs:us-east-1:123456789012:task-definition/"
PSEUDO = {"AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": "123456789012"}


def matches(pattern: Any, event: Any) -> bool:
    """An object: every field must match. A list: one of its entries must."""
    if isinstance(pattern, dict):
        return all(matches(wanted, event.get(key)) for key, wanted in pattern.items())
    return any(_one(entry, event) for entry in pattern)


def _one(entry: Any, value: Any) -> bool:
    if not isinstance(entry, dict):
        return bool(value == entry)
    ((operator, operand),) = entry.items()
    if operator == "exists":
        return (value is not None) is operand
    if value is None:
        return False
    if operator == "prefix":
        return isinstance(value, str) and value.startswith(operand)
    assert operator == "anything-but"
    return not (_one(operand, value) if isinstance(operand, dict) else value in operand)


def resolved(value: Any) -> Any:
    if isinstance(value, dict) and "Fn::Join" in value:
        return "".join(
            part if isinstance(part, str) else PSEUDO[part["Ref"]] for part in value["Fn::Join"][1]
        )
    if isinstance(value, dict):
        return {key: resolved(inner) for key, inner in value.items()}
    return [resolved(inner) for inner in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def rules(stack: Made) -> dict[str, Any]:
    """The pattern of each function's rules."""
    found: dict[str, Any] = {}
    for rule in stack.properties("AWS::Events::Rule"):
        (target,) = rule["Targets"]
        queue = stack.name(target["Arn"])
        found.setdefault(queue.removeprefix("Queues")[:-8], []).append(resolved(rule["EventPattern"]))
    return found


def takers(rules: dict[str, Any], event: dict[str, Any]) -> list[str]:
    return sorted(name for name, patterns in rules.items() if any(matches(p, event) for p in patterns))


def task(**detail: Any) -> dict[str, Any]:
    said = {"clusterArn": CLUSTER, "lastStatus": "STOPPED", "taskDefinitionArn": FAMILY + "train:4"}
    said["group"] = "family:train"
    said.update(detail)
    return {"source": "aws.ecs", "detail-type": "ECS Task State Change", "detail": said}


CHECK = FAMILY + "gpu-dcgm-health-check:11"
BETWEEN = ("PROVISIONING", "PENDING", "ACTIVATING", "DEACTIVATING", "STOPPING", "DEPROVISIONING")


@pytest.mark.parametrize(
    ("detail", "takes"),
    [
        *(({"lastStatus": status}, "EcsTaskHandler") for status in ("RUNNING", "STOPPED")),
        *(({"lastStatus": status}, "") for status in BETWEEN),
        ({"taskDefinitionArn": CHECK, "group": "family:gpu-dcgm-health-check"}, "DcgmTaskMonitor"),
        ({"taskDefinitionArn": CHECK, "group": "whatever"}, "DcgmTaskMonitor"),
        ({"taskDefinitionArn": FAMILY + "gpu-dcgm-health-check-2:1"}, "EcsTaskHandler"),
        ({"taskDefinitionArn": FAMILY + "my-gpu-dcgm-health-check:1"}, "EcsTaskHandler"),
        ({"group": "service:web"}, ""),  # nobody's training
        ({"group": None, "taskDefinitionArn": None}, "EcsTaskHandler"),  # an event may leave them out
    ],
)
def test_a_task_goes_to_the_one_function_that_reads_it(
    rules: dict[str, Any], detail: dict[str, Any], takes: str
) -> None:
    assert takers(rules, task(**detail)) == [takes] * bool(takes)


def test_a_neighbour_of_the_cluster_is_not_the_cluster(rules: dict[str, Any]) -> None:
    for cluster in (
        CLUSTER + "-2",
        CLUSTER.replace("gpu-", "big-gpu-"),
        CLUSTER.replace("us-east-1", "us-east-2"),
    ):
        assert takers(rules, task(clusterArn=cluster)) == []
        instance = {"source": "aws.ecs", "detail-type": "ECS Container Instance State Change"}
        assert takers(rules, {**instance, "detail": {"clusterArn": cluster}}) == []


def test_nodes_and_their_commands_go_to_the_instance_monitor(rules: dict[str, Any]) -> None:
    for kind in ("ECS Container Instance State Change", "ECS Container Instance Health Change"):
        event = {"source": "aws.ecs", "detail-type": kind, "detail": {"clusterArn": CLUSTER}}
        assert takers(rules, event) == ["EcsInstanceMonitor"]
    for kind in (
        "EC2 Command Status-change Notification",
        "EC2 Command Invocation Status-change Notification",
    ):
        detail = {"document-name": "EcsGpuRecoveryStack-RebootNode", "status": "Success"}
        event = {"source": "aws.ssm", "detail-type": kind, "detail": detail}
        assert takers(rules, event) == ["EcsInstanceMonitor"]
        others = ("AWS-RunShellScript", "SecondCluster-RebootNode")
        for other in ({"status": "InProgress"}, *({"document-name": name} for name in others)):
            assert takers(rules, {**event, "detail": {**detail, **other}}) == []


def test_what_ec2_takes_away_goes_to_the_instance_monitor(rules: dict[str, Any]) -> None:
    for kind in ("EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation"):
        event = {"source": "aws.ec2", "detail-type": kind, "detail": {"instance-id": "i-1"}}
        assert takers(rules, event) == ["EcsInstanceMonitor"]
        assert takers(rules, {**event, "source": "my.own"}) == []


def test_strangers_events_reach_at_most_the_one_function_that_reads_them(rules: dict[str, Any]) -> None:
    for name, (made, _) in STRANGERS.items():
        detail = {**made.get("detail", {}), "clusterArn": CLUSTER}
        takes = takers(rules, {**made, "detail": detail})
        if "Container Instance" in made.get("detail-type", ""):
            assert takes == ["EcsInstanceMonitor"], name
        elif made.get("detail-type") != "ECS Task State Change" or detail["group"].startswith("service:"):
            assert takes == [], name
        else:
            telling = detail["lastStatus"] in ("RUNNING", "STOPPED")
            assert takes == (["EcsTaskHandler"] if telling else []), name
