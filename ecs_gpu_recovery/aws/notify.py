"""Messages through SNS; older timeline lines go to the log, where they are kept as long as the log group says."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from ..core.effects import Archive, Notify
from .errors import translated

if TYPE_CHECKING:
    from mypy_boto3_sns import SNSClient

log = logging.getLogger("ecs_gpu_recovery")


class SnsNotifier:
    """One message per incident, readable as mail; the same parts again as JSON for machines."""

    def __init__(self, sns: SNSClient, topic: str) -> None:
        self._sns, self._topic = sns, topic

    def notify(self, message: Notify) -> None:
        with translated("publishing a message"):
            self._sns.publish(
                TopicArn=self._topic,
                Subject=_subject(message.subject),
                Message=text(message),
                MessageAttributes={"key": {"DataType": "String", "StringValue": message.key[:256]}},
            )

    def archive(self, record: str, order: Archive) -> None:
        for line in order.lines:
            log.info("timeline", extra={"record": record, "line": line})


def _subject(text: str) -> str:
    """SNS takes 100 printable ASCII characters."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:100]


def text(message: Notify) -> str:
    parts = {
        "happened": message.happened,
        "evidence": message.evidence,
        "done": message.done,
        "next": message.next,
        "node": message.node,
    }
    lines = [
        message.happened,
        "",
        f"Evidence: {message.evidence or 'none'}",
        f"Done: {message.done}",
        f"Next: {message.next}",
        "Commands act on AWS with --backend aws, or with GPU_RECOVERY_BACKEND=aws in the environment.",
        "",
        json.dumps(parts),
    ]
    return "\n".join(lines)
