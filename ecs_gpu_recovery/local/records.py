"""What the files of a node and its tasks say. They are read with care: a file that no writer of ours can have left
so is named to a person, and costs only its own node.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TypeVar

from . import processes
from .files import DamagedFile, Json, read_json, read_text
from .views import AgentRecord, NodeState, NodeView, TaskState, TaskView

T = TypeVar("T", str, int)


def node_view(folder: Path) -> NodeView:
    """A node as its files tell. One of them that can't be read is told as the reason why the node is away."""
    try:
        return _view_of_files(folder)
    except (OSError, DamagedFile) as exc:
        return NodeView(name=folder.name, folder=folder, state=NodeState.DOWN, why_off=str(exc), damaged=True)


def _view_of_files(folder: Path) -> NodeView:
    definition = folder / "node.json"
    node = read_json(str(definition)) or {}
    boot = read_boot(folder)
    off, leaving = read_text(str(folder / "off")), read_text(str(folder / "leaving"))
    agent = read_agent(folder)
    lives = agent is not None and processes.is_alive(agent.process)
    if off is not None or boot is None:
        state = NodeState.OFF
    elif agent is None or not lives or agent.boot_id != boot["boot_id"]:
        state = NodeState.DOWN
    else:
        state = agent.state
    return NodeView(
        name=folder.name,
        kind=_needed(definition, node, "kind", str),
        state=state,
        boot_id=boot["boot_id"] if boot else None,
        gpus_expected=_needed(definition, node, "gpus", int),
        gpus_seen=agent.gpus if agent else 0,
        pid=agent.process.pid if agent and lives else None,
        since=agent.at if agent else None,
        why_off=off if off is not None or boot else "never powered on",
        leaving=datetime.fromisoformat(leaving) if leaving else None,
        folder=folder,
    )


def read_boot(folder: Path) -> dict[str, str] | None:
    """The node's present boot; None for one that was never powered on."""
    path = folder / "boot.json"
    boot = read_json(str(path))
    if boot is None:
        return None
    return {name: _needed(path, boot, name, str) for name in ("boot_id", "host_boot_id")}


def read_agent(folder: Path) -> AgentRecord | None:
    """What the agent says of itself. Damage is no news here: the agent writes it again, or the next one does."""
    path = folder / "agent.json"
    try:
        record = read_json(str(path))
        if record is None:
            return None
        return AgentRecord(
            process=processes.ProcessId.of(record),
            boot_id=_needed(path, record, "boot_id", str),
            state=NodeState(_needed(path, record, "state", str)),
            gpus=_needed(path, record, "gpus", int),
            at=_needed(path, record, "at", str),
        )
    except (LookupError, TypeError, ValueError):
        return None


def task_view(node: str, task_dir: Path) -> TaskView:
    """A task as its folder tells."""
    end = read_json(str(task_dir / "exit.json"))  # first: a task that ended meanwhile is ended
    spec = read_json(str(task_dir / "spec.json"))
    running = read_json(str(task_dir / "running.json"))
    stop = read_text(str(task_dir / "stop"))
    if end is None and spec is None and stop is not None:
        end = {"exit_code": None, "reason": stop, "stop_code": "UserInitiated", "started_at": None}
    if end is not None:
        state = TaskState.ENDED
    elif running is not None:
        state = TaskState.RUNNING
    else:
        state = TaskState.ABSENT if spec is None else TaskState.PENDING
    order, ending = task_dir / "spec.json", task_dir / "exit.json"
    known, ended = spec or {}, end or {}
    return TaskView(
        task_id=task_dir.name,
        node=node,
        state=state,
        kind=_given(order, known, "kind", str),
        job=_given(order, known, "job", str),
        attempt=_given(order, known, "attempt", int),
        rank=_given(order, known, "rank", int),
        gpus=_given(order, known, "gpus", int) or 0,
        exit_code=_given(ending, ended, "exit_code", int),
        reason=_given(ending, ended, "reason", str),
        stop_code=_given(ending, ended, "stop_code", str),
        stop_ordered=stop is not None,
        started_at=_given(task_dir / "running.json", running or ended, "started_at", str),
        ended_at=_given(ending, ended, "ended_at", str),
        folder=task_dir,
        log=task_dir / "log",
    )


def _needed(path: Path, record: Json, name: str, kind: type[T]) -> T:
    found = _given(path, record, name, kind)
    if found is None:
        raise DamagedFile(str(path), f"it does not tell its {name}")
    return found


def _given(path: Path, record: Json, name: str, kind: type[T]) -> T | None:
    """One entry, or None where there is none; another kind of value is damage."""
    value = record.get(name)
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise DamagedFile(str(path), f"{name} is {value!r:.60}, which is no {kind.__name__}")
