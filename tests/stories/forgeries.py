"""What a neighbour in the account can have AWS tell of tasks and machines of his own, every field of it chosen badly.

He may run any task definition of the account anywhere in the cluster, with any variables and any `startedBy`, end it in
any way, and register machines under any name. AWS names what he makes, and tells where it runs and what it is.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.exits import our_reason
from ecs_gpu_recovery.core.model import Job, Rank
from tests.stories.arrivals import Event
from tests.stories.world import CHECK, CLUSTER, TRAIN

ARN = "arn:aws:ecs:us-east-1:123456789012"
ELSEWHERE = f"{ARN}:container-instance/{CLUSTER}/{'e' * 32}"
#: How a task can end: exit code, stop code, reason.
ENDS: tuple[tuple[int | None, str, str], ...] = (
    (0, "EssentialContainerExited", "Essential container in task exited"),
    (1, "EssentialContainerExited", "Essential container in task exited"),
    (2, "EssentialContainerExited", ""),
    (139, "EssentialContainerExited", ""),
    (1, "EssentialContainerExited", "OutOfMemoryError: Container killed due to memory usage"),
    (143, "UserInitiated", our_reason("j1", 0, "another rank failed")),
    (143, "UserInitiated", "Task stopped by user"),
    (None, "TaskFailedToStart", "CannotPullContainerError: no such image"),
    (None, "TaskFailedToStart", "RESOURCE:GPU"),
    (None, "TerminationNotice", "Host EC2 (instance i-0) terminated."),
)


def tasks(job: Job, at: str) -> Iterator[tuple[str, Event, bool]]:
    """Tasks that say they are a rank or a check of this job: what is wrong with each, its event, and whether it carries
    the true token, so that it may be stopped as ours."""
    for rank in job.ranks:
        start = keys.start_token(job.id, rank, job.salt)
        check = keys.token(keys.check(job.id, rank), job.salt)
        old = keys.start_token(job.id, rank)
        for origin in _origins(rank, start, TRAIN, old, named=bool(rank.task_id)):
            for env in _ranks(job, rank):
                yield from _told(origin, env, at, "main", start)
        for origin in _origins(rank, check, CHECK, old, named=bool(rank.check_id)):
            for env in _checks(job, rank):
                yield from _told(origin, env, at, "check", start)


def _origins(
    rank: Rank, token: str, family: str, old: str, *, named: bool
) -> Iterator[tuple[str, str, str, str]]:
    """`startedBy`, instance and family: all wrong, and each of them wrong alone. Where the record knows the true id, a
    copy that is right in all three is as wrong."""
    right = (token, rank.instance, family)
    bad = (
        ("cron", "", old, f"gr-{'0' * 32}"),
        (ELSEWHERE, ""),
        ("cron", CHECK if family == TRAIN else TRAIN),
    )
    for place, values in enumerate(bad):
        for value in values:
            chosen = tuple(value if place == i else said for i, said in enumerate(right))
            yield (f"{('token', 'instance', 'family')[place]} {value[-12:]!r}", *chosen)
    yield ("all", "cron", ELSEWHERE, "cron")
    if named:
        yield ("a copy", *right)


def _ranks(job: Job, rank: Rank) -> Iterator[dict[str, str]]:
    base = {"JOB_ID": job.id, "NODE_RANK": str(rank.index), "GPU_RECOVERY_KIND": "train"}
    for attempt in {rank.task_attempt, job.attempt, job.attempt + 1}:
        yield base | {"JOB_ATTEMPT": str(attempt)}
    yield {name: value for name, value in base.items() if name != "GPU_RECOVERY_KIND"} | {
        "JOB_ATTEMPT": str(rank.task_attempt),
        "GPU_RECOVERY_CONTAINER": "main",
    }


def _checks(job: Job, rank: Rank) -> Iterator[dict[str, str]]:
    base = {"GPU_RECOVERY_KIND": "check", "GPU_RECOVERY_NODE": rank.node, "NODE_RANK": str(rank.index)}
    for job_id, check_try in itertools.product(("", job.id), {rank.check_try, rank.check_try + 1}):
        named = {"JOB_ID": job_id} if job_id else {}
        yield base | named | {"GPU_RECOVERY_CHECK_TRY": str(check_try)}
    yield {}


def _told(
    origin: tuple[str, str, str, str], env: dict[str, str], at: str, container: str, start: str
) -> Iterator[tuple[str, Event, bool]]:
    what, token, instance, family = origin
    mine = token == start and env.get("GPU_RECOVERY_KIND", "train") == "train"
    for status, end in (("RUNNING", None), *(("STOPPED", end) for end in ENDS)):
        name = uuid.uuid4().hex
        detail: dict[str, Any] = {
            "clusterArn": f"{ARN}:cluster/{CLUSTER}",
            "taskArn": f"{ARN}:task/{CLUSTER}/{name}",
            "taskDefinitionArn": f"{ARN}:task-definition/{family}:1",
            "lastStatus": status,
            "desiredStatus": status,
            "startedBy": token,
            "group": f"family:{family}",
            "version": 9,
            "containers": [{"name": container, "gpuIds": ["0"]}],
            "overrides": {
                "containerOverrides": [
                    {"name": container, "environment": [{"name": k, "value": v} for k, v in env.items()]}
                ]
            },
        }
        if instance:
            detail["containerInstanceArn"] = instance
        if end is not None:
            code, detail["stopCode"], detail["stoppedReason"] = end
            detail["stoppedAt"] = at
            if code is not None:
                detail["containers"][0]["exitCode"] = code
        said = f"wrong {what}: {env.get('GPU_RECOVERY_KIND', 'unmarked')} {status} {end}"
        yield said, _event("aws.ecs", "ECS Task State Change", at, detail, [detail["taskArn"]]), mine


def instances(job: Job, at: str) -> Iterator[tuple[str, Event]]:
    """Machines of his own that register under the names of our nodes, and say that they are gone, or back."""
    for rank, connected, status, version in itertools.product(
        job.ranks, (True, False), ("ACTIVE", "DRAINING", "INACTIVE"), (1, 10**6)
    ):
        arn = f"{ARN}:container-instance/{CLUSTER}/{uuid.uuid4().hex}"
        for name, gpus in itertools.product((rank.node, rank.host), (0, 8)):
            detail = {
                "clusterArn": f"{ARN}:cluster/{CLUSTER}",
                "containerInstanceArn": arn,
                "ec2InstanceId": "i-0neighbour",
                "agentConnected": connected,
                "status": status,
                "version": version,
                "registeredAt": at,
                "attributes": [{"name": "node_name", "value": name}],
                "registeredResources": [
                    {"name": "GPU", "type": "STRINGSET", "stringSetValue": [f"GPU-{i}" for i in range(gpus)]}
                ],
            }
            event = _event("aws.ecs", "ECS Container Instance State Change", at, detail, [arn])
            yield f"{name} {status} connected={connected} with {gpus} GPUs", event


def others(job: Job, at: str) -> Iterator[tuple[str, Event]]:
    """Commands that are not ours, and whatever the watch's own source can be made to say."""
    for rank, status, document in itertools.product(
        job.ranks,
        ("Success", "Failed", "TimedOut"),
        ("AWS-RunShellScript", "gpu-recovery-reboot-EcsGpuRecoveryStack"),
    ):
        detail = {
            "command-id": str(uuid.uuid4()),
            "document-name": document,
            "instance-id": rank.host,
            "status": status,
            "requested-date-time": at,
        }
        yield (
            f"{document} {status}",
            _event("aws.ssm", "EC2 Command Invocation Status-change Notification", at, detail, []),
        )
    for rank, application in itertools.product(job.ranks, (True, False)):
        detail = {
            "node": rank.node,
            "cluster": CLUSTER,
            "what": "Xid 79: GPU has fallen off the bus",
            "evidence": "NVRM: Xid 79",
            "action": "reboot",
            "application": application,
        }
        yield "a fault", _event("gpu-recovery.watch", "GPU fault seen", at, detail, [])


def _event(source: str, kind: str, at: str, detail: dict[str, Any], resources: list[str]) -> Event:
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "source": source,
        "detail-type": kind,
        "time": at,
        "account": "123456789012",
        "region": "us-east-1",
        "resources": resources,
        "detail": detail,
    }
