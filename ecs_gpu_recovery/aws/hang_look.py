"""Has hosts keep where the ranks of a gang that stands still wait, with the stack's own document, before it is stopped.

What is found goes to the bucket of evidence, beside what is kept before reboots. What NCCL says is printed too, for it
names the rank that the others wait for. Nobody waits for either, and a look that can't be ordered costs only itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ..core.model import Rank
from ..core.witness import Named
from ..waited_for import named
from .errors import translated
from .evidence import Evidence
from .hang_document import arguments
from .run_command import recent

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

log = logging.getLogger("ecs_gpu_recovery")
#: A host that SSM can't reach by then is not asked any more: the gang may have been stopped.
_DELIVERY_S = 60
#: What one NCCL says is said of all ranks, so few are asked.
_MOST_ASKED = 4


class HangLook:
    """The looks of one stack for one cluster. Without a bucket there is no document, and nobody looks."""

    def __init__(self, ssm: SSMClient, evidence: Evidence, *, document: str, cluster: str) -> None:
        self._ssm, self._evidence, self._document = ssm, evidence, document
        self._says = f"gpu-recovery {cluster.rpartition('/')[2]} look"

    def send(self, key: str, node: str, host: str, task: str) -> None:
        """The host itself does the same look once."""
        from botocore.exceptions import ClientError

        address = self._evidence.address(node, key)
        if not (address and host and task):
            return
        try:
            with translated(f"looking at {node}"):
                self._ssm.send_command(
                    InstanceIds=[host],
                    DocumentName=self._document,
                    Comment=self._comment(task),
                    TimeoutSeconds=_DELIVERY_S,
                    Parameters=arguments(self._document, key, task, address),
                )
        except ClientError as exc:  # whatever the no is for, the hang is to be ended all the same
            log.warning("nobody looks at a hang", extra={"node": node, "why": str(exc)})

    def named(self, places: Iterable[tuple[str, str]], gang: Sequence[Rank], since: datetime) -> Named | None:
        """What came back from these hosts and tasks: of the first whose NCCL has answered. What came back before the
        hang began was of another one."""
        for host, task in [(host, task) for host, task in places if host and task][:_MOST_ASKED]:
            for said in self._answers(host, task, since):
                if (found := named(said, gang)) is not None:
                    return found
        return None

    def _comment(self, task: str) -> str:
        return f"{self._says} {task}"[:100]

    def _answers(self, host: str, task: str, since: datetime) -> list[str]:
        """What the looks at a task printed, as much as SSM lists of it: 2,500 characters."""
        with translated(f"reading what {host} has seen"):
            reply = self._ssm.list_command_invocations(
                InstanceId=host,
                Details=True,
                MaxResults=20,
                Filters=recent(self._document, since),
            )
        return [
            str(plugin.get("Output", ""))
            for found in reply.get("CommandInvocations", [])
            if found.get("Comment") == self._comment(task)
            for plugin in found.get("CommandPlugins", [])
        ]
