"""Letting go of old jobs of the embedded mode: their records, logs and messages, and on request their checkpoints.

Nothing that a job which has not ended could need is touched: not its records, not its folders, not the checkpoints of
an ended job that it goes on from.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from ..core.model import Job
from .attic import folder_of
from .reads import SqliteReads
from .store import SqliteStore

#: So many jobs are let go in one write, so that the controller never waits long for its turn.
_AT_ONCE = 50


@dataclass(slots=True)
class Pruned:
    """What was let go, or would be."""

    jobs: int = 0
    bytes: int = 0


def prune(
    state: Path, store: SqliteStore, reads: SqliteReads, before: datetime, *, checkpoints: bool, really: bool
) -> Pruned:
    """Jobs that ended before that moment. With `really` False nothing is removed, only counted."""
    rows = store.read(
        "SELECT job_id FROM ecs_job WHERE live IS NULL AND updated_at<?",
        before.isoformat(timespec="microseconds"),
    )
    old = [job for job in reads.some_jobs(row[0] for row in rows) if job.status.final and not job.outbox]
    kept = {job.spec.checkpoint_dir for job in _others(store, reads, {job.id for job in old})}
    done = Pruned()
    for first in range(0, len(old), _AT_ONCE):
        some = old[first : first + _AT_ONCE]
        for job in some:
            folders = [folder_of(state / "nodes" / task.node, task.task_id) for task in reads.tasks(job)]
            done.bytes += sum(_drop_task(folder, really=really) for folder in folders)
            if checkpoints and job.spec.checkpoint_dir not in kept:
                done.bytes += _drop_checkpoints(state, job, really=really)
        if really:
            store.write(partial(_forget, jobs=some))
        done.jobs += len(some)
    return done


def _others(store: SqliteStore, reads: SqliteReads, gone: set[str]) -> Iterable[Job]:
    ids = [row[0] for row in store.read("SELECT job_id FROM ecs_job") if row[0] not in gone]
    return reads.some_jobs(ids)


def _forget(conn: sqlite3.Connection, jobs: Iterable[Job]) -> None:
    for job in jobs:
        conn.execute("DELETE FROM ecs_task WHERE job_id=?", (job.id,))
        conn.execute("DELETE FROM timeline WHERE record=?", (job.id,))
        begins = (len(job.id) + 1, f"{job.id}/")
        conn.execute("DELETE FROM notice WHERE substr(key, 1, ?)=?", begins)
        conn.execute("DELETE FROM archived WHERE substr(key, 1, ?)=?", begins)
        conn.execute("DELETE FROM ecs_job WHERE job_id=? AND live IS NULL", (job.id,))


def _drop_task(folder: Path, *, really: bool) -> int:
    """A folder that the node's agent still counts loses its log only, which is all but a few bytes of it."""
    put_away = folder.parent.name == "past"
    size = _size(folder) if put_away else _size(folder / "log")
    if really and put_away:
        shutil.rmtree(folder, ignore_errors=True)
    elif really:
        with suppress(OSError):
            (folder / "log").unlink()
    return size


def _drop_checkpoints(state: Path, job: Job, *, really: bool) -> int:
    """Only folders that were made here: one that a person named is theirs."""
    folder = Path(job.spec.checkpoint_dir)
    if folder.parent != state / "checkpoints" or folder.is_symlink():
        return 0
    size = _size(folder)
    if really:
        shutil.rmtree(folder, ignore_errors=True)
    return size


def _size(path: Path) -> int:
    """What is gone meanwhile counts nothing."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(_size(Path(entry.path)) for entry in os.scandir(path))
    except OSError:
        return 0
