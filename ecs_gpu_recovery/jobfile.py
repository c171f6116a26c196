"""A job as people write it: a TOML or JSON file, or options. Read strictly; every problem is reported at once."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .core.errors import Refused
from .core.model import JobSpec

LEVELS = ("quick", "1", "2", "3", "4", "none")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a person asks for: a job, and where to run it."""

    spec: JobSpec
    nodes: tuple[str, ...] = ()  #: chosen by name
    any_nodes: int = 0  #: or this many, whichever are free
    check: bool = True
    max_retries: int | None = None
    job_id: str = ""


#: Key, type, what it is. `gpu-recovery submit --help` and the guide name the same keys.
KEYS: dict[str, tuple[type, str]] = {
    "name": (str, "a short name; letters, digits, '.', '_', '-'"),
    "id": (str, "the job's id, if you want to choose it: submitting the same id twice is refused"),
    "command": (list, "the program and its arguments, a list of strings"),
    "script": (str, "a Python script to run instead of `command`"),
    "args": (list, "arguments of `script`"),
    "nodes": (list, "names of the nodes to run on"),
    "any_nodes": (int, "or: how many free nodes to take"),
    "env": (dict, "environment variables of every rank"),
    "workdir": (str, "where the program starts"),
    "checkpoint_dir": (str, "where it keeps its checkpoints"),
    "port": (int, "the rendezvous port (MASTER_PORT)"),
    "gpus_per_node": (int, "GPUs each rank takes; all of the node's by default"),
    "memory_mib": (int, "memory limit of each rank"),
    "check": (str, f"how deep nodes are examined first: {', '.join(LEVELS)}"),
    "max_retries": (int, "automatic restarts"),
    "task_definition": (str, "AWS: the task definition to run"),
    "container": (str, "AWS: the training container's name"),
}
_LIMITS = {"any_nodes": (1, 4096), "port": (1024, 65535), "gpus_per_node": (1, 64), "memory_mib": (16, 16_777_216), "max_retries": (0, 100)}


@dataclass(slots=True)
class _Problems:
    said: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.said.append(text)


def read_file(path: Path) -> dict[str, Any]:
    """A job file's keys and values, unchecked."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise Refused(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise Refused(f"{path} cannot be read: {exc}") from exc
    try:
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, tomllib.TOMLDecodeError) as exc:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise Refused(f"{path} is not valid {kind}: {exc}") from exc
    if not isinstance(data, dict):
        raise Refused(f"{path} must hold one table of keys and values")
    return data


def parse(data: Mapping[str, Any], *, python: str, local_files: bool = True) -> JobRequest:
    """Check everything, then build. With `local_files` scripts and folders must exist on this machine."""
    problems = _Problems()
    for key in data:
        if key not in KEYS:
            problems.add(f"{key}: unknown key; there are: {', '.join(KEYS)}")
    good = {key: value for key, value in data.items() if key in KEYS and _right_type(key, value, problems)}
    command = _command(good, python, problems, local_files=local_files)
    nodes = _texts("nodes", good.get("nodes", []), problems)
    if len(set(nodes)) != len(nodes):
        problems.add("nodes: a node is named twice")
    if bool(nodes) == ("any_nodes" in good):
        problems.add("nodes: name the nodes, or say with any_nodes how many to take (one of the two)")
    for key in ("name", "id"):
        if good.get(key) and not _NAME.fullmatch(good[key]):
            problems.add(f"{key}: use 1 to 63 letters, digits, '.', '_', '-', the first a letter or digit")
    if good.get("check", "quick") not in LEVELS:
        problems.add(f"check: use one of {', '.join(LEVELS)}")
    env = good.get("env", {})
    for key, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(key)) or not isinstance(value, str):
            problems.add(f"env.{key}: names are letters, digits and '_'; values are strings")
    if local_files and good.get("workdir") and not Path(good["workdir"]).is_dir():
        problems.add(f"workdir: {good['workdir']} is not a folder")
    if problems.said:
        raise Refused("the job was not submitted:\n  " + "\n  ".join(problems.said))
    return _build(good, command, nodes, env)


def _build(good: Mapping[str, Any], command: tuple[str, ...], nodes: tuple[str, ...], env: Mapping[str, str]) -> JobRequest:
    level = good.get("check", "quick")
    spec = JobSpec(
        name=good.get("name", ""),
        command=command,
        env=dict(env),
        workdir=good.get("workdir", ""),
        checkpoint_dir=good.get("checkpoint_dir", ""),
        master_port=good.get("port", 0),
        gpus_per_node=good.get("gpus_per_node", 0),
        memory_mib=good.get("memory_mib", 0),
        task_def=good.get("task_definition", ""),
        container=good.get("container", ""),
        check_level="quick" if level == "none" else level,
    )
    return JobRequest(spec=spec, nodes=nodes, any_nodes=good.get("any_nodes", 0), check=level != "none",
                      max_retries=good.get("max_retries"), job_id=good.get("id", ""))  # fmt: skip


def _right_type(key: str, value: Any, problems: _Problems) -> bool:
    wanted, _ = KEYS[key]
    if isinstance(value, bool) or not isinstance(value, wanted):
        names: dict[type, str] = {str: "text", int: "a whole number", list: "a list", dict: "a table"}
        problems.add(f"{key}: must be {names[wanted]}, not {type(value).__name__}")
        return False
    if key in _LIMITS:
        least, most = _LIMITS[key]
        if isinstance(value, int) and not least <= value <= most:
            problems.add(f"{key}: must be from {least} to {most}, not {value}")
            return False
    return True


def _texts(key: str, value: Any, problems: _Problems) -> tuple[str, ...]:
    if any(not isinstance(item, str) or not item for item in value):
        problems.add(f"{key}: every entry must be text")
        return ()
    return tuple(value)


def _command(good: Mapping[str, Any], python: str, problems: _Problems, *, local_files: bool) -> tuple[str, ...]:
    command = _texts("command", good.get("command", []), problems)
    script, args = good.get("script", ""), _texts("args", good.get("args", []), problems)
    if script and command:
        problems.add("command: give a command or a script, not both")
    if args and not script:
        problems.add("args: they belong to `script`; put them into `command` otherwise")
    if script:
        path = Path(script)
        if local_files and not path.is_file():
            problems.add(f"script: {script} does not exist")
        return (python, str(path.resolve()) if local_files else script, *args)
    if not command and not good.get("task_definition"):
        problems.add("command: what shall run? Give a command or a script")
    return command
