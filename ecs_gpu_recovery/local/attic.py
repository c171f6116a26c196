"""Where ended tasks go, so that a node that has run thousands of them looks only at the few that matter.

    tasks/   what was ordered, and the last that ended
    past/    what ended before; the oldest are removed, with their logs

A folder moves once, as a whole, and never back. So whoever has read it in `tasks` and then does not find it in
`past` has read the truth.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .files import private

#: How many ended tasks stay where they were, and how many are let go at a time.
KEEP_ENDED, AT_ONCE = 50, 20
KEEP_PAST = 1000


def folder_of(node_dir: Path, task_id: str) -> Path:
    """Where the task's files are now. It may be moved the moment after."""
    past = node_dir / "past" / task_id
    return past if past.is_dir() else node_dir / "tasks" / task_id


def tidy(node_dir: str, ended: set[str]) -> list[str]:
    """Put the oldest ended tasks away, once there are enough of them; which they were. For the node's agent.

    Orders are given under the node's lock. While somebody holds it nothing is moved: the next time will do.
    """
    if len(ended) < KEEP_ENDED + AT_ONCE:
        return []
    lock = private(os.path.join(node_dir, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _put_away(node_dir, ended)
    except BlockingIOError:
        return []
    finally:
        os.close(lock)


def _put_away(node_dir: str, ended: set[str]) -> list[str]:
    tasks, past = os.path.join(node_dir, "tasks"), os.path.join(node_dir, "past")
    os.makedirs(past, mode=0o700, exist_ok=True)
    moved = _oldest(tasks, ended, KEEP_ENDED)
    for task_id in moved:
        os.rename(os.path.join(tasks, task_id), os.path.join(past, task_id))
    there = os.listdir(past)
    if len(there) > KEEP_PAST:
        import shutil  # large, and seldom needed here

        for task_id in _oldest(past, set(there), KEEP_PAST):
            shutil.rmtree(os.path.join(past, task_id))
    return moved


def _oldest(folder: str, names: set[str], keep: int) -> list[str]:
    """All but the youngest, by the time of their end."""

    def ended_at(task_id: str) -> int:
        try:
            return os.stat(os.path.join(folder, task_id, "exit.json")).st_mtime_ns
        except FileNotFoundError:
            return 0

    return sorted(names, key=ended_at)[: max(0, len(names) - keep)]
