"""Whether the ranks of a job still write, asked of CloudWatch Logs in one cheap question, where no watch tells it.

A stream's `lastEventTimestamp` would be cheaper still, and lags behind by hours. How long the ranks are silent while
they work is learned from the times of the last lines of one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from ..core.errors import Transient
from ..core.model import Job
from ..core.witness import TIMES, Silence
from .definitions import Definitions
from .errors import code_of, translated

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient

log = logging.getLogger("ecs_gpu_recovery")
#: CloudWatch takes so many streams in one question.
_STREAMS = 100
#: It may answer with empty pages for a while. If this many say nothing, nobody knows.
_PAGES = 5
#: The lines whose times tell how long a working rank is silent.
_LINES = 100


class LogSilence:
    """Keeps nothing: asked again, it asks again."""

    def __init__(self, logs: CloudWatchLogsClient, definitions: Definitions) -> None:
        self._logs, self._definitions = logs, definitions

    def since(self, job: Job, since: datetime) -> Silence | None:
        """None where a rank has written, or does not write to CloudWatch, or its log may not be read."""
        from botocore.exceptions import ClientError

        try:
            places = [self._definitions.log_of(job.spec.task_def, rank.task_id) for rank in job.ranks]
            known = [place for place in places if place is not None]
            if len(known) < len(places) or any(self._written(some, since) for some in _parts(known)):
                return None
            return Silence(since=since, patience=self._patience(*known[0], since))
        except (ClientError, Transient) as exc:
            why = code_of(exc) if isinstance(exc, ClientError) else str(exc)
            log.warning("logs not asked", extra={"job": job.id, "why": why})
            return None

    def _written(self, places: Sequence[tuple[str, str]], since: datetime) -> bool:
        """Whether one of them wrote. Where CloudWatch does not come to an end of it, it counts as if one had."""
        more: dict[str, str] = {}
        for _ in range(_PAGES):
            with translated("asking whether ranks still write"):
                reply = self._logs.filter_log_events(
                    logGroupName=places[0][0],
                    logStreamNames=[stream for _, stream in places],
                    startTime=round(since.timestamp() * 1000) + 1,
                    limit=1,
                    **more,  # type: ignore[arg-type]
                )
            if reply["events"]:
                return True
            if not reply.get("nextToken"):
                return False
            more = {"nextToken": reply["nextToken"]}
        return True

    def _patience(self, group: str, stream: str, until: datetime) -> timedelta:
        """The longest pause between two lines of before, several times."""
        with translated("learning how often a rank writes"):
            reply = self._logs.get_log_events(
                logGroupName=group,
                logStreamName=stream,
                endTime=round(until.timestamp() * 1000) + 1,
                limit=_LINES,
                startFromHead=False,
            )
        times = sorted(event["timestamp"] for event in reply["events"])
        longest = max((after - before for before, after in pairwise(times)), default=0)
        return timedelta(milliseconds=TIMES * longest)


def _parts(places: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Those of one group together, as many as fit into one question."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for place in places:
        groups.setdefault(place[0], []).append(place)
    return [some[i : i + _STREAMS] for some in groups.values() for i in range(0, len(some), _STREAMS)]
