"""What the rank that a failed job names wrote last, read from its log once, for the message about it.

A message that says what the program died of saves a person the search for its log. It never waits for that: where
the log can't be read the message goes out without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core import keys
from ..core.effects import Notify
from ..core.errors import NotFound, Transient
from ..core.job.causes import culprit
from ..core.model import Exit, Job
from .definitions import Definitions
from .errors import code_of, translated

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient

log = logging.getLogger("ecs_gpu_recovery")
_LINES = 50
_LONGEST = 500
_DIED = (Exit.SUSPECT, Exit.FAULT, Exit.OUT_OF_MEMORY)


class LastWords:
    """Of jobs whose tasks write to CloudWatch."""

    def __init__(
        self, logs: CloudWatchLogsClient, definitions: Definitions, job: Callable[[str], Job]
    ) -> None:
        self._logs, self._definitions, self._job = logs, definitions, job

    def about(self, message: Notify) -> str:
        """One sentence; empty for a message about anything else than a failed job, or where nothing can be read."""
        said = keys.parse(message.key)
        if said is None or keys.job_failed(said.job) != message.key:
            return ""
        try:
            return self._of(self._job(said.job))
        except (NotFound, Transient) as exc:
            log.warning("no last words", extra={"job": said.job, "why": str(exc)})
            return ""

    def _of(self, job: Job) -> str:
        from botocore.exceptions import ClientError

        died = [rank for rank in job.ranks if rank.exit in _DIED and rank.task_id]
        if not died or not job.spec.task_def:
            return ""
        rank = culprit(died)
        try:
            place = self._definitions.log_of(job.spec.task_def, rank.task_id, job.spec.container)
            if place is None:
                return ""
            with translated(f"reading the log of task {rank.task_id}"):
                reply = self._logs.get_log_events(
                    logGroupName=place[0], logStreamName=place[1], limit=_LINES, startFromHead=False
                )
        except ClientError as exc:
            log.warning("no last words", extra={"job": job.id, "why": code_of(exc)})
            return ""
        from ..health.judge import training_log  # a table of patterns, which few messages need

        words, _ = training_log.last_words(str(event["message"]) for event in reply["events"])
        plain = "".join(c if c.isprintable() else " " for c in words)[:_LONGEST]
        return f"rank {rank.index} on {rank.node} wrote last: {plain}" if plain else ""
