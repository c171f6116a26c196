"""Reboots through SSM Run Command: the script the host runs, and how its command is found again.

The script keeps a marker per order with the boot id it was given in. Run again, by us or by the SSM agent after the
reboot, it compares: another boot id means done, so the command reports Success only after a real reboot, and the host
itself refuses a second one for the same order. Only the marker is forced to disk: a storage mount that hangs, which may
be why the node is to be rebooted, must not hold up its reboot.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core.errors import ClusterRefused, Transient
from ..core.events import Fact, RebootFailed, RebootProven
from .errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

log = logging.getLogger("ecs_gpu_recovery")
DOCUMENT = "AWS-RunShellScript"
#: An undelivered order must not reboot the node hours later.
DELIVERY_TIMEOUT_S = 600
SUCCESS = "Success"
_OVER = frozenset(
    {
        SUCCESS,
        "Failed",
        "TimedOut",
        "Cancelled",
        "Undeliverable",
        "Terminated",
        "DeliveryTimedOut",
        "ExecutionTimedOut",
    }
)

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
  sync "$marker" "$folder"
fi
echo "rebooting from $now"
exit 194
"""


_SAYS = "gpu-recovery reboot "
_COMMAND_ID = re.compile(r"[0-9a-fA-F-]{36}")


@dataclass(frozen=True, slots=True)
class Command:
    """One command on one host."""

    command_id: str
    status: str
    comment: str = ""

    @property
    def over(self) -> bool:
        return self.status in _OVER

    @property
    def ours(self) -> bool:
        return self.comment.startswith(_SAYS)

    @property
    def key(self) -> str:
        """The order's key, as far as the comment had room for it."""
        return self.comment.removeprefix(_SAYS) if self.ours and "/" in self.comment else ""


def comment(key: str) -> str:
    """At most 100 characters; a long key is replaced by its digest."""
    return f"{_SAYS}{key if len(_SAYS + key) <= 100 else hashlib.sha256(key.encode()).hexdigest()}"


def script(key: str) -> list[str]:
    """A job that was adopted may have any name: in the script it is a word in a comment, and nothing else."""
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    return _SCRIPT.format(key=re.sub(r"[^A-Za-z0-9._/:=@+-]", "_", key), name=name).splitlines()


def send(ssm: SSMClient, host: str, node: str, key: str) -> Command:
    """Order the reboot. A host that SSM does not know is a refusal, not something to try again."""
    from botocore.exceptions import ClientError

    try:
        with translated(f"rebooting {node}"):
            reply = ssm.send_command(
                InstanceIds=[host],
                DocumentName=DOCUMENT,
                Comment=comment(key),
                TimeoutSeconds=DELIVERY_TIMEOUT_S,
                Parameters={"commands": script(key)},
            )
    except ClientError as exc:
        if exc.response.get("Error", {}).get("Code") not in ("InvalidInstanceId", "UnsupportedPlatformType"):
            raise
        raise ClusterRefused(
            node, f"SSM cannot reach {host}: {exc.response['Error'].get('Message', 'not a managed instance')}"
        ) from exc
    return _command(reply.get("Command", {}) | {"Comment": comment(key)})


def outcome(command: Command, node: str, key: str, at: datetime) -> Fact | None:
    """What a command tells of its order; nothing while it is under way."""
    if command.status == SUCCESS:
        return RebootProven(at=at, node=node, key=key)
    if command.over:
        return RebootFailed(
            at=at, node=node, key=key, reason=f"SSM command {command.command_id} is {command.status}"
        )
    return None


def look(ssm: SSMClient, command_id: str) -> list[Command]:
    """A command by its id, once per host; each of ours has one. An id that SSM can't know is no command.

    Events tell of everybody's commands, sometimes of a thousand at once. So no answer is no trouble either: for ours
    the sweeper asks again every minute.
    """
    from botocore.exceptions import ClientError

    if not _COMMAND_ID.fullmatch(command_id):
        return []
    try:
        with translated(f"looking at command {command_id}"):
            reply = ssm.list_command_invocations(CommandId=command_id, MaxResults=50)
    except ClientError as exc:
        if exc.response.get("Error", {}).get("Code") != "InvalidCommandId":
            raise
        return []
    except Transient as exc:
        log.warning("command not seen", extra={"command": command_id, "why": str(exc)})
        return []
    return [_command(found) for found in reply.get("CommandInvocations", [])]


def _command(found: Mapping[str, Any]) -> Command:
    return Command(*(str(found.get(name, "")) for name in ("CommandId", "Status", "Comment")))


def find(ssm: SSMClient, host: str, key: str) -> Command | None:
    """The command of this order among the host's, the newest first."""
    wanted = comment(key)
    more: dict[str, str] = {}
    while True:
        with translated(f"looking for the reboot of {host}"):
            reply = ssm.list_command_invocations(InstanceId=host, MaxResults=50, **more)  # type: ignore[arg-type]
        for found in reply.get("CommandInvocations", []):
            if found.get("Comment") == wanted:
                return _command(found)
        if not reply.get("NextToken"):
            return None
        more = {"NextToken": reply["NextToken"]}
