"""A script that comes with its job, because no image and no shared folder has it yet.

In the embedded mode it is a file. On AWS its text travels in the job's own task definition, so every attempt on every
node runs the same, whatever became of the machine it was written on.
"""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .core.errors import Refused

LARGEST = 256 * 1024
#: A task definition has room for 64 KiB; what else is in it needs some of that.
LARGEST_PACKED = 48 * 1024
#: Where the text is while it travels.
VARIABLE = "GPU_RECOVERY_SCRIPT"


def problem(text: str) -> str:
    """Why it can't be anybody's script; empty if it can."""
    if not text.strip():
        return "write a script, or upload one"
    if len(text.encode(errors="replace")) > LARGEST:
        return f"a script may have up to {LARGEST >> 10} KiB"
    return "must be plain text" if "\0" in text else ""


def is_shell(text: str) -> bool:
    return bool(re.match(r"#!.*\b(ba|z|da)?sh\b", text))


def packed(text: str) -> str:
    """Always the same for the same text. Raises `Refused` where ECS could not carry it."""
    data = base64.b64encode(gzip.compress(text.encode(errors="replace"), mtime=0)).decode()
    if len(data) > LARGEST_PACKED:
        raise Refused(
            f"the job was not submitted:\n  script_text: packed it has {len(data) >> 10} KiB, and a task definition"
            f" takes {LARGEST_PACKED >> 10}. Put it on storage that the nodes share, and give its path there"
            " as the command"
        )
    return data


def command(text: str, args: Sequence[str]) -> tuple[str, ...]:
    """What a container runs: it unpacks the script and becomes it, so that it hears the stop of its task.

    Every image with a shell has these programs.
    """
    name, program = ("script.sh", "bash") if is_shell(text) else ("script.py", "python3 -u")
    unpack = f'f=$(mktemp -d)/$0 && printf %s "${VARIABLE}" | base64 -d | gzip -d > "$f"'
    return ("sh", "-c", f'{unpack} && exec {program} "$f" "$@"', name, *args)


def args_of(carried: Sequence[str]) -> list[str]:
    """The arguments of the script in such a command."""
    return list(carried[4:])


def taken(given: Mapping[str, Any], *, here: bool) -> dict[str, Any]:
    """The options of `submit`, where --script names a file of this machine: what follows them are its arguments.

    It is run where it lies if the job runs `here`. Else its text goes along.
    """
    if not given.get("script"):
        return dict(given)
    path, args = Path(given["script"]), list(given.get("command") or [])
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1).decode(errors="replace")
    except OSError as exc:
        raise Refused(f"the job was not submitted:\n  script: {path}: {exc.strerror}") from exc
    if here:
        shell = ["bash", str(path.resolve()), *args] if is_shell(text) else None
        return {
            **given,
            "command": shell,
            "script": None if shell else str(path),
            "args": None if shell else args,
        }
    return {**given, "command": None, "script": None, "script_text": text, "args": args}
