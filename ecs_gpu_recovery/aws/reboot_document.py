"""The SSM document that reboots a node. It belongs to the stack: whoever may send it can reboot, and nothing else.

The script, reboot_node.sh, keeps a marker per order with the boot id it was given in. Run again, by us or by the SSM
agent after the reboot, it compares: another boot id means done, so the command reports Success only after a real
reboot, and the host itself refuses a second one for the same order. Only the marker is forced to disk: a storage mount
that hangs, which may be why the node is to be rebooted, must not hold up its reboot.

First it sends away what the reboot would wipe, within 90 s, whatever fails. The address is signed for that one object
and for a short time, so a node needs no right of its own.

What a sender can choose is held by the parameters' patterns, which SSM checks before a host hears of the command.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from typing import Any

#: A key in the script is a word in a comment. Anything else that a job may be called is replaced.
_KEY, _MOST = "A-Za-z0-9._/:=@+-", 256
_SUFFIX = "-RebootNode"
MARKER_PATTERN = "^[0-9a-f]{32}$"
#: Where in the bucket archives are; a folder per node.
FOLDER = "evidence"


def name(stack: str) -> str:
    return f"{stack}{_SUFFIX}"


def is_reboot(document: str) -> bool:
    """Whether it is called like one of these. Whose it is, only SSM can tell."""
    return document.endswith(_SUFFIX)


def content(bucket: str = "") -> dict[str, Any]:
    """The document. What is kept can be sent to this bucket and nowhere else; without one, nothing is kept."""
    reboot = {
        "action": "aws:runShellScript",
        "name": "reboot",
        "precondition": {"StringEquals": ["platformType", "Linux"]},
        "inputs": {"timeoutSeconds": "3600", "runCommand": _script().splitlines()},
    }
    return {
        "schemaVersion": "2.2",
        "description": "Reboots a GPU node once per order, and succeeds only after it has booted anew",
        "parameters": _parameters(bucket),
        "mainSteps": [reboot],
    }


def arguments(document: str, cluster: str, key: str, evidence: str = "") -> dict[str, list[str]]:
    """The parameters of one order. Another stack's order of the same name has another marker."""
    marker = hashlib.sha256(f"{document}\n{cluster}\n{key}".encode()).hexdigest()[:32]
    given = {"key": [re.sub(f"[^{_KEY}]", "_", key)[:_MOST]], "marker": [marker]}
    return given | ({"evidence": [evidence]} if evidence else {})


def _script() -> str:
    return resources.files(__package__).joinpath("reboot_node.sh").read_text(encoding="utf-8")


def evidence_pattern(bucket: str) -> str:
    """Addresses of archives in this bucket."""
    # The second address is that of a local AWS: a node that is told so speaks to itself.
    at = rf"(https://{bucket}\.s3\.[a-z0-9-]+\.amazonaws\.com(\.cn)?|http://127\.0\.0\.1:[0-9]+/{bucket})"
    return rf"^{at}/{FOLDER}/[A-Za-z0-9._~/%?&=+:-]+$"


def _parameters(bucket: str) -> dict[str, dict[str, str]]:
    return {
        "key": {
            "type": "String",
            "description": "The order, for whoever reads the script on the host",
            "allowedPattern": f"^[{_KEY}]{{1,{_MOST}}}$",
        },
        "marker": {
            "type": "String",
            "description": "The order's marker on the host: the same order never reboots it twice",
            "allowedPattern": MARKER_PATTERN,
        },
        "evidence": {
            "type": "String",
            "description": "Where to send what the reboot would wipe: a signed address, or nothing",
            "default": "",
            "allowedPattern": f"^$|{evidence_pattern(bucket)}" if bucket else "^$",
        },
    }
