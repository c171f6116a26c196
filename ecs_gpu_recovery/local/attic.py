"""Where ended tasks go, so that a node that has run thousands of them looks only at the few that matter.

    tasks/   what was ordered, and the last that ended
    past/    what ended before; the oldest are removed, with their logs

A folder moves once, as a whole, and never back. So a reader who finds it in `tasks`, and then not in `past`,
has read the truth.

A node also keeps the kernel logs of its last boots, and the markers of the last reboots that were ordered. A marker is
needed while its order may be sent again, which ends with the next reboot; the rest is for people.
"""

from __future__ import annotations

import os
from pathlib import Path

from .files import read_json, try_lock, write_json

#: How many ended tasks stay where they were, and how many are let go at a time.
KEEP_ENDED, AT_ONCE = 50, 20
KEEP_PAST = 1000
#: How many kernel logs of earlier boots, and how many markers of reboots, a node keeps.
KEEP_BOOTS = 100
#: Beside the markers: how many there were before them.
_DROPPED = "dropped"


def folder_of(node_dir: Path, task_id: str) -> Path:
    """Where the task's files are now. It may be moved the moment after."""
    past = node_dir / "past" / task_id
    return past if past.is_dir() else node_dir / "tasks" / task_id


def tidy(node_dir: str, ended: set[str]) -> list[str]:
    """Put the oldest ended tasks away, once there are enough of them; which they were. For the node's agent.

    Orders are given under the node's lock. While it is held nothing is moved: the next time will do.
    """
    if len(ended) < KEEP_ENDED + AT_ONCE:
        return []
    lock = try_lock(os.path.join(node_dir, "lock"))
    if lock is None:
        return []
    try:
        return _put_away(node_dir, ended)
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


def tidy_logs(node_dir: str) -> None:
    """Remove the oldest kernel logs of earlier boots. For the one who boots the node, under its lock."""
    logs = [name for name in os.listdir(node_dir) if name.startswith("kmsg.")]
    for name in _stale(node_dir, logs, KEEP_BOOTS):
        os.unlink(os.path.join(node_dir, name))


def tidy_reboots(marker: str) -> None:
    """Remove the oldest markers beside a new one, which stays whatever the clock says. Under the node's lock.

    They are counted before they go: if the writer dies in between, a reboot is counted twice, and never forgotten.
    """
    folder = os.path.dirname(marker)
    others = [name for name in _markers(folder) if name != os.path.basename(marker)]
    stale = _stale(folder, others, KEEP_BOOTS - 1)
    if stale:
        write_json(os.path.join(folder, _DROPPED), {"count": _dropped(folder) + len(stale)}, durable=True)
    for name in stale:
        os.unlink(os.path.join(folder, name))


def reboots_ordered(node_dir: str) -> int:
    """How many reboots this node was ordered to make since it was made."""
    folder = os.path.join(node_dir, "reboots")
    return len(_markers(folder)) + _dropped(folder)


def _markers(folder: str) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".json")]


def _dropped(folder: str) -> int:
    return int((read_json(os.path.join(folder, _DROPPED)) or {"count": 0})["count"])


def _stale(folder: str, names: list[str], keep: int) -> list[str]:
    """All but the youngest files."""
    if len(names) <= keep:
        return []
    return sorted(names, key=lambda name: os.stat(os.path.join(folder, name)).st_mtime_ns)[:-keep]
