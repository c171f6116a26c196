"""Where a host puts what its reboot would wipe, and how people get it back: one object in the stack's bucket per order.

The host has no right to the bucket. It is given an address that is signed for one object and an hour, with the rights
of the function that orders the reboot, which may put objects there and do nothing else.
"""

from __future__ import annotations

import logging
from typing import Any

from ..core import keys
from .shell_document import FOLDER

log = logging.getLogger("ecs_gpu_recovery")
#: An order that is delivered later than this keeps nothing; it is given up not long after.
_GOOD_FOR_S = 3600


class Evidence:
    """The bucket; with an empty name there is none, and nothing is kept."""

    def __init__(self, s3: Any, bucket: str) -> None:
        self._s3, self._bucket = s3, bucket

    def archive(self, node: str, reboot_key: str) -> str:
        """How it is called where a host is told to keep it; empty where none is."""
        return keys.evidence(reboot_key) if self.address(node, reboot_key) else ""

    def address(self, node: str, reboot_key: str) -> str:
        """No call is made for it. Without one the node is rebooted all the same, and keeps nothing."""
        if not self._bucket:
            return ""
        from botocore.exceptions import BotoCoreError

        place = {"Bucket": self._bucket, "Key": f"{FOLDER}/{node}/{keys.evidence(reboot_key)}"}
        try:
            return str(
                self._s3.generate_presigned_url(
                    ClientMethod="put_object", Params=place, ExpiresIn=_GOOD_FOR_S
                )
            )
        except BotoCoreError as exc:
            log.warning("no evidence", extra={"node": node, "why": str(exc)})
            return ""
