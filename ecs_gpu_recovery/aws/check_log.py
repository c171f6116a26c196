"""The report of a health check, read from the end of its log: ECS itself tells no more than an exit code.

It is asked for only where the verdict is not *healthy*, or the check was to look how far the training has come. Without
it the exit code stands, as it does for a check of the user's own that writes no report.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .. import check_report
from ..core.errors import Transient
from ..core.events import NodeChecked, ProgressSeen
from ..core.model import Verdict
from . import event_fields as read
from .definitions import Definitions
from .errors import code_of, translated

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient

log = logging.getLogger("ecs_gpu_recovery")
#: The report is the last line that the check prints; an engine that it started may say something after it.
_LINES = 20


class CheckLog:
    """The logs that checks of one definition write."""

    def __init__(self, logs: CloudWatchLogsClient, definitions: Definitions, check_task: str) -> None:
        self._logs, self._definitions, self._check_task = logs, definitions, check_task

    def explain(self, fact: NodeChecked) -> NodeChecked:
        """The same fact with the report's reason, and how far the training has come where the check was to look.

        A report that says otherwise than the exit code is not believed.
        """
        healthy = fact.verdict is Verdict.HEALTHY
        if (healthy and not fact.looked) or not fact.check_id:
            return fact
        report = self._report(fact.check_id)
        if report.get("verdict") != fact.verdict.value:
            return fact
        findings = "" if healthy else check_report.sentence(report)
        return replace(fact, findings=findings or fact.findings, progress=_progress(report, fact.at))

    def _report(self, check_id: str) -> Mapping[str, Any]:
        """Empty where there is none, or none that may be read: a verdict does not wait for its reason."""
        from botocore.exceptions import ClientError

        try:
            place = self._definitions.log_of(self._check_task, check_id)
            if place is None:
                return {}
            with translated(f"reading the report of check {check_id}"):
                reply = self._logs.get_log_events(
                    logGroupName=place[0], logStreamName=place[1], limit=_LINES, startFromHead=False
                )
        except (ClientError, Transient) as exc:
            why = code_of(exc) if isinstance(exc, ClientError) else str(exc)
            log.warning("no report", extra={"check": check_id, "why": why})
            return {}
        return next(filter(None, (_read(event["message"]) for event in reversed(reply["events"]))), {})


def _progress(report: Mapping[str, Any], at: datetime) -> ProgressSeen | None:
    """What the training told, as the check read it: any program may have written it."""
    said = read.member(report.get("progress"))
    step, attempt = read.whole(said.get("step")) or 0, read.whole(said.get("attempt"))
    checkpoint = read.line(said.get("checkpoint"), 200)
    if not (step > 0 or checkpoint):
        return None
    reached = read.moment(said.get("reached"))
    return ProgressSeen(at=at, step=max(0, step), checkpoint=checkpoint, attempt=attempt, reached=reached)


def _read(line: str) -> Mapping[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return data if check_report.is_report(data) else {}
