"""A job as people write it: a TOML or JSON file, or options. Read strictly; all problems are told at once."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .core.errors import Refused
from .core.model import JobSpec

LEVELS = ("quick", "1", "2", "3", "4", "none")
#: A job file is a page of text. What is larger was given by mistake, and is not read to its end.
LARGEST_FILE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that every rank gets from us, and the key that decides them, where there is one.
_OURS = {
    "MASTER_ADDR": "",
    "MASTER_PORT": "port",
    "NNODES": "",
    "NODE_RANK": "",
    "WORLD_SIZE": "",
    "RANK": "",
    "LOCAL_RANK": "",
    "JOB_ID": "id",
    "JOB_ATTEMPT": "",
    "CHECKPOINT_DIR": "checkpoint_dir",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """AWS: what the task definition is made from, where none is named."""

    image: str = ""
    mounts: tuple[str, ...] = ()  #: HOST:CONTAINER or HOST:CONTAINER:ro
    shared_memory_mib: int = 0
    infiniband: bool = False
    log_group: str = ""
    task_role: str = ""
    execution_role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a person asks for: a job, and where to run it."""

    spec: JobSpec
    container: ContainerRequest = ContainerRequest()
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
    "image": (str, "AWS: the image to make a task definition from, where none is named"),
    "mounts": (list, "AWS: folders of the node, as HOST:CONTAINER or HOST:CONTAINER:ro"),
    "shared_memory_mib": (int, "AWS: size of /dev/shm, which data loaders use"),
    "infiniband": (bool, "AWS: give the container the node's InfiniBand devices"),
    "log_group": (str, "AWS: the CloudWatch log group that the ranks write to"),
    "task_role": (str, "AWS: the role of the training program"),
    "execution_role": (str, "AWS: the role with which ECS pulls the image and writes the log"),
}
_WORDS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}
_LIMITS = {
    "any_nodes": (1, 4096),
    "port": (1024, 65535),
    "gpus_per_node": (1, 64),
    "memory_mib": (16, 16_777_216),
    "shared_memory_mib": (1, 16_777_216),
    "max_retries": (0, 100),
}


@dataclass(slots=True)
class _Problems:
    said: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.said.append(text)


def read_file(path: Path) -> dict[str, Any]:
    """A job file's keys and values, unchecked."""
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise Refused(f"{path} does not exist") from None
    except OSError as exc:
        raise Refused(f"{path} cannot be read: {exc.strerror}") from exc
    if len(raw) > LARGEST_FILE:
        raise Refused(f"{path} is larger than {LARGEST_FILE >> 20} MiB: that is no job file")
    try:
        text = raw.decode()
        data = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except UnicodeDecodeError:
        raise Refused(f"{path} is not a text file: a job file is written in TOML or JSON") from None
    except (ValueError, RecursionError) as exc:
        raise Refused(f"{path} is not valid {kind}: {exc}") from exc
    if not isinstance(data, dict):
        raise Refused(f"{path} must hold one table of keys and values")
    return data


def parse(data: Mapping[str, Any], *, python: str, local_files: bool = True) -> JobRequest:
    """Check everything, then build. With `local_files` programs and folders must exist on this machine."""
    problems = _Problems()
    _known(data, problems)
    good = {key: value for key, value in data.items() if key in KEYS and _right_type(key, value, problems)}
    nodes = _texts("nodes", good.get("nodes", []), problems)
    if "" in nodes or len(set(nodes)) != len(nodes):
        problems.add("nodes: a node is named twice, or not at all")
    if bool(data.get("nodes")) == ("any_nodes" in data):
        problems.add("nodes: name the nodes, or say with any_nodes how many to take (one of the two)")
    for key in ("name", "id"):
        if good.get(key) and not _NAME.fullmatch(good[key]):
            problems.add(f"{key}: use 1 to 63 letters, digits, '.', '_', '-', the first a letter or digit")
    if good.get("check", "quick") not in LEVELS:
        problems.add(f"check: use one of {', '.join(LEVELS)}")
    env = _environment(good.get("env", {}), problems)
    mounts = _texts("mounts", good.get("mounts", []), problems)
    for mount in mounts:
        if not re.fullmatch(r"/[^:]*:/[^:]+(:ro)?", mount):
            problems.add(f"mounts: {mount!r} is not HOST:CONTAINER or HOST:CONTAINER:ro, with absolute paths")
    if local_files and good.get("workdir"):
        if Path(good["workdir"]).is_dir():
            good["workdir"] = str(Path(good["workdir"]).resolve())
        else:
            problems.add(f"workdir: {good['workdir']} is not a folder")
    command = _command(data, good, python, problems, local_files=local_files)
    if problems.said:
        raise Refused("the job was not submitted:\n  " + "\n  ".join(problems.said))
    return replace(_build(good, command, nodes, env), container=_container(good, mounts))


def _container(good: Mapping[str, Any], mounts: tuple[str, ...]) -> ContainerRequest:
    return ContainerRequest(
        image=good.get("image", ""),
        mounts=mounts,
        shared_memory_mib=good.get("shared_memory_mib", 0),
        infiniband=good.get("infiniband", False),
        log_group=good.get("log_group", ""),
        task_role=good.get("task_role", ""),
        execution_role=good.get("execution_role", ""),
    )


def _known(data: Mapping[str, Any], problems: _Problems) -> None:
    """Keys that don't exist, each with the one that was probably meant; all that exist are named once."""
    strange = [key for key in data if key not in KEYS]
    for key in strange:
        near = difflib.get_close_matches(str(key), KEYS, n=1)
        problems.add(f"{key!s:.60}: unknown key" + (f"; did you mean {near[0]}?" if near else ""))
    if strange:
        problems.add(f"known keys are: {', '.join(KEYS)}")


def _environment(given: Mapping[str, Any], problems: _Problems) -> dict[str, str]:
    for key, value in given.items():
        if not _VARIABLE.fullmatch(str(key)) or not isinstance(value, str):
            problems.add(f"env.{key!s:.60}: names are letters, digits and '_'; values are strings")
        elif key in _OURS:
            instead = f"; use the key {_OURS[key]}" if _OURS[key] else ""
            problems.add(f"env.{key}: every rank gets this variable from the control plane{instead}")
        elif not _writable(value):
            problems.add(f"env.{key}: must be plain text")
    return dict(given)


def _build(
    good: Mapping[str, Any], command: tuple[str, ...], nodes: tuple[str, ...], env: Mapping[str, str]
) -> JobRequest:
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
    return JobRequest(
        spec=spec,
        nodes=nodes,
        any_nodes=good.get("any_nodes", 0),
        check=level != "none",
        max_retries=good.get("max_retries"),
        job_id=good.get("id", ""),
    )


def _right_type(key: str, value: Any, problems: _Problems) -> bool:
    wanted, _ = KEYS[key]
    if type(value) is not wanted:
        problems.add(f"{key}: must be {_WORDS[wanted]}, not {_WORDS.get(type(value), 'a date or nothing')}")
        return False
    if isinstance(value, str) and not _writable(value):
        problems.add(f"{key}: must be plain text")
        return False
    if key in _LIMITS:
        least, most = _LIMITS[key]
        if isinstance(value, int) and not least <= value <= most:
            problems.add(f"{key}: must be from {least} to {most}, not {value!s:.20}")
            return False
    return True


def _writable(text: str) -> bool:
    """No operating system takes a NUL in an argument or a path, and no terminal shows half a character."""
    return not re.search(r"[\0\ud800-\udfff]", text)


def _texts(key: str, value: Sequence[Any], problems: _Problems) -> tuple[str, ...]:
    if any(not isinstance(item, str) or not _writable(item) for item in value):
        problems.add(f"{key}: every entry must be text")
        return ()
    return tuple(value)


def _command(
    data: Mapping[str, Any],
    good: Mapping[str, Any],
    python: str,
    problems: _Problems,
    *,
    local_files: bool,
) -> tuple[str, ...]:
    command = _texts("command", good.get("command", []), problems)
    script, args = good.get("script", ""), _texts("args", good.get("args", []), problems)
    if data.get("script") and data.get("command"):
        problems.add("command: give a command or a script, not both")
    if args and not data.get("script"):
        problems.add("args: they belong to `script`; put them into `command` otherwise")
    if script:
        path = Path(script)
        if local_files and not path.is_file():
            problems.add(f"script: {script} does not exist")
        return (python, str(path.resolve()) if local_files else script, *args)
    if command and local_files:
        return (_program(command[0], good.get("workdir", ""), problems), *command[1:])
    ready_made = not local_files and (data.get("task_definition") or data.get("image"))
    if not (data.get("command") or data.get("script") or ready_made):
        problems.add("command: what shall run? Give a command or a script")
    return command


def _program(name: str, workdir: str, problems: _Problems) -> str:
    """The program as the person who submits finds it: the nodes may have another PATH."""
    if "/" in name:
        found = os.path.join(workdir or os.curdir, name)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return os.path.abspath(found)
        problems.add(f"command: {name} does not exist or cannot be executed")
        return name
    where = shutil.which(name)
    if where is None:
        problems.add(f"command: no program {name!r} in your PATH")
    return os.path.abspath(where) if where else name
