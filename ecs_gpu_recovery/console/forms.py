"""The form of a new job: what people type, as a job file, with every problem beside its field."""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import own_script
from ..control.records import RecordsBackend
from ..control.submission import choose_nodes, new_job_id, task_definition
from ..core.errors import RecoveryError, Refused
from ..core.model import Job
from ..core.node_record import Node
from ..jobfile import JobRequest, parse
from ..jobkeys import CONTAINER, HOW, KEYS, MORE, JobKey
from ..masks import masked_command, masked_env
from .problems import BadField, by_field
from .samples import TEMPLATES, Template

__all__ = ["EMPTY", "TEMPLATES", "Desktop", "Template", "from_form", "preview", "submit"]

FIELDS = tuple(KEYS)
#: What a refusal says to a person at a terminal, and not to one who sees the nodes.
_FOR_THE_TERMINAL = r"^the job was not submitted:\s*|\s*See: gpu-recovery nodes$"


#: Keys with a field of their own; what runs, and where, the form asks in its own way.
INPUTS = [(key, shown) for key in KEYS.values() if (shown := key.input)]
#: The form as it is first shown.
EMPTY: dict[str, str] = {
    "what": "command",
    "command": "",
    "script_text": "",
    "args": "",
    "where": "any",
    "any_nodes": "2",
    **{key.name: shown.first for key, shown in INPUTS},
}


def inputs(*, local: bool) -> dict[str, list[JobKey]]:
    """The fields of each part of the form."""
    return {
        part: [key for key, shown in INPUTS if shown.part == part and (shown.local or not local)]
        for part in (HOW, MORE, CONTAINER)
    }


def from_form(form: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Typed values of the fields that were filled in. What can't be typed is a problem of its field."""
    one = {key: values[-1].strip() for key, values in form.items() if values}
    data: dict[str, Any] = {}
    wrong: dict[str, list[str]] = {}
    for key, _ in INPUTS:
        if text := one.get(key.name):
            _take(key, text, data, wrong)
    if one.get("where") == "named":
        data["nodes"] = [name for name in form.get("nodes", []) if name]
    else:
        _take(KEYS["any_nodes"], one.get("any_nodes", ""), data, wrong)
    _program(form, one, data, wrong)
    if wrong:
        raise BadField({**wrong, **_others(data, wrong)})
    return {key: value for key, value in data.items() if value not in ("", {}) or key == "script_text"}


def _take(key: JobKey, text: str, data: dict[str, Any], wrong: dict[str, list[str]]) -> None:
    """What was typed into a field, as the key's kind."""
    kind = key.kind.type
    if kind is int and not re.fullmatch(r"-?[0-9]{1,9}", text):
        wrong.setdefault(key.name, []).append("must be a whole number")
    elif kind is dict:
        data[key.name] = _variables(key.name, text, wrong)
    elif kind is list:
        data[key.name] = [line.strip() for line in text.splitlines() if line.strip()]
    else:
        data[key.name] = kind(text)


def _others(data: Mapping[str, Any], wrong: Mapping[str, Any]) -> dict[str, list[str]]:
    """What else is wrong, with something harmless in place of what can't be read: a form is mended once."""
    harmless = {"any_nodes": 1, "command": ["true"]}
    rest = {key: value for key, value in data.items() if key in KEYS and value not in ("", {})}
    rest.pop("script_text", None)
    rest |= {key: harmless[key] for key in wrong if key in harmless}
    if "script_text" in data:
        rest = {**rest, "command": ["true"], "args": []}
    try:
        parse(rest, python=sys.executable, local_files=False)
    except Refused as exc:
        return {key: told for key, told in by_field(str(exc), FIELDS).items() if key and key not in wrong}
    return {}


def _program(
    form: Mapping[str, Sequence[str]],
    one: Mapping[str, str],
    data: dict[str, Any],
    wrong: dict[str, list[str]],
) -> None:
    """The script with its arguments, or the command, as a shell would split them."""
    script = one.get("what") == "script"
    key = "args" if script else "command"
    if script:
        data["script_text"] = form.get("script_text", [""])[-1].replace("\r\n", "\n")
    if one.get(key):
        try:
            data[key] = shlex.split(one[key])
        except ValueError as exc:
            wrong.setdefault(key, []).append(str(exc).lower())


def _variables(key: str, text: str, wrong: dict[str, list[str]]) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, sep, value = line.strip().partition("=")
        if sep:
            found[name.strip()] = value
        else:
            wrong.setdefault(key, []).append(f"{line.strip()[:40]}: write NAME=value, one on each line")
    return found


class Desktop:
    """Where scripts that people write in the browser are kept, for the embedded mode."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def keep(self, text: str) -> Path:
        if why := own_script.problem(text):
            raise BadField({"script_text": [why]})
        if self._folder is None:
            raise BadField({"script_text": ["this console keeps no files"]})
        folder = self._folder / secrets.token_hex(8)
        folder.mkdir(parents=True, mode=0o700)
        path = folder / ("script.sh" if own_script.is_shell(text) else "script.py")
        path.write_text(text, errors="replace")
        return path

    def drop(self, path: Path | None) -> None:
        if path is not None:
            shutil.rmtree(path.parent, ignore_errors=True)


def read_request(
    side: RecordsBackend, data: Mapping[str, Any], desktop: Desktop
) -> tuple[JobRequest, Path | None]:
    """The request and, where one was written in the browser, its script."""
    data = dict(data)
    local = side.name == "local"
    text = data.pop("script_text", None) if local else None
    path = desktop.keep(text) if text is not None else None
    if path is not None and path.suffix == ".sh":
        data["command"] = ["bash", str(path), *data.pop("args", [])]
    elif path is not None:
        data["script"] = str(path)
    elif (data.get("command") or [""])[0] in ("python", "python3") and local:
        # A person who writes into a browser has no PATH of their own; this one has what the examples need.
        data["command"] = [sys.executable, *data["command"][1:]]
    try:
        return parse(
            {k: v for k, v in data.items() if k in KEYS}, python=sys.executable, local_files=local
        ), path
    except Refused as exc:
        desktop.drop(path)
        raise BadField(by_field(str(exc), FIELDS)) from exc


def submit(side: RecordsBackend, data: Mapping[str, Any], desktop: Desktop, *, by: str) -> Job:
    request, path = read_request(side, data, desktop)
    chosen = request.job_id or new_job_id(request.spec.name)
    try:
        return side.submit(replace(request, job_id=chosen, spec=replace(request.spec, submitted_by=by)))
    except Refused as exc:
        desktop.drop(path)
        known = by_field(str(exc), [*FIELDS, *(node.name for node in side.nodes())])
        if set(known) & set(FIELDS):
            raise BadField(known) from exc
        raise


def refusal_of(exc: RecoveryError) -> str:
    """Why it was refused, for a person who looks at the nodes already."""
    return re.sub(_FOR_THE_TERMINAL, "", str(exc))


def preview(side: RecordsBackend, data: Mapping[str, Any], desktop: Desktop) -> dict[str, Any]:
    """What would run, where, with which variables; nothing is kept."""
    request, path = read_request(side, data, desktop)
    desktop.drop(path)
    nodes = {node.name: node for node in side.nodes()}
    try:
        names, refusal = choose_nodes(request, list(nodes.values())), ""
    except Refused as exc:
        names, refusal = request.nodes, refusal_of(exc)
    return {
        "command": masked_command(request.spec.command),
        "nodes": list(names),
        "refusal": refusal,
        "check": request.spec.check_level if request.check else "none",
        "environment": _environment(side, request, [nodes[name] for name in names if name in nodes]),
        "task_definition": _task_definition(request),
    }


def _environment(side: RecordsBackend, request: JobRequest, nodes: Sequence[Node]) -> dict[str, str]:
    """Rank 0's variables; a port or folder that is chosen at submission is named so."""
    from ..core.model import JobStatus, Rank

    if not nodes:
        return {}
    ranks = tuple(Rank(index=i, node=n.name, address=n.ip, ibdev=n.ibdev) for i, n in enumerate(nodes))
    now = side.now()
    job = Job(
        id=request.job_id or "JOB-ID",
        cluster="",
        spec=request.spec,
        status=JobStatus.IN_PROGRESS,
        ranks=ranks,
        created_at=now,
        updated_at=now,
    )
    told = side.environment(job, ranks[0])
    if told["MASTER_PORT"] == "0":
        told["MASTER_PORT"] = "(a free one)"
    told.setdefault("CHECKPOINT_DIR", "(made for the job)")
    return masked_env(told)


def _task_definition(request: JobRequest) -> dict[str, Any] | None:
    """What would be registered on AWS, with nothing in it that is secret."""
    spec = replace(
        request.spec, env=masked_env(request.spec.env), command=tuple(masked_command(request.spec.command))
    )
    made = task_definition(replace(request, spec=spec))
    for container in made["containerDefinitions"] if made else ():
        for pair in container["environment"]:
            if pair["name"] == own_script.VARIABLE:
                pair["value"] = "(the script)"
    return made
