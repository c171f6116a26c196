"""The SSM document that reboots a node. It belongs to the stack: whoever may send it can reboot, and nothing else.

The script, reboot_node.sh, keeps a marker per order with the boot id it was given in. Run again, by us or by the SSM
agent after the reboot, it compares: another boot id means done, so the command reports Success only after a real
reboot, and the host itself refuses a second one for the same order. Only the marker is forced to disk: a storage mount
that hangs, which may be why the node is to be rebooted, must not hold up its reboot.

First it sends away what the reboot would wipe (kept.sh), within 90 s, whatever fails. The address is signed for that
one object and for a short time, so a node needs no right of its own.
"""

from __future__ import annotations

from typing import Any

from . import shell_document

_SUFFIX = "-RebootNode"


def name(stack: str) -> str:
    return f"{stack}{_SUFFIX}"


def is_reboot(document: str) -> bool:
    """Whether it is called like one of these. Whose it is, only SSM can tell."""
    return document.endswith(_SUFFIX)


def content(bucket: str = "") -> dict[str, Any]:
    """The document. What is kept can be sent to this bucket and nowhere else; without one, nothing is kept."""
    sent = f"^$|{shell_document.evidence_pattern(bucket)}" if bucket else "^$"
    return shell_document.content(
        "reboot",
        ("reboot_node.sh", "kept.sh"),
        "Reboots a GPU node once per order, and succeeds only after it has booted anew",
        {
            "key": shell_document.key_parameter(),
            "marker": shell_document.marker_parameter(
                "The order's marker on the host: the same order never reboots it twice"
            ),
            "evidence": {
                **shell_document.parameter(
                    "Where to send what the reboot would wipe: a signed address, or nothing", sent
                ),
                "default": "",
            },
        },
        seconds=3600,
    )


def arguments(document: str, cluster: str, key: str, evidence: str = "") -> dict[str, list[str]]:
    """The parameters of one order."""
    marker = shell_document.marker(document, cluster, key)
    given = {"key": [shell_document.key_argument(key)], "marker": [marker]}
    return given | ({"evidence": [evidence]} if evidence else {})
