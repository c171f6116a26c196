"""Logs and progress of a job, by byte position: a reader who knows where they stopped can go on without a gap."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ..core.errors import NotFound, Refused
from ..core.model import Job
from ..progress import steps_of
from .backend import Backend, LogSource
from .log_search import BLOCK, Search

LARGEST_PART = BLOCK
#: The chart shows so many points; a longer history is thinned out evenly.
MOST_POINTS = 2000
_KEPT_STREAMS, _LARGEST_STREAM = 64, 8 << 20


@dataclass(slots=True)
class _Stream:
    """A remote log as far as it has been read."""

    data: bytes = b""
    position: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Logs:
    """Local logs are files; remote ones are read forward and kept for a while."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._lock = threading.Lock()

    def sources(self, side: Backend, job: Job) -> list[dict[str, Any]]:
        return [
            {"rank": s.rank, "attempt": s.attempt, "node": s.node, "task": s.task_id, "size": _size(s)}
            for s in side.log_sources(job)
        ]

    def _source(self, side: Backend, job: Job, task: str) -> LogSource:
        """Only tasks that the records name: a path is never made from what was asked for."""
        for source in side.log_sources(job):
            if source.task_id == task:
                return source
        raise NotFound(f"{job.id} has no task {task[:80]}")

    def part(
        self, side: Backend, job_id: str, task: str, *, offset: int, limit: int, tail: int = 0
    ) -> dict[str, Any]:
        """Text from a position on, cut at the end of a line where there is one."""
        job = side.job(job_id)
        source = self._source(side, job, task)
        size, read = self._reader(side, job, source)
        start = max(0, size - tail) if tail else min(offset, size)
        data = read(start, min(limit, LARGEST_PART))
        if tail and start:  # begin with a whole line
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        data = _whole(data, last=start + len(data) >= size and job.status.final)
        return {
            "task": task,
            "rank": source.rank,
            "attempt": source.attempt,
            "node": source.node,
            "offset": start,
            "next": start + len(data),
            "size": size,
            "text": data.decode(errors="replace"),
        }

    def search(
        self,
        side: Backend,
        job_id: str,
        task: str,
        search: Search,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """What a search finds in a log before it meets a limit, or is told to stop."""
        job = side.job(job_id)
        size, read = self._reader(side, job, self._source(side, job, task), stopped)
        return {"task": task, **search.run(size, read, stopped)}

    def download(self, side: Backend, job_id: str, task: str) -> Iterator[bytes]:
        """The first part is read at once: what can't be read is refused before anything is sent."""
        job = side.job(job_id)
        blocks = self.whole(side, job, self._source(side, job, task))
        return chain([next(blocks, b"")], blocks)

    def whole(self, side: Backend, job: Job, source: LogSource) -> Iterator[bytes]:
        size, read = self._reader(side, job, source)
        at = 0
        while at < size and (data := read(at, LARGEST_PART)):
            at += len(data)
            yield data

    def _reader(
        self, side: Backend, job: Job, source: LogSource, stopped: Callable[[], bool] = lambda: False
    ) -> tuple[int, Callable[[int, int], bytes]]:
        if source.path is not None:
            path = source.path
            return _size(source), lambda start, count: _read(path, start, count)
        with self._lock:
            stream = self._streams.setdefault(source.task_id, _Stream())
            self._streams.move_to_end(source.task_id)
            while len(self._streams) > _KEPT_STREAMS:
                self._streams.popitem(last=False)
        with stream.lock:
            if len(stream.data) < _LARGEST_STREAM:
                lines, stream.position = side.read_log(
                    job, source, stream.position, enough=lambda read: read >= _LARGEST_STREAM or stopped()
                )
                stream.data += "".join(f"{line}\n" for line in lines).encode()
            data = stream.data
        return len(data), lambda start, count: data[start : start + count]


def _size(source: LogSource) -> int:
    if source.path is None:
        return 0
    try:
        return os.lstat(source.path).st_size
    except OSError:
        return 0


def _read(path: Path, start: int, count: int) -> bytes:
    """Never through a link: a training program could have put one there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    except OSError as exc:
        raise Refused(f"the log can't be read: {exc.strerror}") from exc
    try:
        return os.pread(file, count, start)
    finally:
        os.close(file)


def _whole(data: bytes, *, last: bool) -> bytes:
    if last or not data:
        return data
    end = data.rfind(b"\n") + 1
    if end:
        return data[:end]
    for back in range(min(4, len(data))):  # one very long line: at least whole characters
        try:
            data[: len(data) - back].decode()
        except UnicodeDecodeError:
            continue
        return data[: len(data) - back]
    return data


def progress_points(job: Job) -> dict[str, Any]:
    """Step, loss, attempt and time of what the training reported, for the chart."""
    found = steps_of(job)
    points = [step for step in found.each if step.loss is not None]
    every = max(1, -(-len(points) // MOST_POINTS))
    kept = [p for n, p in enumerate(points) if n % every == 0 or n == len(points) - 1]
    return {
        "count": len(points) if found.lines is None else found.lines,
        "step": [p.number for p in kept],
        "loss": [p.loss for p in kept],
        "attempt": [p.attempt for p in kept],
        "at": [p.at.timestamp() for p in kept],
    }
