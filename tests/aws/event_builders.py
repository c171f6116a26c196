"""Events made by hand, for the tests of what reads them. Each is valid unless a test says otherwise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ecs_gpu_recovery.core.keys import token

AT = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)
PREFIX = "arn:aws:ecs:us-west-2:111122223333"
TASK_ID = "0f9de17a6465404e8b1b2356dc13c2f8"
INSTANCE = f"{PREFIX}:container-instance/gpu/5bb0e6b4c2a94b1f8f3cf8a9b1a1d0c7"
TRAIN = {"GPU_RECOVERY_KIND": "train", "JOB_ID": "j1", "JOB_ATTEMPT": "1", "NODE_RANK": "2"}
CHECK = {"GPU_RECOVERY_KIND": "check", "GPU_RECOVERY_NODE": "node-a", "GPU_RECOVERY_CHECK_TRY": "3"}


def event(detail_type: str, detail: object, source: str = "aws.ecs", **envelope: object) -> dict[str, Any]:
    made = {
        "version": "0",
        "id": "3d6b1c1e-0001-4c1e-9c57-aa0000000001",
        "detail-type": detail_type,
        "source": source,
        "account": "111122223333",
        "time": "2026-11-15T02:00:00Z",
        "region": "us-west-2",
        "resources": [],
        "detail": detail,
    }
    return {**made, **envelope}


def override(env: dict[str, str], name: str = "main") -> dict[str, Any]:
    return {"name": name, "environment": [{"name": key, "value": value} for key, value in env.items()]}


def container(exit_code: int | None = None, name: str = "main", **more: object) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "lastStatus": "RUNNING" if exit_code is None else "STOPPED", **more}
    return made if exit_code is None else {**made, "exitCode": exit_code}


def task_event(env: dict[str, str] | None = None, **detail: object) -> dict[str, Any]:
    """A task of ours that runs, unless told otherwise."""
    made: dict[str, Any] = {
        "clusterArn": f"{PREFIX}:cluster/gpu",
        "taskArn": f"{PREFIX}:task/gpu/{TASK_ID}",
        "containerInstanceArn": INSTANCE,
        "taskDefinitionArn": f"{PREFIX}:task-definition/train:7",
        "launchType": "EC2",
        "group": "family:train",
        "startedBy": token("j1/1/2/train/1"),
        "lastStatus": "RUNNING",
        "desiredStatus": "RUNNING",
        "containers": [container()],
        "overrides": {"containerOverrides": [override(TRAIN if env is None else env)]},
        "version": 4,
    }
    return event("ECS Task State Change", {**made, **detail})


def stopped(
    *containers: dict[str, Any], env: dict[str, str] | None = None, **detail: object
) -> dict[str, Any]:
    """A task that has ended."""
    made: dict[str, object] = {
        "lastStatus": "STOPPED",
        "desiredStatus": "STOPPED",
        "stopCode": "EssentialContainerExited",
        "stoppedReason": "Essential container in task exited",
        "containers": list(containers),
        "version": 7,
    }
    return task_event(env, **{**made, **detail})


def instance_event(**detail: object) -> dict[str, Any]:
    gpus = [f"GPU-{n}" for n in range(8)]
    made = {
        "clusterArn": f"{PREFIX}:cluster/gpu",
        "containerInstanceArn": INSTANCE,
        "ec2InstanceId": "i-0abcdef1234567890",
        "agentConnected": True,
        "status": "ACTIVE",
        "registeredResources": [
            {"name": "CPU", "type": "INTEGER", "integerValue": 96},
            {"name": "GPU", "type": "STRINGSET", "stringSetValue": gpus},
        ],
        "version": 41,
    }
    return event("ECS Container Instance State Change", {**made, **detail})


def health_event(overall: str, *checks: dict[str, Any]) -> dict[str, Any]:
    detail = {
        "clusterArn": f"{PREFIX}:cluster/gpu",
        "containerInstanceArn": INSTANCE,
        "ec2InstanceId": "i-0abcdef1234567890",
        "overallStatus": overall,
        "healthChecks": list(checks),
    }
    return event("ECS Container Instance Health Change", detail)


def command_event(status: str = "Success", **detail: object) -> dict[str, Any]:
    made = {"command-id": "c-1", "document-name": "Stack-RebootNode", "instance-id": "mi-0aa11bb22cc33dd44"}
    kind = "EC2 Command Invocation Status-change Notification"
    return event(kind, {**made, "status": status, **detail}, source="aws.ssm")
