"""Whether the ranks of a job still write: their logs and the job's progress file, by when they were seen to change.

How long they are silent while they work is learned as it happens: a job that writes every four minutes is not silent
after five. Pauses are measured by the clock that only runs forward: setting the other one an hour ahead makes no hour
of silence.
"""

from __future__ import annotations

import os
import time
from collections import deque
from datetime import datetime, timedelta
from pathlib import Path

from ..core.model import Job
from ..core.witness import Silence

#: A pause as long as five that were seen is none that a working job makes.
TIMES = 5
#: So many of the last pauses count.
_KEPT = 50


class _Written:
    """What was written by one attempt of a job."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.files: dict[
            int, tuple[float, float]
        ] = {}  #: by rank: the time of its last change, and when it was seen
        self.pauses: deque[float] = deque(maxlen=_KEPT)

    @property
    def last(self) -> float | None:
        return max((seen for _, seen in self.files.values()), default=None)

    def look(self, changed: dict[int, float]) -> None:
        before, now = self.last, time.monotonic()
        for rank, stamp in changed.items():
            known = self.files.get(rank)
            if known is None:  # how long ago that was is all that its time can tell
                self.files[rank] = (stamp, now - max(0.0, time.time() - stamp))
            elif known[0] != stamp:
                self.files[rank] = (stamp, now)
        if before is not None and self.last is not None and self.last > before:
            self.pauses.append(self.last - before)


class LocalSilence:
    """Asked with every look, so that no pause is missed. Kept in memory: the next controller learns anew."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Written] = {}

    def look(self, job: Job, logs: dict[int, Path]) -> None:
        """Note when something was written last."""
        known = self._jobs.get(job.id)
        if known is None or known.attempt != job.attempt:
            known = self._jobs[job.id] = _Written(job.attempt)
        known.look(_changed(job, logs))

    def forget(self, live: set[str]) -> None:
        self._jobs = {job_id: known for job_id, known in self._jobs.items() if job_id in live}

    def since(self, job: Job, logs: dict[int, Path], now: datetime) -> Silence | None:
        self.look(job, logs)
        known = self._jobs[job.id]
        if known.last is None:
            return None
        what = ", ".join(
            f"rank {rank} last wrote at {_time(seen, now):%H:%M:%S}"
            for rank, (_, seen) in sorted(known.files.items())
            if rank >= 0
        )
        patience = timedelta(seconds=TIMES * max(known.pauses, default=0.0))
        return Silence(since=_time(known.last, now), patience=patience, what=what[:500])


def _changed(job: Job, logs: dict[int, Path]) -> dict[int, float]:
    """By rank; the progress file belongs to none of them (-1)."""
    files = dict(logs)
    if job.spec.checkpoint_dir:
        files[-1] = Path(job.spec.checkpoint_dir) / "progress.jsonl"
    found = {}
    for rank, path in files.items():
        try:
            found[rank] = os.stat(path).st_mtime
        except OSError:
            continue  # nothing written yet
    return found


def _time(seen: float, now: datetime) -> datetime:
    return now - timedelta(seconds=time.monotonic() - seen)
