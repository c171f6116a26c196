"""Following the logs of a gang: one place per task, lines whole and in order, nothing twice."""

from __future__ import annotations

import json
import sys
from collections import deque
from datetime import datetime

from ..control.backend import Backend, LogSource
from ..core.model import Job


class Tail:
    """Prints what is new in the logs of a job at every `pump`."""

    def __init__(
        self,
        side: Backend,
        job_id: str,
        *,
        rank: int,
        attempt: int,
        every: bool,
        as_json: bool = False,
        last: int | None = None,
        since: datetime | None = None,
    ) -> None:
        """`last`: of what is there at the first look only so many lines of each log; `since`: only what is younger."""
        self._side, self._job_id, self._rank, self._attempt, self._every = side, job_id, rank, attempt, every
        self._as_json, self._last, self._since = as_json, last, since
        self._read: dict[str, str] = {}

    def pump(self) -> bool:
        """Print what is new; whether there was anything."""
        job = self._side.job(self._job_id)
        found = False
        for source in self._side.log_sources(job):
            wanted = self._attempt if self._attempt >= 0 else None if self._every else job.attempt
            if self._rank not in (-1, source.rank) or (wanted is not None and source.attempt != wanted):
                continue
            label = (
                f"[{source.rank}]"
                if source.attempt == 0 and job.attempt == 0
                else f"[{source.rank} attempt {source.attempt}]"
            )
            for line in self._new(job, source):
                found = True
                sys.stdout.write(f"{_json(source, line) if self._as_json else f'{label} {line}'}\n")
        sys.stdout.flush()
        return found

    def _new(self, job: Job, source: LogSource) -> list[str]:
        first = source.task_id not in self._read
        place = self._read.get(source.task_id, "")
        if first and self._since is not None:
            place = self._side.log_since(source, self._since)
        lines, self._read[source.task_id] = self._side.read_log(job, source, place)
        if not first or self._last is None:
            return lines
        kept = deque(lines, maxlen=self._last)
        while lines:  # a long log comes in parts, and the end of it is asked for
            lines, self._read[source.task_id] = self._side.read_log(job, source, self._read[source.task_id])
            kept.extend(lines)
        return list(kept)


def _json(source: LogSource, line: str) -> str:
    told = {"rank": source.rank, "attempt": source.attempt, "node": source.node, "task": source.task_id}
    return json.dumps({**told, "line": line}, ensure_ascii=False)
