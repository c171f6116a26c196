"""What the stack's own SSM documents have in common: each runs one script of ours on a Linux host, once per marker.

What a sender can choose is held by the parameters' patterns, which SSM checks before a host hears of the command.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

#: Where in the bucket archives are; a folder per node.
FOLDER = "evidence"
#: A key in a script is a word in a comment. Anything else that a job may be called is replaced.
_KEY, _MOST = "A-Za-z0-9._/:=@+-", 256


def content(
    step: str,
    scripts: tuple[str, ...],
    description: str,
    parameters: dict[str, dict[str, str]],
    *,
    seconds: int,
    known: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The document that runs a script of this package for so long at most. What all begin with, and the others, which
    have functions for it, stand behind its first line, which names the order. `known` is what no sender can choose."""
    here = resources.files(__package__)
    names = (scripts[0], "marked.sh", *scripts[1:])
    first, *before = (here.joinpath(name).read_text(encoding="utf-8") for name in names)
    title, _, rest = first.partition("\n")
    variables = {"folder": f"/var/lib/gpu-recovery/{step}s", **(known or {})}
    text = "\n".join((title, *(f"{name}={value}" for name, value in variables.items()), *before, rest))
    run = {
        "action": "aws:runShellScript",
        "name": step,
        "precondition": {"StringEquals": ["platformType", "Linux"]},
        "inputs": {"timeoutSeconds": str(seconds), "runCommand": text.splitlines()},
    }
    return {
        "schemaVersion": "2.2",
        "description": description,
        "parameters": parameters,
        "mainSteps": [run],
    }


def parameter(description: str, pattern: str) -> dict[str, str]:
    return {"type": "String", "description": description, "allowedPattern": pattern}


def key_parameter() -> dict[str, str]:
    return parameter("The order, for whoever reads the script on the host", f"^[{_KEY}]{{1,{_MOST}}}$")


def key_argument(key: str) -> str:
    return re.sub(f"[^{_KEY}]", "_", key)[:_MOST]


def marker_parameter(description: str) -> dict[str, str]:
    return parameter(description, "^[0-9a-f]{32}$")


def marker(*of: str) -> str:
    """What the host keeps of one order. Another stack's order of the same name has another marker."""
    return hashlib.sha256("\n".join(of).encode()).hexdigest()[:32]


def evidence_pattern(bucket: str) -> str:
    """Addresses of archives in this bucket."""
    # The second address is that of a local AWS: a node that is told so speaks to itself.
    at = rf"(https://{bucket}\.s3\.[a-z0-9-]+\.amazonaws\.com(\.cn)?|http://127\.0\.0\.1:[0-9]+/{bucket})"
    return rf"^{at}/{FOLDER}/[A-Za-z0-9._~/%?&=+:-]+$"
