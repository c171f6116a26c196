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
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from ..core.events import (
    CheckStarted,
    Fact,
    FaultSeen,
    NodeChecked,
    NodeSeen,
    Origin,
    TaskEnded,
    TaskStarted,
    Tick,
)
from . import event_fields as read
from . import task_end as task
from .event_fields import Malformed
from .reboot_document import is_reboot

#: Stands in a fact for an attempt, a rank or a try that the event does not name. It matches nothing, so such
#: a fact counts only where the record knows the task by its id.
UNKNOWN = -1
#: How `gpu-health watch` signs what it puts on the bus.
WATCH_SOURCE, WATCH_TYPE = "gpu-recovery.watch", "GPU fault seen"
_TOKEN = re.compile(r"gr-[0-9a-f]{16,33}")
_STARTING = ("PROVISIONING", "PENDING", "ACTIVATING", "RUNNING")
_STOPPING = ("DEACTIVATING", "STOPPING", "DEPROVISIONING")
_UNDER_WAY = ("Pending", "InProgress", "Delayed", "Cancelling")
#: What only an answer of the ECS API has at the top.
_ANSWER = frozenset({"tasks", "task", "taskArn", "containerInstances", "containerInstance", "failures"})


class Kind(StrEnum):
    """What an event is to us."""

    TASK = "task"  #: a task changed; a training task, as far as the event can tell
    CHECK = "check"  #: a health check's task changed
    INSTANCE = "instance"  #: how the cluster sees a node
    INSTANCE_HEALTH = "instance-health"  #: what ECS itself thinks of a node's hardware
    FAULT = "fault"  #: what a node's own watch read in its kernel log
    REBOOT_COMMAND = "reboot-command"  #: a command on a host changed; it may be a reboot of ours
    TICK = "tick"  #: the scheduler's minute
    OTHER = "other"  #: an event that tells us nothing
    MALFORMED = "malformed"  #: not an event, or one that lacks what its kind must have


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What one event says. Text is empty, and a number `None`, where the event does not tell."""

    kind: Kind
    why: str  #: a sentence for people
    ours: bool = False  #: the event itself shows that it is ours
    may_be_ours: bool = False  #: it is, or the tables may say so: ask by `task_id`, `instance`, `command_id`
    at: datetime | None = None
    cluster: str = ""
    job: str = ""
    attempt: int | None = None
    rank: int | None = None
    node: str = ""
    instance: str = ""  #: container instance ARN
    called: str = ""  #: the name an instance should be recorded under; only its record can tell whether it is
    host: str = ""  #: EC2 (i-) or managed (mi-) instance id
    task_id: str = ""
    task_arn: str = ""
    origin: Origin = field(default_factory=Origin)  #: of a task
    command_id: str = ""
    status: str = ""  #: of the task, the instance or the command, in AWS's word
    version: int = 0  #: orders the events of one task or instance; 0 means unordered
    end: task.End | None = None  #: a task's end as far as it is known; it counts once there is a fact
    facts: tuple[Fact, ...] = ()  #: those about a node lack its name unless `node` is set: see `about`

    def about(self, node: str) -> tuple[Fact, ...]:
        """The facts, with the node's name filled in where the event did not know it."""
        return tuple(
            replace(fact, node=node)
            if isinstance(fact, CheckStarted | NodeChecked | NodeSeen | FaultSeen) and not fact.node
            else fact
            for fact in self.facts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    at: datetime
    detail: dict[Any, Any]
    resources: list[str]
    cluster: str
    check_family: str


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
            return _ours(
                Parsed(kind=Kind.TICK, why="time to look at the deadlines", at=at, facts=(Tick(at=at),))
            )
        detail = event.get("detail")
        if not isinstance(detail, dict):
            raise Malformed(f"its detail is {read.sort_of(detail)}, not an object")
        resources = read.strings(event.get("resources"))
        family = read.family(check_family)
        return reader(_Event(at=at, detail=detail, resources=resources, cluster=cluster, check_family=family))
    except Malformed as exc:
        return Parsed(kind=Kind.MALFORMED, why=str(exc), at=at)


def _ours(seen: Parsed) -> Parsed:
    return replace(seen, ours=True, may_be_ours=True)


def _not_an_event(thing: dict[Any, Any]) -> str:
    if "detail" not in thing and not _ANSWER.isdisjoint(thing):
        return "an answer of the ECS API, not an event: it has no source and no detail-type"
    return "not an EventBridge event: it has no source or no detail-type"


def _placed(ev: _Event, kind: Kind, sort: str, key: str) -> tuple[Parsed, bool]:
    """Which task or instance it is about, and whether it is in our cluster. `name-2` is not `name`."""
    where = read.arn(ev.detail.get("clusterArn"), "cluster")
    if where is None or where.cluster:
        raise Malformed("its clusterArn is missing or no ARN of a cluster")
    seen = Parsed(kind=kind, why="", at=ev.at, cluster=where.id, version=_version(ev.detail.get("version")))
    if ev.cluster not in ("", where.id, where.text):
        return replace(seen, why=f"happened in cluster {where.id}, not in {ev.cluster}"), False
    about = read.arn(ev.detail.get(key) or next(iter(ev.resources), None), sort)
    if about is None:
        raise Malformed(f"its {key} is missing or no ARN of a {sort}")
    if about.cluster not in ("", where.id):
        raise Malformed(f"its {key} is of cluster {about.cluster}, its clusterArn of {where.id}")
    if sort == "task":
        return replace(seen, task_id=about.id, task_arn=about.text), True
    return replace(seen, instance=about.text, host=read.host(ev.detail.get("ec2InstanceId"))), True


def _version(value: object) -> int:
    return max(0, read.whole(value) or 0)


# -- tasks ---------------------------------------------------------------------------------------------------


def _task(ev: _Event) -> Parsed:
    """Place, then identity, then state. End facts come from STOPPED alone: only then are the GPUs free."""
    detail = ev.detail
    seen, here = _placed(ev, Kind.TASK, "task", "taskArn")
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


def _identified(seen: Parsed, ev: _Event, marks: task.Marks) -> Parsed:
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
        return _ours(replace(seen, kind=Kind.CHECK, job=job, attempt=attempt, rank=rank, node=node, why=why))
    if family and family == ev.check_family and not role:
        why = f"a health check without our marks, which counts only if a record knows {seen.task_id}; it"
        return _ours(replace(seen, kind=Kind.CHECK, why=why))
    if job and (role == "train" or (not role and attempt is not None and rank is not None)):
        why = f"rank {_shown(rank)} of job {job}, attempt {_shown(attempt)},"
        return _ours(replace(seen, job=job, attempt=attempt, rank=rank, why=why))
    named = "its overrides contradict each other" if marks.conflict else "it names no job"
    if _TOKEN.fullmatch(seen.origin.token) or role == "train":
        return _ours(replace(seen, why=f"we started it, but {named}: look task {seen.task_id} up; it"))
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


def _shown(number: int | None) -> str:
    return "unknown" if number is None else str(number)


# -- nodes ---------------------------------------------------------------------------------------------------


def _instance(ev: _Event) -> Parsed:
    """A sighting. One comes with every placement too, so most of them change nothing."""
    seen, here = _placed(ev, Kind.INSTANCE, "container-instance", "containerInstanceArn")
    if not here:
        return seen
    connected, status = ev.detail.get("agentConnected"), read.text(ev.detail.get("status"))
    if not isinstance(connected, bool) or not status:
        raise Malformed("the instance's agentConnected or status is missing")
    gpus, reason = _gpus(ev.detail.get("registeredResources")), read.line(ev.detail.get("statusReason"), 200)
    says = f"the instance is {status}" + (f" ({reason})" if reason else "")
    rows = [row for row in read.members(ev.detail.get("attributes")) if isinstance(row.get("name"), str)]
    said = {str(row["name"]): read.name(row.get("value")) for row in rows}
    fact = NodeSeen(
        at=ev.at,
        node="",
        connected=connected,
        gpus=gpus,
        version=seen.version,
        gone=status in ("INACTIVE", "DEREGISTERING"),
        why="" if status == "ACTIVE" else says,
        instance=seen.instance,
        host=seen.host,
        registered=read.moment(ev.detail.get("registeredAt")),
        called=said.get("node_name", ""),
        address=said.get("ip", ""),
        ibdev=said.get("ibdev", ""),
    )
    why = f"{says}, its agent {'' if connected else 'not '}connected, GPUs registered: {_shown(gpus)}"
    return _ours(replace(seen, status=status, facts=(fact,), why=why, called=fact.called or seen.host))


def _gpus(resources: object) -> int | None:
    """How many GPUs the agent registered. A list without any means none: the driver did not come up."""
    rows = read.members(resources)
    for row in rows:
        if row.get("name") == "GPU":
            listed = row.get("stringSetValue")
            return len(set(read.strings(listed))) if isinstance(listed, list) else None
    return 0 if rows else None


def _instance_health(ev: _Event) -> Parsed:
    """Evidence only: it is recorded, the verdict stays with our check."""
    seen, here = _placed(ev, Kind.INSTANCE_HEALTH, "container-instance", "containerInstanceArn")
    if not here:
        return seen
    overall = read.text(ev.detail.get("overallStatus"))
    bad = [
        " ".join(filter(None, (read.line(row.get(key), 200) for key in ("type", "status", "statusReason"))))
        for row in read.members(ev.detail.get("healthChecks"))
        if row.get("status") == "IMPAIRED"
    ]
    if not overall and not bad:
        raise Malformed("the instance's overallStatus is missing")
    if not bad and overall == "IMPAIRED":
        bad = ["instance health IMPAIRED"]
    evidence = read.line("; ".join(bad), 1000)
    why = f"ECS reports {evidence}" if bad else f"ECS reports {overall}: nothing to record"
    facts = (FaultSeen(at=ev.at, node="", evidence=evidence),) if bad else ()
    return _ours(replace(seen, status=overall, facts=facts, why=why))


def _fault(ev: _Event) -> Parsed:
    """Evidence from a node's own watch, which names its container instance, or else itself."""
    said, node = ev.detail.get("containerInstanceArn"), read.name(ev.detail.get("node"))
    instance = read.arn(said, "container-instance")
    what = read.line(ev.detail.get("what"), 200)
    if not what:
        raise Malformed("it does not say what was seen")
    if instance is None and (said is not None or not node):
        raise Malformed("it names no node, or its containerInstanceArn is no ARN of one")
    cluster = (instance.cluster if instance else "") or read.text(ev.detail.get("cluster"))
    seen = Parsed(
        kind=Kind.FAULT, why="", at=ev.at, cluster=cluster, status=read.text(ev.detail.get("action"))
    )
    if ev.cluster and ev.cluster.rpartition("/")[2] != cluster:
        return replace(seen, why=f"happened in cluster {cluster or '(not named)'}, not in {ev.cluster}")
    line = read.line(ev.detail.get("evidence"), 200)
    fact = FaultSeen(
        at=ev.at,
        node="" if instance else node,
        evidence=f"{what} | {line}" if line else what,
        application=ev.detail.get("application") is True,
    )
    who = "a program at fault" if fact.application else "a fault"
    why = f"the watch on {instance.id if instance else node} saw {who}: {what}"
    where = instance.text if instance else ""
    return _ours(replace(seen, node=fact.node, instance=where, facts=(fact,), why=why))


def _command(ev: _Event) -> Parsed:
    """A command on a host. It proves nothing by itself; the handler asks the fleet for proof of a reboot."""
    command_id, status = read.text(ev.detail.get("command-id")), read.text(ev.detail.get("status"))
    if not command_id or not status:
        raise Malformed("the command's id or status is missing")
    hosts = {found for arn in ev.resources if (found := read.host(arn.rpartition("/")[2]))}
    host = read.host(ev.detail.get("instance-id")) or (hosts.pop() if len(hosts) == 1 else "")
    document, over = read.text(ev.detail.get("document-name")), status.replace(" ", "") not in _UNDER_WAY
    ours = is_reboot(document)
    what_next = "ask the fleet whether it proves a reboot of ours" if over else "not over yet"
    return Parsed(
        kind=Kind.REBOOT_COMMAND,
        why=f"command {command_id} on {host or 'an unnamed host'} is {status}: "
        + (what_next if ours else f"{document or 'its document'} is not what reboots are ordered with"),
        ours=ours,
        may_be_ours=ours,
        at=ev.at,
        command_id=command_id,
        host=host,
        status=status,
    )


_READERS: dict[tuple[str, str], Callable[[_Event], Parsed]] = {
    ("aws.ecs", "ECS Task State Change"): _task,
    ("aws.ecs", "ECS Container Instance State Change"): _instance,
    ("aws.ecs", "ECS Container Instance Health Change"): _instance_health,
    (WATCH_SOURCE, WATCH_TYPE): _fault,
    ("aws.ssm", "EC2 Command Status-change Notification"): _command,
    ("aws.ssm", "EC2 Command Invocation Status-change Notification"): _command,
}
