"""The SSM document that looks at a rank that stands still: where its processes wait, and what its NCCL says of it.

It belongs to the stack, like the one for reboots, and changes nothing on the host: look_at_hang.sh reads, asks NCCL in
the task's own network, and sends one archive to an address that is signed for it. It ends within two minutes, whatever
hangs, and does the same look once.

What a sender can choose is held by the parameters' patterns, which SSM checks before a host hears of the command.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any

from .reboot_document import MARKER_PATTERN, evidence_pattern

_SUFFIX = "-LookAtHang"
_TASK = "^[0-9a-f-]{32,36}$"


def name(stack: str) -> str:
    return f"{stack}{_SUFFIX}"


def content(bucket: str) -> dict[str, Any]:
    """What is found can be sent to this bucket and nowhere else."""
    look = {
        "action": "aws:runShellScript",
        "name": "look",
        "precondition": {"StringEquals": ["platformType", "Linux"]},
        "inputs": {"timeoutSeconds": "180", "runCommand": _script().splitlines()},
    }
    return {
        "schemaVersion": "2.2",
        "description": "Keeps where the processes of a task that stands still wait, and what its NCCL says",
        "parameters": {
            "task": {"type": "String", "description": "The ECS task", "allowedPattern": _TASK},
            "marker": {
                "type": "String",
                "description": "The look's marker on the host: it is not done twice",
                "allowedPattern": MARKER_PATTERN,
            },
            "evidence": {
                "type": "String",
                "description": "Where to send what is found: a signed address",
                "allowedPattern": evidence_pattern(bucket),
            },
        },
        "mainSteps": [look],
    }


def arguments(document: str, key: str, task: str, evidence: str) -> dict[str, list[str]]:
    marker = hashlib.sha256(f"{document}\n{key}".encode()).hexdigest()[:32]
    return {"task": [task], "marker": [marker], "evidence": [evidence]}


def _script() -> str:
    return resources.files(__package__).joinpath("look_at_hang.sh").read_text(encoding="utf-8")
