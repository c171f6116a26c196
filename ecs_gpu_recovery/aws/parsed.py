"""What an event says, whatever it is about, and whether it is of our cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from ..core.events import (
    CheckStarted,
    Fact,
    FaultSeen,
    NodeChecked,
    NodeLeaving,
    NodePulse,
    NodeSeen,
    Origin,
)
from . import event_fields as read
from .event_fields import Malformed
from .task_end import End


class Kind(StrEnum):
    """What an event is to us."""

    TASK = "task"  #: a task changed; a training task, as far as the event can tell
    CHECK = "check"  #: a health check's task changed
    INSTANCE = "instance"  #: how the cluster sees a node
    INSTANCE_HEALTH = "instance-health"  #: what ECS itself thinks of a node's hardware
    FAULT = "fault"  #: what a node's own watch read in its kernel log
    LEAVING = "leaving"  #: EC2 will take a node away, or may
    PULSE = "pulse"  #: what a node's own watch saw its GPUs do
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
    end: End | None = None  #: a task's end as far as it is known; it counts once there is a fact
    facts: tuple[Fact, ...] = ()  #: those about a node lack its name unless `node` is set: see `about`

    def about(self, node: str) -> tuple[Fact, ...]:
        """The facts, with the node's name filled in where the event did not know it."""
        return tuple(
            replace(fact, node=node)
            if isinstance(fact, CheckStarted | NodeChecked | NodeSeen | NodeLeaving | FaultSeen | NodePulse)
            and not fact.node
            else fact
            for fact in self.facts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An envelope, taken apart."""

    at: datetime
    detail: dict[Any, Any]
    resources: list[str]
    cluster: str
    check_family: str


def ours(seen: Parsed) -> Parsed:
    return replace(seen, ours=True, may_be_ours=True)


def placed(ev: Event, kind: Kind, sort: str, key: str) -> tuple[Parsed, bool]:
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


def shown(number: int | None) -> str:
    return "unknown" if number is None else str(number)
