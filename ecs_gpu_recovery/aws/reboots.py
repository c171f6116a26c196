"""Reboots through SSM Run Command: an order is sent with the stack's own document, found again, and called back.

A command is ours if it was sent with that document and its comment names this cluster. Which order it is, the comment
tells too; whose proof it may be, the record decides, which knows its host.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..core.errors import ClusterRefused, Transient
from ..core.events import Fact, RebootFailed, RebootProven
from ..settings import REBOOT_DELIVERY
from .errors import code_of, translated
from .evidence import Evidence
from .reboot_document import arguments
from .run_command import OVER, SUCCESS, sent

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

log = logging.getLogger("ecs_gpu_recovery")
#: A command that is older belongs to an earlier order, even if that was called the same.
REMEMBERED = timedelta(days=2)
#: For how long after a node was given up it is looked for orders that are still under way.
CALLED_BACK_FOR = timedelta(hours=1)
_COMMAND_ID = re.compile(r"[0-9a-fA-F-]{36}")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of ours on one host. `key` is the order's, or empty where the comment had no room for it."""

    command_id: str
    status: str
    host: str
    key: str = ""

    @property
    def over(self) -> bool:
        return self.status in OVER


class Reboots:
    """The orders of one stack for one cluster. `beside` are families of tasks that a reboot may interrupt."""

    def __init__(
        self, ssm: SSMClient, evidence: Evidence, *, document: str, cluster: str, beside: Iterable[str] = ()
    ) -> None:
        self.beside = frozenset(beside)
        self._ssm, self._evidence, self._document, self._cluster = (
            ssm,
            evidence,
            document,
            cluster.rpartition("/")[2],
        )
        self._says = f"gpu-recovery {self._cluster} reboot "

    def comment(self, key: str) -> str:
        """At most 100 characters; what is longer is replaced by its digest."""
        whole = self._says + key
        return whole if len(whole) <= 100 else f"gpu-recovery {hashlib.sha256(whole.encode()).hexdigest()}"

    def send(self, host: str, node: str, key: str) -> Command:
        """Order the reboot. A host that SSM does not know is a refusal, not something to try again."""
        from botocore.exceptions import ClientError

        given = arguments(self._document, self._cluster, key, self._evidence.address(node, key))
        try:
            with translated(f"rebooting {node}"):
                reply = self._ssm.send_command(
                    InstanceIds=[host],
                    DocumentName=self._document,
                    Comment=self.comment(key),
                    TimeoutSeconds=int(REBOOT_DELIVERY.total_seconds()),
                    Parameters=given,
                )
        except ClientError as exc:
            if code_of(exc) not in ("InvalidInstanceId", "UnsupportedPlatformType"):
                raise
            why = exc.response["Error"].get("Message", "not a managed instance")
            raise ClusterRefused(node, f"SSM cannot reach {host}: {why}") from exc
        sent = reply.get("Command", {})
        return Command(str(sent.get("CommandId", "")), str(sent.get("Status", "")), host, key)

    def kept(self, node: str, key: str) -> str:
        """The archive of what the host is told to keep first; empty where it keeps nothing."""
        return self._evidence.archive(node, key)

    def find(self, host: str, key: str, now: datetime) -> Command | None:
        """The command of this order among the host's, the newest first."""
        wanted = self.comment(key)
        for found in self._on(host, now):
            if found.get("Comment") == wanted:
                return Command(str(found["CommandId"]), str(found.get("Status", "")), host, key)
        return None

    def call_back(self, host: str, now: datetime) -> None:
        """No order for this host is waited for any more: what is still under way must not reboot it in other hands."""
        for found in self._on(host, now):
            command = self._read(found)
            if self._is_ours(found) and not command.over:
                with translated(f"calling back the reboot of {host}"):
                    self._ssm.cancel_command(CommandId=command.command_id, InstanceIds=[host])
                log.warning("reboot called back", extra={"host": host, "command": command.command_id})

    def _on(self, host: str, now: datetime) -> Iterator[Mapping[str, Any]]:
        return sent(self._ssm, self._document, host, now - REMEMBERED)

    def look(self, command_id: str) -> list[Command]:
        """A command by its id, once per host, if it is ours. An id that SSM can't know is no command.

        No answer is no trouble either: the sweeper asks for every order every minute.
        """
        from botocore.exceptions import ClientError

        if not _COMMAND_ID.fullmatch(command_id):
            return []
        try:
            with translated(f"looking at command {command_id}"):
                reply = self._ssm.list_command_invocations(CommandId=command_id, MaxResults=50)
        except ClientError as exc:
            if code_of(exc) != "InvalidCommandId":
                raise
            return []
        except Transient as exc:
            log.warning("command not seen", extra={"command": command_id, "why": str(exc)})
            return []
        return [self._read(found) for found in reply.get("CommandInvocations", []) if self._is_ours(found)]

    def _is_ours(self, found: Mapping[str, Any]) -> bool:
        """By the document, and by the comment: another stack may have been given the same document's name before."""
        said = str(found.get("Comment", ""))
        digest = re.fullmatch(r"gpu-recovery [0-9a-f]{64}", said)
        return found.get("DocumentName") == self._document and (
            said.startswith(self._says) or digest is not None
        )

    def _read(self, found: Mapping[str, Any]) -> Command:
        said = str(found.get("Comment", ""))
        key = said.removeprefix(self._says) if said.startswith(self._says) else ""
        return Command(
            str(found.get("CommandId", "")),
            str(found.get("Status", "")),
            str(found.get("InstanceId", "")),
            key,
        )


def outcome(command: Command, node: str, key: str, at: datetime) -> Fact | None:
    """What a command tells of its order; nothing while it is under way."""
    if command.status == SUCCESS:
        return RebootProven(at=at, node=node, key=key)
    if command.over:
        return RebootFailed(
            at=at, node=node, key=key, reason=f"SSM command {command.command_id} is {command.status}"
        )
    return None
