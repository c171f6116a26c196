"""What a machine knows is kept before it is taken away for good, as it is before a reboot.

The stack's own document runs last_look.sh on the host, which keeps the same as the one for reboots and changes nothing.
It has its time, and then the machine is taken away, whatever it has told: nobody else is helped by a bad machine that
stays.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..core import keys
from . import shell_document
from .errors import translated
from .evidence import Evidence
from .run_command import OVER, SUCCESS, sent

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

log = logging.getLogger("ecs_gpu_recovery")
_SUFFIX = "-LastLook"
#: Until the host must have the order, and how long the script may run: it sends what it has after 70 s.
_DELIVERY_S, _RUNS_S = 60, 120
#: By then SSM has said what became of it, or never will.
_HAS = timedelta(seconds=2 * (_DELIVERY_S + _RUNS_S))


def name(stack: str) -> str:
    return f"{stack}{_SUFFIX}"


def content(bucket: str) -> dict[str, Any]:
    """What is kept can be sent to this bucket and nowhere else."""
    return shell_document.content(
        "look",
        ("last_look.sh", "kept.sh"),
        "Keeps what a GPU node knows before its machine is taken away",
        {
            "key": shell_document.key_parameter(),
            "marker": shell_document.marker_parameter("The look's marker on the host: it is not done twice"),
            "evidence": shell_document.parameter(
                "Where to send what is kept: a signed address", shell_document.evidence_pattern(bucket)
            ),
        },
        seconds=_RUNS_S,
    )


def arguments(document: str, cluster: str, key: str, address: str) -> dict[str, list[str]]:
    marker = shell_document.marker(document, cluster, key)
    return {"key": [shell_document.key_argument(key)], "marker": [marker], "evidence": [address]}


class LastLook:
    """The last looks of one stack for one cluster. Without a bucket there is no document, and nobody looks."""

    def __init__(self, ssm: SSMClient, evidence: Evidence, *, document: str, cluster: str) -> None:
        self._ssm, self._evidence, self._document = ssm, evidence, document
        self._cluster = cluster.rpartition("/")[2]

    def kept(self, host: str, node: str, key: str, now: datetime, *, again: bool) -> str | None:
        """The archive of what the machine knows; empty if it can't be asked, or has had its time. None: it is at it.

        `again`: it may have been asked before. The host itself answers the same question once.
        """
        address = self._evidence.address(node, key)
        if not address:
            return ""
        asked = self._asked(host, key, now) if again else []
        if not asked:
            return None if self._ask(host, node, key, address) else ""
        if any(each["Status"] not in OVER and each["RequestedDateTime"] >= now - _HAS for each in asked):
            return None
        return keys.evidence(key) if any(each["Status"] == SUCCESS for each in asked) else ""

    def _comment(self, key: str) -> str:
        """At most 100 characters; a key that is longer is known by its marker."""
        whole = f"gpu-recovery {self._cluster} last look {key}"
        return whole if len(whole) <= 100 else shell_document.marker(self._document, whole)

    def _ask(self, host: str, node: str, key: str, address: str) -> bool:
        """Whether it was sent. Whatever the no is for, the machine is taken away all the same."""
        from botocore.exceptions import ClientError

        try:
            with translated(f"looking at {node} for the last time"):
                self._ssm.send_command(
                    InstanceIds=[host],
                    DocumentName=self._document,
                    Comment=self._comment(key),
                    TimeoutSeconds=_DELIVERY_S,
                    Parameters=arguments(self._document, self._cluster, key, address),
                )
        except ClientError as exc:
            log.warning("nothing is kept of a machine", extra={"node": node, "why": str(exc)})
            return False
        return True

    def _asked(self, host: str, key: str, now: datetime) -> list[Mapping[str, Any]]:
        wanted, found = self._comment(key), sent(self._ssm, self._document, host, now - timedelta(days=2))
        return [each for each in found if each.get("Comment") == wanted]
