"""Has hosts keep where the ranks of a gang that stands still wait, with the stack's own document, before it is stopped.

What is found goes to the bucket of evidence, beside what is kept before reboots. Nobody waits for it, and nothing is
decided by it: a look that can't be ordered costs only itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..core import keys
from .errors import translated
from .evidence import Evidence
from .hang_document import arguments

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

log = logging.getLogger("ecs_gpu_recovery")
#: A host that SSM can't reach by then is not asked any more: the gang may have been stopped.
_DELIVERY_S = 60


class HangLook:
    """The looks of one stack for one cluster. Without a bucket there is no document, and nobody looks."""

    def __init__(self, ssm: SSMClient, evidence: Evidence, *, document: str, cluster: str) -> None:
        self._ssm, self._evidence, self._document = ssm, evidence, document
        self._says = f"gpu-recovery {cluster.rpartition('/')[2]} look"

    def send(self, key: str, tasks: Iterable[tuple[str, str, str]]) -> None:
        """One order for each node, host and task. The host itself does the same look once."""
        from botocore.exceptions import ClientError

        for node, host, task in tasks:
            own = keys.hang_look(key, node)
            address = self._evidence.address(node, own)
            if not (address and host and task):
                continue
            try:
                with translated(f"looking at {node}"):
                    self._ssm.send_command(
                        InstanceIds=[host],
                        DocumentName=self._document,
                        Comment=f"{self._says} {task}"[:100],
                        TimeoutSeconds=_DELIVERY_S,
                        Parameters=arguments(self._document, own, task, address),
                    )
            except ClientError as exc:  # whatever the no is for, the hang is to be ended all the same
                log.warning("nobody looks at a hang", extra={"node": node, "why": str(exc)})
