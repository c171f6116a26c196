"""Reboots through SSM Run Command: the script the host runs, and how its command is found again.

The script keeps a marker per order with the boot id it was given in. Run again, by us or by the SSM agent after the
reboot, it compares: another boot id means done, so the command reports Success only after a real reboot, and the host
itself refuses a second one for the same order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.errors import StartRefused
from .errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

DOCUMENT = "AWS-RunShellScript"
#: An undelivered order must not reboot the node hours later.
DELIVERY_TIMEOUT_S = 600
_OVER = frozenset({"Success", "Failed", "TimedOut", "Cancelled", "Undeliverable", "Terminated", "DeliveryTimedOut", "ExecutionTimedOut"})

_SCRIPT = """\
# gpu-recovery reboot key={key}
set -eu
folder=/var/lib/gpu-recovery/reboots
marker=$folder/{name}
now=$(cat /proc/sys/kernel/random/boot_id)
mkdir -p "$folder"
if [ -e "$marker" ]; then
  if [ "$(cat "$marker")" != "$now" ]; then
    echo "booted as $now"
    exit 0
  fi
else
  printf '%s' "$now" > "$marker.new"
  mv "$marker.new" "$marker"
  sync
fi
echo "rebooting from $now"
exit 194
"""


@dataclass(frozen=True, slots=True)
class Command:
    """One command on one host."""

    command_id: str
    status: str

    @property
    def over(self) -> bool:
        return self.status in _OVER


def comment(key: str) -> str:
    """At most 100 characters; a long key is replaced by its digest."""
    text = f"gpu-recovery reboot {key}"
    return text if len(text) <= 100 else f"gpu-recovery reboot {hashlib.sha256(key.encode()).hexdigest()}"


def script(key: str) -> list[str]:
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    return _SCRIPT.format(key=key, name=name).splitlines()


def send(ssm: SSMClient, host: str, node: str, key: str) -> None:
    """Order the reboot. A host that SSM does not know is a refusal, not something to try again."""
    from botocore.exceptions import ClientError

    try:
        with translated(f"rebooting {node}"):
            ssm.send_command(InstanceIds=[host], DocumentName=DOCUMENT, Comment=comment(key), TimeoutSeconds=DELIVERY_TIMEOUT_S,
                             Parameters={"commands": script(key)})  # fmt: skip
    except ClientError as exc:
        if exc.response.get("Error", {}).get("Code") not in ("InvalidInstanceId", "UnsupportedPlatformType"):
            raise
        raise StartRefused(node, f"SSM cannot reach {host}: {exc.response['Error'].get('Message', 'not a managed instance')}") from exc


def find(ssm: SSMClient, host: str, key: str) -> Command | None:
    """The command of this order among the host's, the newest first."""
    wanted = comment(key)
    more: dict[str, str] = {}
    while True:
        with translated(f"looking for the reboot of {host}"):
            reply = ssm.list_command_invocations(InstanceId=host, MaxResults=50, **more)  # type: ignore[arg-type]
        for found in reply.get("CommandInvocations", []):
            if found.get("Comment") == wanted:
                return Command(str(found.get("CommandId", "")), str(found.get("Status", "")))
        if not reply.get("NextToken"):
            return None
        more = {"NextToken": reply["NextToken"]}
