"""What goes into the embedded cluster and what can be seen of it: orders and read-only views."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from .processes import ProcessId

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class NodeRefused(Exception):
    """The cluster said no. `reason` is one of ECS's words: AGENT, MISSING or RESOURCE:GPU."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class NodeState(StrEnum):
    """How far a node is."""

    OFF = "off"  # powered off, lost, or never powered on: it stays so until it is powered on
    DOWN = "down"  # it should run, but its agent is dead; its tasks may still run
    BOOTING = "booting"  # the agent lives and takes no tasks yet
    READY = "ready"  # the agent lives and takes tasks


class TaskState(StrEnum):
    """How far a task is, as far as its node has told."""

    ABSENT = "absent"  # never ordered here
    PENDING = "pending"  # ordered, not yet started
    RUNNING = "running"  # started; on a node without power this is the last that was heard of it
    ENDED = "ended"  # it will never run again, or never ran


class RebootState(StrEnum):
    """What became of one order to reboot."""

    NONE = "none"  # never ordered
    PENDING = "pending"  # ordered, and the node is not back yet
    DONE = "done"  # the node has booted since the order, and its agent was ready


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One program to run on one node. The id names the order: the same id never runs twice."""

    task_id: str
    kind: str = "train"
    """`train` feels the faults of its GPUs, `check` does not."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    """Where the program starts; None means its own task folder."""
    gpus: int = 0
    memory_mib: int | None = None
    stop_timeout_s: float = 5.0
    job: str = ""
    attempt: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as its folder shows it now."""

    name: str
    folder: Path
    state: NodeState
    why_off: str | None
    kind: str = "simulated"
    boot_id: str | None = None
    gpus_expected: int = 0
    gpus_seen: int = 0
    """Counted by the agent at its boot; 0 before the first one."""
    pid: int | None = None
    since: str | None = None
    """When the agent reached this state."""
    leaving: datetime | None = None
    """When it will be taken away, if that was announced."""
    damaged: bool = False
    """One of its files can't be read; `why_off` names it."""

    @property
    def alike(self) -> str:
        """What makes nodes alike here: all are on one machine, with its GPUs or with simulated ones."""
        return f"embedded {self.kind}"

    @property
    def connected(self) -> bool:
        return self.state is NodeState.READY

    def is_over(self, now: datetime) -> bool:
        """Whether it should have been taken away by now, and was not."""
        return self.leaving is not None and now >= self.leaving and self.state is not NodeState.OFF


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord:
    """What a node's agent says of itself in agent.json."""

    process: ProcessId
    boot_id: str
    state: NodeState
    gpus: int
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as its folder shows it now."""

    task_id: str
    node: str
    state: TaskState
    kind: str | None
    job: str | None
    attempt: int | None
    rank: int | None
    gpus: int
    exit_code: int | None
    reason: str | None
    stop_code: str | None
    stop_ordered: bool
    started_at: str | None
    ended_at: str | None
    folder: Path
    log: Path

    @property
    def live(self) -> bool:
        """Whether it holds its GPUs: ordered and not known to have ended."""
        return self.state in (TaskState.PENDING, TaskState.RUNNING)


def checked_name(what: str, name: str) -> str:
    """A name that is safe as the name of a folder."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} {name!r}: use 1 to 128 letters, digits, '.', '_', '-', the first no sign")
    return name
