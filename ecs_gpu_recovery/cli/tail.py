"""Following the logs of a gang: one place per task, lines whole and in order, nothing twice."""

from __future__ import annotations

import sys

from .backend import Backend


class Tail:
    """Prints what is new in the logs of a job at every `pump`."""

    def __init__(self, side: Backend, job_id: str, *, rank: int, attempt: int, every: bool) -> None:
        self._side, self._job_id, self._rank, self._attempt, self._every = side, job_id, rank, attempt, every
        self._read: dict[str, int] = {}

    def pump(self) -> bool:
        """Print new whole lines. A last line without its end waits for it, unless nobody writes any more."""
        job = self._side.job(self._job_id)
        found = False
        for source in self._side.log_sources(job):
            if self._rank not in (-1, source.rank) or source.path is None or not source.path.exists():
                continue
            wanted = self._attempt if self._attempt >= 0 else None if self._every else job.attempt
            if wanted is not None and source.attempt != wanted:
                continue
            with open(source.path, "rb") as log:
                log.seek(self._read.get(source.task_id, 0))
                data = log.read()
            if not job.status.final and source.attempt == job.attempt:
                data = data[: data.rfind(b"\n") + 1]
            self._read[source.task_id] = self._read.get(source.task_id, 0) + len(data)
            label = (
                f"[{source.rank}]"
                if source.attempt == 0 and job.attempt == 0
                else f"[{source.rank} attempt {source.attempt}]"
            )
            for line in data.decode(errors="replace").removesuffix("\n").split("\n") if data else ():
                found = True
                sys.stdout.write(f"{label} {line}\n")
        sys.stdout.flush()
        return found
