"""The roll call of a gang that starts: that a rank runs is kept here until all of them do, and then written once.

Nobody waits for it meanwhile. It ends a rank's wait for its start, and a start has many minutes; no row shows it. If
this process dies, or others hear of the rest, the sweeper sees within a minute which tasks run, and writes the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.events import Fact, TaskStarted
from ..core.model import Job, JobStatus


class Roll:
    """Of one job at a time. Only tasks that the record names and still waits for are kept."""

    def __init__(self) -> None:
        self._job_id = ""
        self._kept: dict[str, Fact] = {}

    def keep(self, job: Job, facts: Sequence[Fact]) -> bool:
        """Whether these can wait: there is a rank besides whose start is not known to have come to its end."""
        if job.id != self._job_id:
            self._job_id, self._kept = job.id, {}
        waiting = {rank.task_id for rank in job.ranks if rank.live and rank.deadline is not None}
        told = {f.task_id: f for f in facts if isinstance(f, TaskStarted) and f.running}
        quiet = job.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING) and job.ending is None
        if not quiet or len(told) != len(facts) or not waiting.issuperset(told):
            return False
        if waiting <= self._kept.keys() | told.keys():
            return False
        self._kept.update(told)
        return True

    def of(self, job_id: str) -> list[Fact]:
        """What was kept, to be written with whatever comes next."""
        return list(self._kept.values()) if job_id == self._job_id else []

    def drop(self, job_id: str) -> None:
        if job_id == self._job_id:
            self._kept.clear()
