"""The fields of ECS's events as real ones have them, each with the type of its value; and which are always there.

Taken down from events of many accounts. What our simulated nodes never have (network interfaces, Fargate's platform) is
not listed, so a simulated event that had it would be found out too.
"""

from __future__ import annotations

from typing import Any

ENVELOPE: dict[str, Any] = {
    "version": str,
    "id": str,
    "detail-type": str,
    "source": str,
    "account": str,
    "time": str,
    "region": str,
    "resources": [str],
}
_NAMED = [{"name": str, "value": str}]
_RESOURCES = [{"name": str, "type": str, "integerValue": int, "stringSetValue": [str]}]
_CONTAINER = {
    "containerArn": str,
    "cpu": str,
    "exitCode": int,
    "gpuIds": [str],
    "image": str,
    "imageDigest": str,
    "lastStatus": str,
    "managedAgents": [{"name": str, "status": str}],
    "memory": str,
    "name": str,
    "networkBindings": [],
    "networkInterfaces": [],
    "reason": str,
    "runtimeId": str,
    "taskArn": str,
}
TASK = {
    "attachments": [],
    "attributes": _NAMED,
    "availabilityZone": str,
    "clusterArn": str,
    "connectivity": str,
    "connectivityAt": str,
    "containerInstanceArn": str,
    "containers": [_CONTAINER],
    "cpu": str,
    "createdAt": str,
    "desiredStatus": str,
    "enableExecuteCommand": bool,
    "executionStoppedAt": str,
    "group": str,
    "lastStatus": str,
    "launchType": str,
    "memory": str,
    "overrides": {"containerOverrides": [{"name": str, "command": [str], "environment": _NAMED}]},
    "pullStartedAt": str,
    "pullStoppedAt": str,
    "startedAt": str,
    "startedBy": str,
    "stopCode": str,
    "stoppedAt": str,
    "stoppedReason": str,
    "stoppingAt": str,
    "taskArn": str,
    "taskDefinitionArn": str,
    "updatedAt": str,
    "version": int,
}
INSTANCE = {
    "agentConnected": bool,
    "attributes": _NAMED,
    "clusterArn": str,
    "containerInstanceArn": str,
    "ec2InstanceId": str,
    "registeredAt": str,
    "registeredResources": _RESOURCES,
    "remainingResources": _RESOURCES,
    "status": str,
    "updatedAt": str,
    "version": int,
    "versionInfo": {"agentHash": str, "agentVersion": str, "dockerVersion": str},
}
HEALTH = {
    "capacityProviderName": (str, type(None)),
    "clusterArn": str,
    "containerInstanceArn": str,
    "ec2InstanceId": str,
    "healthChecks": [
        {
            "lastStatusChange": str,
            "lastUpdated": str,
            "status": str,
            "statusReason": (str, type(None)),
            "type": str,
        }
    ],
    "overallStatus": str,
}

#: Of those, what an event about a task that has ended, or about an instance, may lack.
SOMETIMES = {
    *(".detail.attributes", ".detail.enableExecuteCommand", ".detail.registeredAt"),
    *(f".detail.containers[].{name}" for name in ("gpuIds", "managedAgents", "memory", "reason")),
    *(f".detail.overrides.containerOverrides[].{name}" for name in ("command", "environment")),
}
