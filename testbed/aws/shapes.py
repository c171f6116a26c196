"""How ECS shows tasks and container instances in its answers. Times are numbers; events have them as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .model import Container, Node, Task

AGENT = {"agentHash": "8dfceca6", "agentVersion": "1.105.1", "dockerVersion": "DockerVersion: 25.0.8"}
_PORTS = ("22", "2375", "2376", "51678", "51679")
_ATTRIBUTES = {
    "com.amazonaws.ecs.capability.docker-remote-api.1.44": "",
    "com.amazonaws.ecs.capability.logging-driver.awslogs": "",
    "com.amazonaws.ecs.capability.privileged-container": "",
    "ecs.capability.gpu-driver-version": "580.95.05",
    "ecs.cpu-architecture": "x86_64",
    "ecs.os-type": "linux",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The account and the Region that every name carries."""

    account: str = "123456789012"
    region: str = "us-east-1"

    def arn(self, sort: str, *path: str) -> str:
        return f"arn:aws:ecs:{self.region}:{self.account}:{sort}/{'/'.join(path)}"

    def cluster(self, name: str) -> str:
        return self.arn("cluster", name)


def task_shape(task: Task, place: Place) -> dict[str, Any]:
    """A task as DescribeTasks shows it, with tags."""
    node = task.node
    shape: dict[str, Any] = {
        "attachments": [],
        "attributes": [{"name": "ecs.cpu-architecture", "value": "x86_64"}],
        "clusterArn": place.cluster(node.cluster),
        "connectivity": "CONNECTED" if node.connected else "DISCONNECTED",
        "connectivityAt": task.times.get("connectivityAt", task.created_at),
        "containerInstanceArn": node.arn,
        "containers": [_container_shape(c, task) for c in task.containers],
        "cpu": str(task.holds.cpu),
        "createdAt": task.created_at,
        "desiredStatus": task.desired,
        "enableExecuteCommand": False,
        "group": task.group,
        "healthStatus": "UNKNOWN",
        "lastStatus": task.status,
        "launchType": "EXTERNAL" if node.external else "EC2",
        "memory": str(task.holds.memory),
        "overrides": _overrides_shape(task),
        "tags": [dict(tag) for tag in task.tags],
        "taskArn": task.arn,
        "taskDefinitionArn": task.definition["taskDefinitionArn"],
        "version": task.version,
        **{name: at for name, at in task.times.items() if name != "connectivityAt"},
    }
    if not node.external:
        shape["availabilityZone"] = node.zone
    for name, value in (
        ("startedBy", task.started_by),
        ("stopCode", task.stop_code),
        ("stoppedReason", task.reason),
    ):
        if value:
            shape[name] = value
    return shape


def _container_shape(container: Container, task: Task) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "containerArn": container.arn,
        "cpu": str(container.cpu),
        "healthStatus": "UNKNOWN",
        "image": container.image,
        "lastStatus": container.status,
        "name": container.name,
        "networkBindings": [],
        "networkInterfaces": [],
        "taskArn": task.arn,
    }
    optional = {
        "exitCode": container.exit_code,
        "gpuIds": list(container.gpu_ids) or None,
        "imageDigest": container.digest or None,
        "memory": None if container.memory is None else str(container.memory),
        "memoryReservation": None if container.reservation is None else str(container.reservation),
        "reason": container.reason or None,
        "runtimeId": container.runtime_id or None,
    }
    return shape | {name: value for name, value in optional.items() if value is not None}


def _overrides_shape(task: Task) -> dict[str, Any]:
    """Every container is listed by name, with what was overridden in it."""
    given = {one["name"]: one for one in task.overrides.get("containerOverrides", ())}
    rest = {name: value for name, value in task.overrides.items() if name != "containerOverrides"}
    listed = [dict(given.get(c.name, {"name": c.name})) for c in task.containers]
    return {"containerOverrides": listed, "inferenceAcceleratorOverrides": [], **rest}


def node_shape(node: Node, tasks: Iterable[Task], place: Place) -> dict[str, Any]:
    """A container instance as DescribeContainerInstances shows it, with tags and health."""
    live = [task for task in tasks if not task.over]
    taken = {gpu for task in live for gpu in task.holds.gpus}
    shape: dict[str, Any] = {
        "agentConnected": node.connected,
        "attachments": [],
        "attributes": _attribute_shapes(node),
        "clusterArn": place.cluster(node.cluster),
        "containerInstanceArn": node.arn,
        "ec2InstanceId": node.host_id,
        "pendingTasksCount": sum(task.status != "RUNNING" and task.desired == "RUNNING" for task in live),
        "registeredAt": node.registered_at,
        "registeredResources": _resources(node.cpu, node.memory, _PORTS, node.gpus),
        "remainingResources": _resources(
            node.cpu - sum(task.holds.cpu for task in live),
            node.memory - sum(task.holds.memory for task in live),
            sorted({*_PORTS, *(port for task in live for port in task.holds.ports)}),
            [gpu for gpu in node.gpus if gpu not in taken],
        ),
        "runningTasksCount": sum(task.status == "RUNNING" for task in live),
        "status": node.status,
        "tags": [dict(tag) for tag in node.tags],
        "version": node.version,
        "versionInfo": dict(AGENT),
        "healthStatus": _health(node),
    }
    if node.status_reason:
        shape["statusReason"] = node.status_reason
    return shape


def _attribute_shapes(node: Node) -> list[dict[str, str]]:
    known = dict(_ATTRIBUTES)
    if node.external:
        known["ecs.capability.external"] = ""
    else:
        known |= {"ecs.availability-zone": node.zone, "ecs.instance-type": "p5.48xlarge"}
    named = {**known, **node.attributes}
    return [
        {"name": name, "value": value} if value else {"name": name} for name, value in sorted(named.items())
    ]


def attribute_values(node: Node) -> dict[str, str]:
    """All attributes, built in and custom, for filters."""
    return {row["name"]: row.get("value", "") for row in _attribute_shapes(node)}


def _resources(cpu: int, memory: int, ports: Iterable[str], gpus: Iterable[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"name": "CPU", "type": "INTEGER", "integerValue": cpu},
        {"name": "MEMORY", "type": "INTEGER", "integerValue": memory},
        {"name": "PORTS", "type": "STRINGSET", "stringSetValue": list(ports)},
        {"name": "PORTS_UDP", "type": "STRINGSET", "stringSetValue": []},
        {"name": "GPU", "type": "STRINGSET", "stringSetValue": list(gpus)},
    ]
    return [{"doubleValue": 0.0, "longValue": 0, "integerValue": 0, **row} for row in rows]


def _health(node: Node) -> dict[str, Any]:
    if node.impairment is None:
        return {"overallStatus": "OK", "details": []}
    kind, reason, since = node.impairment
    check = {
        "type": kind,
        "status": "IMPAIRED",
        "statusReason": reason,
        "lastUpdated": since,
        "lastStatusChange": since,
    }
    return {"overallStatus": "IMPAIRED", "details": [check]}
