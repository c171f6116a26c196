"""Events of things that are not a job's: other people's tasks, services, instances, and answers that are no event.

Each with how it must be understood: ours, perhaps ours, its kind, and a word of the reason.
"""

from __future__ import annotations

from typing import Any

from tests.aws.event_builders import container, event, health_event, instance_event, stopped, task_event

Understood = tuple[bool, bool, str, str]
SERVICE = {"group": "service:web", "startedBy": "ecs-svc/1234567890123456789"}
BY_HAND = {"startedBy": "somebody"}
FARGATE = {**BY_HAND, "launchType": "FARGATE", "containerInstanceArn": "", "platformVersion": "1.4.0"}
NEVER_STARTED = {**BY_HAND, "stopCode": "TaskFailedToStart"}


def _task(word: str, made: dict[str, Any]) -> tuple[dict[str, Any], Understood]:
    return made, (False, True, "task", word)


def _of_a_service(made: dict[str, Any]) -> tuple[dict[str, Any], Understood]:
    return made, (False, False, "task", "service")


def _instance(word: str, **detail: object) -> tuple[dict[str, Any], Understood]:
    return instance_event(**detail), (True, True, "instance", word)


def _health(
    word: str, overall: str, kind: str, reason: str | None = None
) -> tuple[dict[str, Any], Understood]:
    check = {"type": kind, "status": overall, "statusReason": reason}
    return health_event(overall, check), (True, True, "instance-health", word)


def _no_event(answer: dict[str, Any]) -> tuple[dict[str, Any], Understood]:
    return answer, (False, False, "malformed", "event")


STRANGERS: dict[str, tuple[dict[str, Any], Understood]] = {
    "an answer about tasks": _no_event({"tasks": [task_event({})["detail"]], "failures": []}),
    "an answer about an instance": _no_event({"containerInstance": instance_event()["detail"]}),
    "a service starts a task": _of_a_service(task_event({}, **SERVICE, lastStatus="PROVISIONING")),
    "a service's task runs": _of_a_service(task_event({}, **SERVICE)),
    "a service's task ends": _of_a_service(stopped(container(99), env={}, **SERVICE)),
    "a service is steady": (
        event("ECS Service Action", {"eventType": "INFO", "eventName": "SERVICE_STEADY_STATE"}),
        (False, False, "other", "ECS Service Action"),
    ),
    "a task waits": _task("exists (PENDING)", task_event({}, **BY_HAND, lastStatus="PENDING")),
    "a task runs": _task("it runs", task_event({}, **BY_HAND)),
    "a task of five containers runs": _task(
        "it runs", task_event({}, **FARGATE, containers=[container(name=f"c{n}") for n in range(5)])
    ),
    "a task ends well": _task("exit code 0", stopped(container(0), env={}, **FARGATE)),
    "a task ends badly": _task("exit code 1 ", stopped(container(1), env={}, **BY_HAND)),
    "a host restarts under a task": _task("exit code 255", stopped(container(255), env={}, **BY_HAND)),
    "a task runs out of memory": _task(
        "OutOfMemoryError",
        stopped(
            container(137, reason="OutOfMemoryError: Container killed due to memory usage"), env={}, **BY_HAND
        ),
    ),
    "an image cannot be pulled": _task(
        "CannotPullContainerError",
        stopped(container(reason="CannotPullContainerError: no such image"), env={}, **NEVER_STARTED),
    ),
    "a secret is missing": _task(
        "ResourceInitializationError",
        stopped(
            container(),
            env={},
            **{**FARGATE, **NEVER_STARTED, "stoppedReason": "ResourceInitializationError: no such secret"},
        ),
    ),
    "a task's variables are its own": _task(
        "counts at STOPPED",
        task_event({"STAGE": "prod"}, **BY_HAND, lastStatus="DEPROVISIONING", containers=[container(0)]),
    ),
    "a spot machine is taken back": _task(
        "is being stopped", task_event({}, **BY_HAND, desiredStatus="STOPPED", stopCode="SpotInterruption")
    ),
    "an instance comes": _instance("GPUs registered: 8"),
    "an instance without GPUs comes": _instance(
        "GPUs registered: 0", registeredResources=[{"name": "CPU", "type": "INTEGER", "integerValue": 2048}]
    ),
    "an instance is drained": _instance("DRAINING", status="DRAINING"),
    "an instance leaves": _instance("INACTIVE", status="INACTIVE", agentConnected=False),
    "an agent is away": _instance("not connected", agentConnected=False),
    "an agent on somebody's own machine is away": _instance(
        "not connected", agentConnected=False, ec2InstanceId="mi-0aa11bb22cc33dd44"
    ),
    "a GPU is impaired": _health(
        "ACCELERATED_COMPUTE IMPAIRED XID_46", "IMPAIRED", "ACCELERATED_COMPUTE", "XID_46"
    ),
    "an agent is impaired": _health("AGENT_CONNECTIVITY IMPAIRED", "IMPAIRED", "AGENT_CONNECTIVITY"),
    "a daemon is impaired": _health("DAEMON IMPAIRED", "IMPAIRED", "DAEMON", "it does not run"),
    "containers run well": _health("nothing to record", "OK", "CONTAINER_RUNTIME"),
}
