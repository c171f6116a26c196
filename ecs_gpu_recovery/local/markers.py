"""What jobs tell of their progress, no more often than it matters: each time is a write of the record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ..core.events import ProgressSeen
from ..core.model import Job, JobStatus

if TYPE_CHECKING:
    from ..health.sources.marker import Marker, MarkerReader

#: While a gang runs, its folder is looked at so often; the first progress of an attempt is told at once.
_LOOK_S = 1.0
_TELL_EVERY = timedelta(seconds=30)
#: More folders than this are not remembered.
_MOST = 256


class Markers:
    """Remembers how far each job's folder has been read."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._readers: dict[str, MarkerReader] = {}
        self._looked: dict[str, float] = {}

    def news(self, job: Job, *, over: bool) -> Iterator[ProgressSeen]:
        """`over`: a rank has just ended, so that what it reached is about to count."""
        over = over or (job.status is not JobStatus.IN_PROGRESS and not job.preflight)
        if not job.spec.checkpoint_dir or not (over or self._due(job.id)):
            return
        found = self._reader(job).look_everywhere()
        if found is not None and _is_news(job, found) and (over or self._matters(job)):
            yield ProgressSeen(
                at=self._now(),
                step=found.step,
                checkpoint=found.checkpoint,
                attempt=found.attempt,
                reached=found.reached,
            )

    def _due(self, job_id: str) -> bool:
        now = time.monotonic()
        if now - self._looked.get(job_id, now - _LOOK_S) < _LOOK_S:
            return False
        self._looked[job_id] = now
        return True

    def _reader(self, job: Job) -> MarkerReader:
        if job.id not in self._readers:
            from ..health.sources.marker import MarkerReader  # a mere command never needs it

            if len(self._readers) >= _MOST:
                self._readers.clear()
                self._looked.clear()
            self._readers[job.id] = MarkerReader(job.spec.checkpoint_dir)
        return self._readers[job.id]

    def _matters(self, job: Job) -> bool:
        marker = job.marker
        if marker is None or marker.attempt != job.attempt or marker.at is None:
            return True
        # A sign of life, or a good moment to stop.
        if any(rank.frozen_at or rank.leave for rank in job.ranks):
            return True
        return self._now() - marker.at >= _TELL_EVERY


def _is_news(job: Job, found: Marker) -> bool:
    known = job.marker
    return (
        known is None or found.step > known.step or (not found.step and found.checkpoint != known.checkpoint)
    )
