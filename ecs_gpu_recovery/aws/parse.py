"""EventBridge JSON in, facts out. Whatever comes in, the answer is a `Parsed`; nothing raises or is guessed.

A handler asks the tables only for what the event could not say:

    seen = parse_event(event, cluster=config.cluster, check_family=config.check_task)
    job = seen.job or (store.job_of_task(seen.task_id) if seen.may_be_ours else None)
    if job and seen.facts:
        runtime.handle(job, seen.facts)

and where no job is named but a node is: `runtime.handle_node(name, seen.about(name))`, with `seen.node` as
the name, or that of the node whose container instance is `seen.instance`.
An event's word about itself is never the last one: the job record must know the task, or be waiting for one of this
origin.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..core.events import CheckStarted, Fact, NodeChecked, Origin, TaskEnded, TaskStarted, Tick
from . import event_fields as read
from . import node_events
from . import task_end as task
from .event_fields import Malformed
from .parsed import Event, Kind, Parsed, ours, placed, shown

#: Stands in a fact for an attempt, a rank or a try that the event does not name. It matches nothing, so such
#: a fact counts only where the record knows the task by its id.
UNKNOWN = -1
#: How `gpu-health watch` signs what it puts on the bus.
WATCH_SOURCE, WATCH_TYPE, PULSE_TYPE = "gpu-recovery.watch", "GPU fault seen", "GPU pulse"
#: How EC2 calls what it tells of instances that it will take away, or may.
SPOT_TYPE, REBALANCE_TYPE = (
    "EC2 Spot Instance Interruption Warning",
    "EC2 Instance Rebalance Recommendation",
)
_TOKEN = re.compile(r"gr-[0-9a-f]{16,33}")
_STARTING = ("PROVISIONING", "PENDING", "ACTIVATING", "RUNNING")
_STOPPING = ("DEACTIVATING", "STOPPING", "DEPROVISIONING")
#: What only an answer of the ECS API has at the top.
_ANSWER = frozenset({"tasks", "task", "taskArn", "containerInstances", "containerInstance", "failures"})


def parse_event(event: object, *, cluster: str = "", check_family: str = "") -> Parsed:
    """Understand an event. `cluster` is a name or an ARN; without one, any cluster's events are taken.

    `check_family` is the health check's task definition: family, family:revision or ARN.
    """
    if not isinstance(event, dict):
        return Parsed(kind=Kind.MALFORMED, why=f"an event is an object; this is {read.sort_of(event)}")
    at = read.moment(event.get("time"))
    try:
        source, detail_type = event.get("source"), event.get("detail-type")
        if not (isinstance(source, str) and source and isinstance(detail_type, str) and detail_type):
            raise Malformed(_not_an_event(event))
        reader = _READERS.get((source, detail_type))
        tick = detail_type == "Scheduled Event" and source in ("aws.scheduler", "aws.events")
        if reader is None and not tick:
            why = f'"{read.line(detail_type, 100)}" from {read.line(source, 100)} tells us nothing'
            return Parsed(kind=Kind.OTHER, why=why, at=at)
        if at is None:
            raise Malformed("its time is missing or no ISO 8601 time, and deadlines are judged by it")
        if reader is None:
            return ours(
                Parsed(kind=Kind.TICK, why="time to look at the deadlines", at=at, facts=(Tick(at=at),))
            )
        detail = event.get("detail")
        if not isinstance(detail, dict):
            raise Malformed(f"its detail is {read.sort_of(detail)}, not an object")
        resources = read.strings(event.get("resources"))
        family = read.family(check_family)
        return reader(Event(at=at, detail=detail, resources=resources, cluster=cluster, check_family=family))
    except Malformed as exc:
        return Parsed(kind=Kind.MALFORMED, why=str(exc), at=at)


def _not_an_event(thing: dict[Any, Any]) -> str:
    if "detail" not in thing and not _ANSWER.isdisjoint(thing):
        return "an answer of the ECS API, not an event: it has no source and no detail-type"
    return "not an EventBridge event: it has no source or no detail-type"


# -- tasks ---------------------------------------------------------------------------------------------------


def _task(ev: Event) -> Parsed:
    """Place, then identity, then state. End facts come from STOPPED alone: only then are the GPUs free."""
    detail = ev.detail
    seen, here = placed(ev, Kind.TASK, "task", "taskArn")
    if not here:
        return seen
    status, desired = read.text(detail.get("lastStatus")), read.text(detail.get("desiredStatus"))
    group, started_by = read.text(detail.get("group")), read.text(detail.get("startedBy"))
    if group.startswith("service:") or started_by.startswith("ecs-svc/"):
        why = f"belongs to a service ({group or started_by}); services are not ours"
        return replace(seen, status=status, why=why)
    if not status:
        raise Malformed("the task's lastStatus is missing")
    instance = read.arn(detail.get("containerInstanceArn"), "container-instance")
    seen = replace(
        seen,
        status=status,
        instance=instance.text if instance else "",
        origin=Origin(
            token=started_by,
            instance=instance.text if instance else "",
            family=read.family(read.text(detail.get("taskDefinitionArn"))),
        ),
    )
    marks = task.read_marks(detail)
    end = task.read_end(detail, marks)
    seen = replace(_identified(seen, ev, marks), end=end if end.begun or status == "STOPPED" else None)
    check = seen.kind is Kind.CHECK
    stopped = read.moment(detail.get("stoppedAt"))
    fact, state = _check_state(seen, end, marks) if check else _task_state(seen, end, desired, stopped)
    return replace(seen, facts=() if fact is None else (fact,), why=f"{seen.why} {state}")


def _identified(seen: Parsed, ev: Event, marks: task.Marks) -> Parsed:
    """Whose task it is. JOB_ID alone is a name that others use too: it takes one more mark to be believed."""
    env, role = marks.env, marks.env.get(task.ROLE, "")
    job, node = read.name(env.get(task.JOB)), read.name(env.get(task.NODE))
    attempt, rank = read.digits(env.get(task.ATTEMPT)), read.digits(env.get(task.RANK))
    family = seen.origin.family
    if role == "check" and ev.check_family not in ("", family):
        return replace(
            seen, why=f"says that it is a health check, but is of the family {family or 'unknown'}; it"
        )
    if role == "check":
        why = f"the health check of {node or 'an unnamed node'}" + (f" for job {job}" if job else "")
        return ours(replace(seen, kind=Kind.CHECK, job=job, attempt=attempt, rank=rank, node=node, why=why))
    if family and family == ev.check_family and not role:
        why = f"a health check without our marks, which counts only if a record knows {seen.task_id}; it"
        return ours(replace(seen, kind=Kind.CHECK, why=why))
    if job and (role == "train" or (not role and attempt is not None and rank is not None)):
        why = f"rank {shown(rank)} of job {job}, attempt {shown(attempt)},"
        return ours(replace(seen, job=job, attempt=attempt, rank=rank, why=why))
    named = "its overrides contradict each other" if marks.conflict else "it names no job"
    if _TOKEN.fullmatch(seen.origin.token) or role == "train":
        return ours(replace(seen, why=f"we started it, but {named}: look task {seen.task_id} up; it"))
    why = f"{named}: ours only if the task table knows {seen.task_id}; it"
    return replace(seen, may_be_ours=True, why=why)


def _task_state(
    seen: Parsed, end: task.End, desired: str, stopped_at: datetime | None
) -> tuple[Fact | None, str]:
    """The fact that a training task's status stands for, and the rest of the sentence."""
    attempt, rank = (UNKNOWN if number is None else number for number in (seen.attempt, seen.rank))
    at = _time_of(seen)
    if seen.status == "STOPPED":
        ended = TaskEnded(
            at=at,
            task_id=seen.task_id,
            attempt=attempt,
            rank=rank,
            exit_code=end.exit_code,
            reason=end.reason,
            stop_code=end.stop_code,
            stopped_at=stopped_at,
            origin=seen.origin,
        )
        return ended, f"has ended: {end}"
    if seen.status in _STARTING:
        running = seen.status == "RUNNING" and desired != "STOPPED" and end.exit_code is None
        says = "runs" if running else f"exists ({seen.status})"
        if desired == "STOPPED":
            says += f" and is being stopped: {end}"
        started = TaskStarted(
            at=at, task_id=seen.task_id, attempt=attempt, rank=rank, running=running, origin=seen.origin
        )
        return started, says
    return None, _waited_for(seen, end)


def _check_state(seen: Parsed, end: task.End, marks: task.Marks) -> tuple[Fact | None, str]:
    """The same for a health check, whose end is its answer."""
    number = read.digits(marks.env.get(task.CHECK_TRY))
    check_try = UNKNOWN if number is None else number
    at = _time_of(seen)
    if seen.status == "STOPPED":
        verdict = task.check_verdict(end)
        checked = NodeChecked(
            at=at,
            node=seen.node,
            check_id=seen.task_id,
            check_try=check_try,
            verdict=verdict,
            findings=read.line(str(end), 300),
            looked=bool(marks.env.get(task.CHECKPOINTS)),
            origin=seen.origin,
        )
        return checked, f"has answered {verdict}: {end}"
    if seen.status in _STARTING:
        started = CheckStarted(
            at=at, node=seen.node, check_id=seen.task_id, check_try=check_try, origin=seen.origin
        )
        return started, "runs" if seen.status == "RUNNING" else f"exists ({seen.status})"
    return None, _waited_for(seen, end)


def _waited_for(seen: Parsed, end: task.End) -> str:
    if seen.status not in _STOPPING:
        return f"is {seen.status}, which tells us nothing"
    noted = f"{end} is noted, but " if end.begun else ""
    return f"is on its way out ({seen.status}): {noted}its end counts at STOPPED, when its GPUs are free"


def _time_of(seen: Parsed) -> datetime:
    assert seen.at is not None  # `parse_event` reads no task without a time
    return seen.at


_READERS: dict[tuple[str, str], Callable[[Event], Parsed]] = {
    ("aws.ecs", "ECS Task State Change"): _task,
    ("aws.ecs", "ECS Container Instance State Change"): node_events.instance,
    ("aws.ecs", "ECS Container Instance Health Change"): node_events.instance_health,
    ("aws.ec2", SPOT_TYPE): node_events.spot_notice,
    ("aws.ec2", REBALANCE_TYPE): node_events.rebalance,
    (WATCH_SOURCE, WATCH_TYPE): node_events.fault,
    (WATCH_SOURCE, PULSE_TYPE): node_events.pulse,
    ("aws.ssm", "EC2 Command Status-change Notification"): node_events.command,
    ("aws.ssm", "EC2 Command Invocation Status-change Notification"): node_events.command,
}
