"""A job as people write it: a TOML or JSON file, or options. Read strictly; all problems are told at once."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import own_script
from .core.errors import Refused
from .core.model import JobSpec
from .jobkeys import KEYS, JobKey

#: A job file is a page of text. What is larger was given by mistake, and is not read to its end.
LARGEST_FILE = 1 << 20
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
    script_text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a person asks for: a job, and where to run it."""

    spec: JobSpec
    container: ContainerRequest = ContainerRequest()
    nodes: tuple[str, ...] = ()  #: chosen by name
    any_nodes: int = 0  #: or this many, whichever are free
    check: bool = True
    max_retries: int | None = None
    restart_when_healthy: str | None = None
    job_id: str = ""


_WORDS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}
#: A request in which nothing was asked for. Port 0: a free one is taken.
_NOTHING = JobRequest(spec=JobSpec(master_port=0))


def read_file(path: Path) -> dict[str, Any]:
    """A job file's keys and values, unchecked. `-` is standard input, where an opening brace tells JSON."""
    piped = str(path) == "-"
    try:
        if piped:
            raw = sys.stdin.read(LARGEST_FILE + 1).encode()
        else:
            with open(path, "rb") as file:
                raw = file.read(LARGEST_FILE + 1)
    except UnicodeDecodeError:
        raise Refused("what was piped in is not a text: a job file is written in TOML or JSON") from None
    except FileNotFoundError:
        raise Refused(f"{path} does not exist") from None
    except OSError as exc:
        raise Refused(f"{path} cannot be read: {exc.strerror}") from exc
    named = "standard input" if piped else path
    if len(raw) > LARGEST_FILE:
        raise Refused(f"{named} is larger than {LARGEST_FILE >> 20} MiB: that is no job file")
    try:
        text = raw.decode()
        kind = "JSON" if path.suffix == ".json" or (piped and text.lstrip()[:1] == "{") else "TOML"
        data = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except UnicodeDecodeError:
        raise Refused(f"{named} is not a text file: a job file is written in TOML or JSON") from None
    except (ValueError, RecursionError) as exc:
        raise Refused(f"{named} is not valid {kind}: {exc}") from exc
    if not isinstance(data, dict):
        raise Refused(f"{named} must hold one table of keys and values")
    return data


def parse(data: Mapping[str, Any], *, python: str, local_files: bool = True) -> JobRequest:
    """Check everything, then build. With `local_files` programs and folders must exist on this machine."""
    problems: list[str] = []
    _known(data, problems)
    good = {
        name: value for name, value in data.items() if name in KEYS and _fits(KEYS[name], value, problems)
    }
    nodes = good.get("nodes", ())
    if "" in nodes or len(set(nodes)) != len(nodes):
        problems.append("nodes: a node is named twice, or not at all")
    if bool(data.get("nodes")) == ("any_nodes" in data):
        problems.append(
            "nodes: name the nodes, or say with any_nodes (--any) how many to take (one of the two)"
        )
    _look_at_variables(good.get("env", {}), problems)
    if local_files and good.get("workdir"):
        if Path(good["workdir"]).is_dir():
            good["workdir"] = str(Path(good["workdir"]).resolve())
        else:
            problems.append(f"workdir: {good['workdir']} is not a folder")
    good["command"] = _command(data, good, python, problems, local_files=local_files)
    if problems:
        raise Refused("the job was not submitted:\n  " + "\n  ".join(problems))
    return _built(good)


def _built(good: Mapping[str, Any]) -> JobRequest:
    """Each value where its row says."""
    parts: dict[str, dict[str, Any]] = {"spec": {}, "container": {}, "request": {}}
    for key in KEYS.values():
        if key.goes_to and key.name in good:
            part, _, attribute = key.goes_to.partition(".")
            value = good[key.name]
            parts[part][attribute] = tuple(value) if isinstance(value, list) else value
    level = good.get("check", "")
    parts["spec"]["check_level"] = "" if level == "none" else level
    return replace(
        _NOTHING,
        spec=replace(_NOTHING.spec, **parts["spec"]),
        container=replace(_NOTHING.container, **parts["container"]),
        check=level != "none",
        **parts["request"],
    )


def body_of(request: JobRequest) -> dict[str, Any]:
    """A request in the keys of a job file: what `parse` would read it from."""
    placed = [key for key in KEYS.values() if key.goes_to]
    body = {
        key.name: key.kind.type(_held(request, key))
        for key in placed
        if _held(request, key) != _held(_NOTHING, key)
    }
    if "script_text" in body:
        body["args"] = own_script.args_of(body.pop("command"))
    level = request.spec.check_level if request.check else "none"
    return {**body, **({"check": level} if level else {})}


def _held(request: JobRequest, key: JobKey) -> Any:
    part, _, attribute = key.goes_to.partition(".")
    return getattr(request if part == "request" else getattr(request, part), attribute)


def _known(data: Mapping[str, Any], problems: list[str]) -> None:
    """Keys that don't exist, each with the one that was probably meant; all that exist are named once."""
    strange = [key for key in data if key not in KEYS]
    for key in strange:
        near = difflib.get_close_matches(str(key), KEYS, n=1)
        problems.append(f"{key!s:.60}: unknown key" + (f"; did you mean {near[0]}?" if near else ""))
    if strange:
        problems.append(f"known keys are: {', '.join(KEYS)}")


def _look_at_variables(given: Mapping[str, Any], problems: list[str]) -> None:
    for key, value in given.items():
        if not _VARIABLE.fullmatch(str(key)) or not isinstance(value, str):
            problems.append(f"env.{key!s:.60}: names are letters, digits and '_'; values are strings")
        elif key in _OURS:
            instead = f"; use the key {_OURS[key]}" if _OURS[key] else ""
            problems.append(f"env.{key}: every rank gets this variable from the control plane{instead}")
        elif not _writable(value):
            problems.append(f"env.{key}: must be plain text")


def _fits(key: JobKey, value: Any, problems: list[str]) -> bool:
    """Whether a value is what its row asks for."""
    before, kind = len(problems), key.kind
    if type(value) is not kind.type:
        given = _WORDS.get(type(value), "a date or nothing")
        problems.append(f"{key.name}: must be {_WORDS[kind.type]}, not {given}")
    elif isinstance(value, str) and not _writable(value):
        problems.append(f"{key.name}: must be plain text")
    elif isinstance(value, list) and not all(isinstance(item, str) and _writable(item) for item in value):
        problems.append(f"{key.name}: every entry must be text")
    elif isinstance(value, int) and kind.limits and not kind.limits[0] <= value <= kind.limits[1]:
        problems.append(f"{key.name}: must be from {kind.limits[0]} to {kind.limits[1]}, not {value!s:.20}")
    elif kind.fits and isinstance(value, str | list):
        # An empty text is as good as none, except where one of several words is asked for.
        texts: list[str] = value if isinstance(value, list) else [value] if value or kind.choices else []
        for text in texts:
            try:
                kind.fits(text)
            except ValueError as exc:
                problems.append(f"{key.name}: {exc}")
    return len(problems) == before


def _writable(text: str) -> bool:
    """No operating system takes a NUL in an argument or a path, and no terminal shows half a character."""
    return not re.search(r"[\0\ud800-\udfff]", text)


def _command(
    data: Mapping[str, Any],
    good: Mapping[str, Any],
    python: str,
    problems: list[str],
    *,
    local_files: bool,
) -> tuple[str, ...]:
    command, args = tuple(good.get("command", ())), good.get("args", ())
    script, text = good.get("script", ""), good.get("script_text")
    if sum(bool(data.get(key)) for key in ("script", "script_text", "command")) > 1:
        problems.append("command: give a command or a script, not both")
    if args and not (data.get("script") or data.get("script_text")):
        problems.append("args: they belong to `script`; put them into `command` otherwise")
    if text is not None:
        if why := own_script.problem(text) or ("give its path as `script`" if local_files else ""):
            problems.append(f"script_text: {why}")
        return own_script.command(text, args)
    if script:
        path = Path(script)
        if local_files and not path.is_file():
            problems.append(f"script: {script} does not exist")
        return (python, str(path.resolve()) if local_files else script, *args)
    if command and local_files:
        return (_program(command[0], good.get("workdir", ""), problems), *command[1:])
    ready_made = not local_files and (data.get("task_definition") or data.get("image"))
    if not (data.get("command") or data.get("script") or ready_made):
        problems.append("command: what shall run? Give a command or a script")
    return command


def _program(name: str, workdir: str, problems: list[str]) -> str:
    """The program as the person who submits finds it: the nodes may have another PATH."""
    if "/" in name:
        found = os.path.join(workdir or os.curdir, name)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return os.path.abspath(found)
        problems.append(f"command: {name} does not exist or cannot be executed")
        return name
    where = shutil.which(name)
    if where is None:
        problems.append(f"command: no program {name!r} in your PATH")
    return os.path.abspath(where) if where else name
