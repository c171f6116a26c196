"""The events that ECS and SSM send, in the shape in which EventBridge delivers them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .model import Node
from .shapes import Place

TASK = "ECS Task State Change"
INSTANCE = "ECS Container Instance State Change"
HEALTH = "ECS Container Instance Health Change"
COMMAND = "EC2 Command Status-change Notification"
INVOCATION = "EC2 Command Invocation Status-change Notification"

#: In the API's answer, but not in the event.
_NOT_IN_TASK_EVENT = frozenset({"tags", "healthStatus"})
_NOT_IN_INSTANCE_EVENT = frozenset(
    {"tags", "healthStatus", "runningTasksCount", "pendingTasksCount", "attachments"}
)
#: Which of a resource's four values counts; the API lists all, the event only that one.
_VALUES = {
    "INTEGER": "integerValue",
    "LONG": "longValue",
    "DOUBLE": "doubleValue",
    "STRINGSET": "stringSetValue",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. A copy of it that is delivered again has the same id, time and content."""

    id: str
    source: str
    detail_type: str
    at: float
    resources: tuple[str, ...]
    detail: dict[str, Any]

    def envelope(self, place: Place) -> dict[str, Any]:
        return {
            "version": "0",
            "id": self.id,
            "detail-type": self.detail_type,
            "source": self.source,
            "account": place.account,
            "time": second(self.at),
            "region": place.region,
            "resources": list(self.resources),
            "detail": self.detail,
        }


def second(at: float) -> str:
    """The time of an envelope: whole seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(at: float) -> str:
    """A time inside `detail`: milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def task_event(event_id: str, at: float, shape: dict[str, Any]) -> Event:
    """From what DescribeTasks would show at this moment."""
    detail = {
        name: moment(value) if name.endswith("At") else value
        for name, value in shape.items()
        if name not in _NOT_IN_TASK_EVENT
    }
    containers = [{k: v for k, v in row.items() if k != "healthStatus"} for row in shape["containers"]]
    overrides = {k: v for k, v in shape["overrides"].items() if k != "inferenceAcceleratorOverrides"}
    detail |= {"containers": containers, "overrides": overrides, "updatedAt": moment(at)}
    return Event(
        id=event_id, source="aws.ecs", detail_type=TASK, at=at, resources=(shape["taskArn"],), detail=detail
    )


def instance_event(event_id: str, at: float, shape: dict[str, Any]) -> Event:
    """From what DescribeContainerInstances would show at this moment."""
    detail = {name: value for name, value in shape.items() if name not in _NOT_IN_INSTANCE_EVENT}
    for name in ("registeredResources", "remainingResources"):
        detail[name] = [
            {"name": row["name"], "type": row["type"], _VALUES[row["type"]]: row[_VALUES[row["type"]]]}
            for row in shape[name]
        ]
    detail |= {"registeredAt": moment(shape["registeredAt"]), "updatedAt": moment(at)}
    arn = shape["containerInstanceArn"]
    return Event(id=event_id, source="aws.ecs", detail_type=INSTANCE, at=at, resources=(arn,), detail=detail)


def health_event(event_id: str, at: float, node: Node, place: Place) -> Event:
    """Instance health as ECS sees it. It has no version: order it by its time, if at all."""
    kind, reason, since = node.impairment or ("CONTAINER_RUNTIME", "", at)
    status = "IMPAIRED" if node.impairment else "OK"
    check = {
        "type": kind,
        "status": status,
        "lastStatusChange": second(since),
        "lastUpdated": second(at),
        "statusReason": reason or None,
    }
    detail = {
        "clusterArn": place.cluster(node.cluster),
        "containerInstanceArn": node.arn,
        "capacityProviderName": None,
        "ec2InstanceId": node.host_id,
        "overallStatus": status,
        "healthChecks": [check],
    }
    return Event(
        id=event_id, source="aws.ecs", detail_type=HEALTH, at=at, resources=(node.arn,), detail=detail
    )


def command_event(event_id: str, at: float, command: dict[str, Any], hosts: list[str], place: Place) -> Event:
    """A command as a whole has a new status."""
    detail = {
        "command-id": command["CommandId"],
        "document-name": command["DocumentName"],
        "expire-after": moment(command["ExpiresAfter"]),
        "parameters": command["Parameters"],
        "requested-date-time": moment(command["RequestedDateTime"]),
        "status": command["Status"],
    }
    resources = tuple(host_arn(host, place) for host in hosts)
    return Event(
        id=event_id, source="aws.ssm", detail_type=COMMAND, at=at, resources=resources, detail=detail
    )


def invocation_event(
    event_id: str, at: float, command: dict[str, Any], host: str, status: str, place: Place
) -> Event:
    """A command has a new status on one host."""
    detail = {
        "command-id": command["CommandId"],
        "document-name": command["DocumentName"],
        "instance-id": host,
        "requested-date-time": moment(command["RequestedDateTime"]),
        "status": status,
    }
    resources = (host_arn(host, place),)
    return Event(
        id=event_id, source="aws.ssm", detail_type=INVOCATION, at=at, resources=resources, detail=detail
    )


def host_arn(host: str, place: Place) -> str:
    if host.startswith("mi-"):
        return f"arn:aws:ssm:{place.region}:{place.account}:managed-instance/{host}"
    return f"arn:aws:ec2:{place.region}:{place.account}:instance/{host}"
