"""The SSM document that looks at a rank that stands still: where its processes wait, and what its NCCL says of it.

It belongs to the stack, like the one for reboots, and changes nothing on the host: look_at_hang.sh reads, asks NCCL in
the task's own network, and sends one archive to an address that is signed for it. It ends within two minutes, whatever
hangs, and does the same look once.
"""

from __future__ import annotations

from typing import Any

from . import shell_document

_SUFFIX = "-LookAtHang"
_TASK = "^[0-9a-f-]{32,36}$"


def name(stack: str) -> str:
    return f"{stack}{_SUFFIX}"


def content(bucket: str, watch: str) -> dict[str, Any]:
    """What is found can be sent to this bucket and nowhere else. `watch`: the family whose image has py-spy."""
    return shell_document.content(
        "look",
        ("look_at_hang.sh",),
        "Keeps where the processes of a task that stands still wait, and what its NCCL says",
        {
            "task": shell_document.parameter("The ECS task", _TASK),
            "marker": shell_document.marker_parameter("The look's marker on the host: it is not done twice"),
            "evidence": shell_document.parameter(
                "Where to send what is found: a signed address", shell_document.evidence_pattern(bucket)
            ),
        },
        seconds=180,
        known={"watch": watch},
    )


def arguments(document: str, key: str, task: str, evidence: str) -> dict[str, list[str]]:
    return {"task": [task], "marker": [shell_document.marker(document, key)], "evidence": [evidence]}
