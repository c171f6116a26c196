"""Whether the ranks of a job still write: their logs and the job's progress file, by when they were seen to change.

How long they are silent while they work is learned as it happens: a job that writes every four minutes is not silent
after five.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

from ..core.model import Job
from ..core.node_record import WHOLE_JOB
from ..core.witness import TIMES, Silence
from ..health.sources.marker import PROGRESS_FILE
from ..health.watch.writing import Writing


class LocalSilence:
    """Asked with every look, so that no pause is missed. Kept in memory: the next controller learns anew."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[int, Writing[int]]] = {}  #: with the attempt that wrote it

    def look(self, job: Job, logs: dict[int, Path]) -> Writing[int]:
        """Note when something was written last."""
        attempt, known = self._jobs.get(job.id, (-1, Writing()))
        if attempt != job.attempt:
            known = Writing()
        self._jobs[job.id] = (job.attempt, known)
        known.look(_changed(job, logs))
        return known

    def since(self, job: Job, logs: dict[int, Path], now: datetime) -> Silence | None:
        known = self.look(job, logs)
        if known.last is None:
            return None
        what = ", ".join(
            f"rank {rank} last wrote at {_time(seen, now):%H:%M:%S}"
            for rank, (_, seen) in sorted(known.files.items())
            if rank != WHOLE_JOB
        )
        patience = timedelta(seconds=TIMES * max(known.pauses, default=0.0))
        return Silence(since=_time(known.last, now), patience=patience, what=what[:500])


def _changed(job: Job, logs: dict[int, Path]) -> dict[int, float]:
    """By rank; the progress file belongs to none of them."""
    files = dict(logs)
    if job.spec.checkpoint_dir:
        files[WHOLE_JOB] = Path(job.spec.checkpoint_dir) / PROGRESS_FILE
    found = {}
    for rank, path in files.items():
        try:
            found[rank] = os.stat(path).st_mtime
        except OSError:
            continue  # nothing written yet
    return found


def _time(seen: float, now: datetime) -> datetime:
    return now - timedelta(seconds=time.monotonic() - seen)
