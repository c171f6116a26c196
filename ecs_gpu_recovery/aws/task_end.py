"""Which of a task's containers did the training, how it ended, and what we wrote on the task at its start."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.model import Verdict
from .event_fields import Malformed, line, member, members, sort_of, text, whole

#: Environment overrides. ECS repeats them in every event of the task, so an event names its own job.
JOB, ATTEMPT, RANK = "JOB_ID", "JOB_ATTEMPT", "NODE_RANK"
ROLE, NODE, CHECK_TRY = "GPU_RECOVERY_KIND", "GPU_RECOVERY_NODE", "GPU_RECOVERY_CHECK_TRY"
CONTAINER, CHECKPOINTS = "GPU_RECOVERY_CONTAINER", "GPU_HEALTH_CHECKPOINTS"
_OURS = frozenset({JOB, ATTEMPT, RANK, ROLE, NODE, CHECK_TRY, CONTAINER, CHECKPOINTS})
#: Helpers that run beside the training; told by their usual names.
_SIDECAR = re.compile(
    r"internal~ecs|service-connect|guardduty|envoy|x-?ray|otel|collector|log.?router|firelens|fluent|vector"
    r"|datadog|cloudwatch|cwagent|exporter|sidecar|proxy|^init|-init$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a task ended, in ECS's words. While it has not, the fields are empty."""

    exit_code: int | None = None
    reason: str = ""  #: the container's and the task's
    stop_code: str = ""

    @property
    def begun(self) -> bool:
        return self.exit_code is not None or bool(self.stop_code)

    def __str__(self) -> str:
        code = "no exit code" if self.exit_code is None else f"exit code {self.exit_code}"
        return f"{code} ({self.reason})" if self.reason else code


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What we wrote into the overrides, and into which containers."""

    env: dict[str, str]
    containers: frozenset[str] = frozenset()
    conflict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Container:
    name: str
    exit_code: int | None
    reason: str
    gpus: bool


def read_marks(detail: dict[Any, Any]) -> Marks:
    """Two values for one name: none is believed, and the task is looked up by its id."""
    env: dict[str, str] = {}
    containers: set[str] = set()
    for override in members(member(detail.get("overrides")).get("containerOverrides")):
        for pair in members(override.get("environment")):
            key, value = pair.get("name"), pair.get("value")
            if not isinstance(key, str) or key not in _OURS or not isinstance(value, str):
                continue
            if env.setdefault(key, value) != value:
                return Marks(env={}, conflict=True)
            containers.add(text(override.get("name")))
    return Marks(env=env, containers=frozenset(containers))


def read_end(detail: dict[Any, Any], marks: Marks) -> End:
    """One reason out of two. The task's own comes first where the first word tells a stop or a refusal."""
    container = _training_container(_containers(detail), marks)
    stop_code, stopped = text(detail.get("stopCode")), line(detail.get("stoppedReason"), 1024)
    inner = container.reason if container else ""
    task_first = stop_code in ("UserInitiated", "TaskFailedToStart")
    parts = (stopped, inner) if task_first else (inner, stopped)
    return End(
        exit_code=container.exit_code if container else None,
        reason="; ".join(part for part in parts if part),
        stop_code=stop_code,
    )


def check_verdict(end: End) -> Verdict:
    """A check speaks by its exit code, if it ended by itself. Stopped, starved or never started: no proof."""
    if end.stop_code not in ("", "EssentialContainerExited") or "outofmemory" in end.reason.lower():
        return Verdict.INCONCLUSIVE
    return Verdict.from_exit_code(end.exit_code)


def _containers(detail: dict[Any, Any]) -> list[_Container]:
    rows = detail.get("containers")
    if rows is None and text(detail.get("stopCode")) == "EssentialContainerExited":
        raise Malformed("a container has exited, but the event lists no containers")
    if rows is not None and not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise Malformed("its containers are no list of objects")
    found = []
    for row in members(rows):
        code = row.get("exitCode")
        if code is not None and whole(code) is None:
            raise Malformed(f"an exit code is {sort_of(code)}, not a whole number")
        found.append(
            _Container(
                name=text(row.get("name")),
                exit_code=whole(code),
                reason=line(row.get("reason"), 1024),
                gpus=bool(row.get("gpuIds")),
            )
        )
    return found


def _training_container(containers: list[_Container], marks: Marks) -> _Container | None:
    """The container whose end is the task's end. Each rule narrows the choice, unless it would leave nothing.

    1. the one we named when we started the task; 2. those that carry our overrides; 3. those that hold GPUs;
    4. those that are no known helper; 5. an end that nobody ordered: a failure before a 0, and either before
    137 and 143, which is how ECS ends the other containers; 6. one that says anything; 7. the first listed.
    """
    told = marks.env.get(CONTAINER)
    rules: tuple[Callable[[_Container], bool], ...] = (
        lambda c: c.name == told,
        lambda c: c.name in marks.containers,
        lambda c: c.gpus,
        lambda c: not _SIDECAR.search(c.name.lower()),
        lambda c: c.exit_code not in (None, 0, 137, 143) or "OutOfMemory" in c.reason,
        lambda c: c.exit_code == 0,
        lambda c: c.exit_code is not None or bool(c.reason),
    )
    for rule in rules:
        containers = [c for c in containers if rule(c)] or containers
    return containers[0] if containers else None
