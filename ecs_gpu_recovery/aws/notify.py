"""Messages through SNS; older lines of a timeline go to a log group that outlives the functions' own."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from ..core.effects import Archive, Notify
from .errors import code_of, translated

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_sns import SNSClient

#: The record of what was decided, not news for whoever follows the log: written whatever level that is set to.
_timeline = logging.getLogger("ecs_gpu_recovery.timeline")
_timeline.setLevel(logging.INFO)


class TimelineArchive:
    """A stream of the log group for each record. Lines that were kept twice are the same lines."""

    def __init__(self, logs: CloudWatchLogsClient, group: str, now: Callable[[], datetime]) -> None:
        self._logs, self._group, self._now = logs, group, now

    def keep(self, record: str, order: Archive) -> None:
        if not self._group:
            for line in order.lines:
                _timeline.info("timeline", extra={"record": record, "line": line})
            return
        from botocore.exceptions import ClientError

        try:
            self._put(record, order)
        except ClientError as exc:
            if code_of(exc) != "ResourceNotFoundException":
                raise
            self._make_stream(record)
            self._put(record, order)

    def _put(self, record: str, order: Archive) -> None:
        """At the time of now: CloudWatch takes no line that is older than two weeks. Each says when it was itself."""
        at = int(self._now().timestamp() * 1000)
        events = [
            {"timestamp": at, "message": json.dumps({"record": record, "line": line})} for line in order.lines
        ]
        with translated(f"archiving the timeline of {record}"):
            self._logs.put_log_events(
                logGroupName=self._group,
                logStreamName=stream(record),
                logEvents=events,  # type: ignore[arg-type]
            )

    def _make_stream(self, record: str) -> None:
        from botocore.exceptions import ClientError

        try:
            with translated(f"archiving the timeline of {record}"):
                self._logs.create_log_stream(logGroupName=self._group, logStreamName=stream(record))
        except ClientError as exc:  # another function was faster
            if code_of(exc) != "ResourceAlreadyExistsException":
                raise


def stream(record: str) -> str:
    """A job of another tool may have any name; two names that become the same are told apart by a digest."""
    plain = re.sub(r"[^A-Za-z0-9._/=@+-]", "_", record)[:400]
    return plain if plain == record else f"{plain}-{hashlib.sha256(record.encode()).hexdigest()[:12]}"


class SnsNotifier:
    """One message per incident, readable as mail; the same parts again as JSON for machines."""

    def __init__(
        self,
        sns: SNSClient,
        topic: str,
        archive: TimelineArchive,
        more: Callable[[Notify], str] = lambda message: "",
        also: Callable[[Notify], None] = lambda message: None,
    ) -> None:
        """`more` says what else is known about a message, at the moment in which it is sent. `also` hears it too."""
        self._sns, self._topic, self._archive, self._more, self._also = sns, topic, archive, more, also

    def notify(self, message: Notify) -> None:
        if more := self._more(message):
            message = replace(message, evidence="; ".join(filter(None, (more, message.evidence)))[:4000])
        self._also(message)
        with translated("publishing a message"):
            self._sns.publish(
                TopicArn=self._topic,
                Subject=_subject(message.subject),
                Message=text(message),
                MessageAttributes={"key": {"DataType": "String", "StringValue": message.key[:256]}},
            )

    def resolved(self, message: Notify) -> None:
        """No mail: on the bus, for what had opened an incident there."""
        self._also(message)

    def archive(self, record: str, order: Archive) -> None:
        self._archive.keep(record, order)


def _subject(text: str) -> str:
    """SNS takes 100 printable ASCII characters."""
    return "".join(c if " " <= c <= "~" else "?" for c in text.replace("…", "..."))[:100]


def text(message: Notify) -> str:
    parts = {
        "happened": message.happened,
        "evidence": message.evidence,
        "done": message.done,
        "next": message.next,
        "node": message.node,
        "owner": message.owner,
        "team": message.team,
    }
    lines = [
        message.happened,
        "",
        *(f"{name}: {part}" for name, part in message.parts),
        "Commands act on AWS with --backend aws, or with GPU_RECOVERY_BACKEND=aws in the environment.",
        "",
        json.dumps(parts),
    ]
    return "\n".join(lines)
