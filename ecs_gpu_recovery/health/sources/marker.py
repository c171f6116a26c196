"""How far a training has come, read from its checkpoint folder: the furthest step it tells, or else a checkpoint.

A name counts and never a time of change: files that are written anew look new. Nothing is opened through a link or from
a pipe, for a training program could have put one there, and each line is read once.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

PROGRESS_FILE = "progress.jsonl"
#: Of a file that was long when it was first met, only the end is read.
_MOST = 2 << 20
#: A checkpoint that changed within this time may still be written.
_SETTLED_S = 60.0
_MOST_ENTRIES = 10_000
_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".lock", "~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What a folder tells."""

    step: int = 0
    checkpoint: str = ""  #: where no step is told
    attempt: int | None = None
    reached: datetime | None = (
        None  #: when it came so far, as the writer says; of a checkpoint, when it last changed
    )


def tell(folder: str, emit: Callable[[Mapping[str, object]], None]) -> None:
    """How far the training has come, for a report."""
    found = MarkerReader(folder).look_everywhere()
    if found is None:
        emit({"detail": f"{folder} tells nothing"})
        return
    reached = found.reached.isoformat() if found.reached else None
    emit({"progress": {**asdict(found), "reached": reached}})
    emit({"detail": f"step {found.step}" if found.step else f"checkpoint {found.checkpoint}"})


class MarkerReader:
    """Reads one folder again and again, and remembers how far it has read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: tuple[int, int] | None = None  #: device and number of the file that was read
        self._offset = 0
        self._furthest: Marker | None = None

    def look(self) -> Marker | None:
        """None where the folder tells nothing, or can't be read."""
        try:
            self._read_steps()
        except OSError:
            return self._furthest  # it is not there, or its disk does not answer: nothing new is known
        return self._furthest

    def look_everywhere(self) -> Marker | None:
        """The same, and the names of checkpoints where no step is told."""
        found = self.look()
        try:
            return found or newest_checkpoint(self._folder)
        except OSError:
            return None

    def _read_steps(self) -> None:
        path = os.path.join(self._folder, PROGRESS_FILE)
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about = os.fstat(file)
            if (about.st_dev, about.st_ino) != self._file or about.st_size < self._offset:
                self._file, self._furthest = (about.st_dev, about.st_ino), None
                self._offset = max(0, about.st_size - _MOST)
            if about.st_size > self._offset:
                text = os.pread(file, about.st_size - self._offset, self._offset)
                whole = text.rfind(b"\n") + 1  # the last line may be half written
                self._offset += whole
                for line in text[:whole].split(b"\n"):
                    self._take(line)
        finally:
            os.close(file)

    def _take(self, line: bytes) -> None:
        said = _step(line)
        if said is not None and (self._furthest is None or said.step > self._furthest.step):
            self._furthest = said


def _step(line: bytes) -> Marker | None:
    """What a line says, which any program may have written."""
    try:
        data = json.loads(line)
        at = datetime.fromisoformat(data["at"])
        step, attempt = int(data["step"]), int(data["attempt"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if not 0 < step < 1 << 53:
        return None
    return Marker(step=step, attempt=attempt, reached=at if at.tzinfo else at.replace(tzinfo=UTC))


def newest_checkpoint(folder: str, now: float | None = None) -> Marker | None:
    """The greatest name among the checkpoints that are complete; numbers in a name count as numbers."""
    now = time.time() if now is None else now
    for name in sorted(_candidates(folder), key=_natural, reverse=True):
        changed = _last_change(os.path.join(folder, name))
        if changed is not None and changed <= now - _SETTLED_S:
            return Marker(checkpoint=name[:200], reached=datetime.fromtimestamp(changed, UTC))
    return None


def _candidates(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count >= _MOST_ENTRIES:
                return
            name = entry.name
            hidden = name.startswith((".", "tmp")) or name.endswith(_UNFINISHED) or name == PROGRESS_FILE
            if not hidden and any(c.isdigit() for c in name) and not entry.is_symlink():
                yield name


def _last_change(path: str) -> float | None:
    """Of the entry and, where it is a folder, of what lies directly in it; None for an empty one."""
    about = os.lstat(path)
    if not os.path.isdir(path):
        return about.st_mtime if about.st_size else None
    with os.scandir(path) as entries:
        inside = [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    return max(about.st_mtime, *inside) if inside else None


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts]
