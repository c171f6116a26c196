"""Whether the ranks of a job still write: their logs and the job's progress file, by the times of their last changes.

How long they are silent while they work is learned as it happens: a job that writes every four minutes is not silent
after five.
"""

from __future__ import annotations

import os
from collections import deque
from datetime import UTC, datetime, timedelta
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
        self.last: float | None = None
        self.pauses: deque[float] = deque(maxlen=_KEPT)

    def at(self, moment: float) -> None:
        if self.last is not None and moment > self.last:
            self.pauses.append(moment - self.last)
        self.last = moment if self.last is None else max(self.last, moment)


class LocalSilence:
    """Asked with every look, so that no pause is missed. Kept in memory: the next controller learns anew."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Written] = {}

    def look(self, job: Job, logs: dict[int, Path]) -> None:
        """Note when something was written last."""
        known = self._jobs.get(job.id)
        if known is None or known.attempt != job.attempt:
            known = self._jobs[job.id] = _Written(job.attempt)
        times = _changed(job, logs)
        if times:
            known.at(max(times.values()))

    def forget(self, live: set[str]) -> None:
        self._jobs = {job_id: known for job_id, known in self._jobs.items() if job_id in live}

    def since(self, job: Job, logs: dict[int, Path]) -> Silence | None:
        self.look(job, logs)
        known = self._jobs[job.id]
        if known.last is None:
            return None
        times = _changed(job, logs)
        what = ", ".join(
            f"rank {rank} last wrote at {_time(at):%H:%M:%S}"
            for rank, at in sorted(times.items())
            if rank >= 0
        )
        patience = timedelta(seconds=TIMES * max(known.pauses, default=0.0))
        return Silence(since=_time(known.last), patience=patience, what=what[:500])


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


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
