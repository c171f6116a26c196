"""Short words for what most of these tests do."""

from __future__ import annotations

import json
from typing import Any

from ecs_gpu_recovery.aws import reboot_document
from testbed.aws import events
from testbed.aws.cloud import Cloud

CLUSTER = "gpus"
TRAIN: dict[str, Any] = {
    "family": "train",
    "containerDefinitions": [
        {
            "name": "main",
            "image": "train:1",
            "cpu": 1024,
            "memory": 4096,
            "resourceRequirements": [{"type": "GPU", "value": "8"}],
        },
        {"name": "log-router", "image": "fluent-bit", "cpu": 64, "memory": 64, "essential": False},
    ],
}
REBOOT = reboot_document.name("test")


def make_document(cloud: Cloud) -> None:
    """As a deployment does it."""
    content = json.dumps(reboot_document.content())
    cloud.client("ssm").create_document(Name=REBOOT, Content=content, DocumentType="Command")


def overrides(**env: str) -> dict[str, Any]:
    pairs = [{"name": name, "value": value} for name, value in env.items()]
    return {"containerOverrides": [{"name": "main", "environment": pairs}]}


def start(cloud: Cloud, node: str = "n0", **request: Any) -> str:
    """A task on a node, running. Its ARN."""
    reply = try_start(cloud, node, **request)
    assert not reply["failures"], reply["failures"]
    cloud.advance(0.1)
    return str(reply["tasks"][0]["taskArn"])


def try_start(cloud: Cloud, node: str = "n0", **request: Any) -> dict[str, Any]:
    arn = cloud.control.node(node)["arn"]
    asked = {"cluster": CLUSTER, "taskDefinition": "train", "containerInstances": [arn], **request}
    return cloud.client("ecs").start_task(**asked)


def reason(reply: dict[str, Any]) -> str:
    assert not reply["tasks"]
    return str(reply["failures"][0]["reason"])


def task(cloud: Cloud, arn: str) -> dict[str, Any]:
    reply = cloud.client("ecs").describe_tasks(cluster=CLUSTER, tasks=[arn])
    assert not reply["failures"], reply["failures"]
    found: dict[str, Any] = reply["tasks"][0]
    return found


def instance(cloud: Cloud, node: str = "n0") -> dict[str, Any]:
    arn = cloud.control.node(node)["arn"]
    reply = cloud.client("ecs").describe_container_instances(cluster=CLUSTER, containerInstances=[arn])
    found: dict[str, Any] = reply["containerInstances"][0]
    return found


def resource(shown: dict[str, Any], which: str, name: str) -> Any:
    row = next(row for row in shown[which] if row["name"] == name)
    return row["stringSetValue"] if row["type"] == "STRINGSET" else row["integerValue"]


def order_reboot(cloud: Cloud, node: str = "n0", key: str = "k1", **request: Any) -> str:
    """The id of the command."""
    reply = cloud.client("ssm").send_command(
        DocumentName=REBOOT,
        InstanceIds=[cloud.control.node(node)["host_id"]],
        Parameters=reboot_document.arguments(REBOOT, CLUSTER, key),
        Comment=f"gpu-recovery {key}",
        **request,
    )
    return str(reply["Command"]["CommandId"])


def invocation(cloud: Cloud, command: str, node: str = "n0") -> dict[str, Any]:
    host = cloud.control.node(node)["host_id"]
    return cloud.client("ssm").get_command_invocation(CommandId=command, InstanceId=host)


def statuses(cloud: Cloud, arn: str) -> list[tuple[int, str, str]]:
    """Version, status and desired status, as the events of a task told them."""
    details = [e["detail"] for e in cloud.control.events(delivered=True) if e["detail-type"] == events.TASK]
    return [(d["version"], d["lastStatus"], d["desiredStatus"]) for d in details if d["taskArn"] == arn]


def sightings(cloud: Cloud, node: str = "n0") -> list[tuple[int, bool, str, int]]:
    """Version, connected, status and free GPUs, as the events of an instance told them."""
    arn = cloud.control.node(node)["arn"]
    details = [
        e["detail"] for e in cloud.control.events(delivered=True) if e["detail-type"] == events.INSTANCE
    ]
    return [
        (d["version"], d["agentConnected"], d["status"], len(resource(d, "remainingResources", "GPU")))
        for d in details
        if d["containerInstanceArn"] == arn
    ]
