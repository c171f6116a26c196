"""The SSM document that reboots a node. It belongs to the stack: whoever may send it can reboot, and nothing else.

The script keeps a marker per order with the boot id it was given in. Run again, by us or by the SSM agent after the
reboot, it compares: another boot id means done, so the command reports Success only after a real reboot, and the host
itself refuses a second one for the same order. Only the marker is forced to disk: a storage mount that hangs, which may
be why the node is to be rebooted, must not hold up its reboot. Markers of orders that are long over are removed.

What a sender can choose is held by the parameters' patterns, which SSM checks before a host hears of the command.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

#: A key in the script is a word in a comment. Anything else that a job may be called is replaced.
_KEY, _MOST = "A-Za-z0-9._/:=@+-", 256
PARAMETERS: dict[str, dict[str, str]] = {
    "key": {
        "type": "String",
        "description": "The order, for whoever reads the script on the host",
        "allowedPattern": f"^[{_KEY}]{{1,{_MOST}}}$",
    },
    "marker": {
        "type": "String",
        "description": "The order's marker on the host: the same order never reboots it twice",
        "allowedPattern": "^[0-9a-f]{32}$",
    },
}
#: An order is over within a day, whatever the policy says.
_FORGOTTEN_MIN = 2 * 24 * 60
_SCRIPT = f"""\
# gpu-recovery reboot key={{{{ key }}}}
set -eu
folder=/var/lib/gpu-recovery/reboots
marker=$folder/{{{{ marker }}}}
now=$(cat /proc/sys/kernel/random/boot_id)
mkdir -p "$folder"
find "$folder" -type f -mmin +{_FORGOTTEN_MIN} -delete
if [ -e "$marker" ]; then
  if [ "$(cat "$marker")" != "$now" ]; then
    echo "booted as $now"
    exit 0
  fi
else
  printf '%s' "$now" > "$marker.new"
  mv "$marker.new" "$marker"
  sync "$marker" "$folder"
fi
echo "rebooting from $now"
exit 194
"""


_SUFFIX = "-RebootNode"


def name(stack: str) -> str:
    return f"{stack}{_SUFFIX}"


def is_reboot(document: str) -> bool:
    """Whether it is called like one of these. Whose it is, only SSM can tell."""
    return document.endswith(_SUFFIX)


def content() -> dict[str, Any]:
    """The document. What is to be kept of a node before its reboot becomes a step before this one."""
    reboot = {
        "action": "aws:runShellScript",
        "name": "reboot",
        "precondition": {"StringEquals": ["platformType", "Linux"]},
        "inputs": {"timeoutSeconds": "3600", "runCommand": _SCRIPT.splitlines()},
    }
    return {
        "schemaVersion": "2.2",
        "description": "Reboots a GPU node once per order, and succeeds only after it has booted anew",
        "parameters": PARAMETERS,
        "mainSteps": [reboot],
    }


def arguments(document: str, cluster: str, key: str) -> dict[str, list[str]]:
    """The parameters of one order. Another stack's order of the same name has another marker."""
    marker = hashlib.sha256(f"{document}\n{cluster}\n{key}".encode()).hexdigest()[:32]
    return {"key": [re.sub(f"[^{_KEY}]", "_", key)[:_MOST]], "marker": [marker]}
