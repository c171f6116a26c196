"""When the ranks of a node last wrote: files that they keep in one folder, by job and rank.

The folder holds `JOB_ID/NODE_RANK` and `JOB_ID/NODE_RANK.ANYTHING`, which a rank writes or touches as it trains, or
`JOB_ID/progress.jsonl` of the whole job. They are looked at by a child, because a shared file system may hang. Only
what was seen to change is told of: who has just begun to look knows no pause, and others are asked instead.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest
from itertools import islice, zip_longest
from pathlib import Path
from typing import Generic, TypeVar

from ecs_gpu_recovery.health.sources.marker import PROGRESS_FILE
from ecs_gpu_recovery.health.sources.probe import Emit
from ecs_gpu_recovery.health.sources.samples import Sampler, stream
from ecs_gpu_recovery.health.watch.sinks import Event

Key = TypeVar("Key", bound=Hashable)

EVERY_S = 15.0
#: What stands for the rank where the file is of the whole job.
WHOLE_JOB = -1
#: So many of the last pauses count, and so few are too few to know how long one is.
_KEPT, _LEARNED = 50, 3
#: Files that have not changed for a day are of jobs that are gone.
_GONE_S = 24 * 3600.0
#: As much is looked at, and as much is told: a watch does not know which rank is its own, nor of which job.
_JOBS, _FILES, MOST_TOLD = 1000, 10000, 512
_RANK = re.compile(r"(\d{1,5})(\..*)?")


class Writing(Generic[Key]):
    """Things that are written to, by when they were seen to change.

    Pauses are measured by the clock that only runs forward: setting the other one an hour ahead makes no hour of
    silence.
    """

    def __init__(self) -> None:
        #: Of those that are there: the time of the last change, and when it was seen.
        self.files: dict[Key, tuple[float, float]] = {}
        self.pauses: deque[float] = deque(maxlen=_KEPT)
        self.last: float | None = None  #: when something was seen to change, though it may be gone since

    def look(self, changed: Mapping[Key, float]) -> None:
        now = time.monotonic()
        self.files = {key: self._seen(key, stamp, now) for key, stamp in changed.items()}
        last = max((seen for _, seen in self.files.values()), default=None)
        if last is None or (self.last is not None and last <= self.last):
            return
        if self.last is not None:
            self.pauses.append(last - self.last)
        self.last = last

    def _seen(self, key: Key, stamp: float, now: float) -> tuple[float, float]:
        known = self.files.get(key)
        if known is None:  # how long ago that was is all that its time can tell
            return stamp, now - max(0.0, time.time() - stamp)
        return known if known[0] == stamp else (stamp, now)


class RankFiles:
    """What the files say of each rank. Asked again and again; it never waits."""

    def __init__(self, folder: Path, every_s: float = EVERY_S) -> None:
        self._patience_s = 4 * every_s
        self._sampler = Sampler(partial(_read, folder, every_s), silent_s=self._patience_s)
        self._ranks: dict[tuple[str, int], Writing[str]] = {}
        self._looked = 0.0

    def look(self) -> None:
        for found in self._sampler.rounds():
            self._looked = time.monotonic()
            changed: dict[tuple[str, int], dict[str, float]] = {}
            for one in found:
                rank = (str(one["job"]), int(str(one["rank"])))
                changed.setdefault(rank, {})[str(one["file"])] = float(str(one["stamp"]))
            self._ranks = {rank: self._ranks.get(rank) or Writing() for rank in changed}
            for rank, files in changed.items():
                self._ranks[rank].look(files)

    def told(self) -> Sequence[Event]:
        """Each job in turn, so that the busy leave room for one that hangs: its progress file, then its ranks, the last
        to write first. Nothing where the folder does not answer."""
        now = time.monotonic()
        if now - self._looked > self._patience_s:
            return []
        known = [
            (rank != WHOLE_JOB, now - one.last, job, rank, max(one.pauses))
            for (job, rank), one in self._ranks.items()
            if one.last is not None and len(one.pauses) >= _LEARNED
        ]
        jobs: dict[str, list[Event]] = {}
        for _, silent, job, rank, pause in sorted(known):
            said = {"job": job, "rank": rank, "silent_s": int(silent), "pause_s": int(pause) + 1}
            jobs.setdefault(job, []).append(said)
        turns = zip_longest(*jobs.values())
        return [one for turn in turns for one in turn if one is not None][:MOST_TOLD]

    def close(self) -> None:
        self._sampler.close()


def _read(folder: Path, every_s: float, emit: Emit) -> None:
    """In the child. Without the folder it ends, and is begun again after a while."""

    def one_round(emit: Emit) -> None:
        for job, rank, file, stamp in islice(rank_files(folder), _FILES):
            emit({"sample": {"job": job, "rank": rank, "file": file, "stamp": stamp}})

    stream(one_round, emit, every_s)


def rank_files(folder: Path) -> Iterator[tuple[str, int, str, float]]:
    """Job, rank, name and time of each file that may be of a job that runs. No link is followed."""
    for job in _jobs(folder):
        try:
            with os.scandir(folder / job) as files:
                for one in files:
                    rank = _rank(one.name)
                    if rank is None or not one.is_file(follow_symlinks=False):
                        continue
                    stamp = one.stat(follow_symlinks=False).st_mtime
                    if time.time() - stamp < _GONE_S:
                        yield job, rank, one.name, stamp
        except OSError:
            continue  # it was removed, or is not for us


def _jobs(folder: Path) -> list[str]:
    """The newest folders whose names may be those of jobs: the others are of jobs that are long over."""
    found = []
    with os.scandir(folder) as jobs:
        for one in jobs:
            try:
                if _may_be_a_job(one.name) and one.is_dir(follow_symlinks=False):
                    found.append((one.stat(follow_symlinks=False).st_mtime, one.name))
            except OSError:
                continue  # it was removed
    return [name for _, name in nlargest(_JOBS, found)]


def _may_be_a_job(name: str) -> bool:
    """What is read as the name of a job. One that is no UTF-8 can't be printed."""
    return name.isprintable() and name == name.strip()


def _rank(name: str) -> int | None:
    found = _RANK.fullmatch(name)
    return WHOLE_JOB if name == PROGRESS_FILE else int(found[1]) if found else None
