"""How processes of the embedded cluster talk: small JSON files that appear whole or not at all.

Every writer here may be killed at any instruction. So a file is written beside its place and then renamed
(it replaces) or linked (it is created once, and only one writer can win). A reader never sees half a file.
Orders carry the environment of jobs, and with it their secrets: only the owner may read any of it.

The shim of every task imports this module, so it imports as little as it can.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Json = dict[str, Any]

#: What a reserved file holds at most. The end of a task is a few hundred bytes.
ROOM = 8192


class DamagedFile(ValueError):
    """A file that our writers can't have left so. It names itself, for a person has to look at it."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")
        self.path = path


def now_iso() -> str:
    """The time in UTC as ISO 8601, made without the datetime module to keep the shim small."""
    ns = time.time_ns()
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 1000:06d}+00:00"


def say(text: str) -> None:
    """One line for the log of a process of ours. It lies on the disk that may be full: then it can't be told."""
    try:
        os.write(2, f"{now_iso()} {text}\n".encode(errors="replace"))
    except OSError:
        return


def read_text(path: str) -> str | None:
    """The content of a file, or None when it (or its folder) is not there."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as exc:
        raise DamagedFile(path, "it is no text") from exc


def read_json(path: str) -> Json | None:
    """The object in a file, or None when it is not there. Damage is an error: our writers leave none."""
    text = read_text(path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise DamagedFile(path, str(exc)) from exc
    if not isinstance(value, dict):
        raise DamagedFile(path, "it does not hold a JSON object")
    return value


def _write_beside(path: str, text: str, durable: bool) -> str:
    beside = f"{path}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    try:
        with open(beside, "w", encoding="utf-8", opener=private) as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError:  # a full disk must not fill up further
        if os.path.exists(beside):
            os.unlink(beside)
        raise
    return beside


def private(path: str, flags: int) -> int:
    """Opens a file as its owner's own."""
    return os.open(path, flags, 0o600)


def sync_folder(folder: str) -> None:
    """Make renames and links inside a folder survive a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_text(path: str, text: str, durable: bool = False) -> tuple[int, int]:
    """Replace a file in one step. Durable for orders and results that must outlive a loss of power.

    The answer is the mark of what was written (`changed_at`), taken before anybody else could write over it.
    """
    beside = _write_beside(path, text, durable)
    mark = changed_at(beside)
    os.replace(beside, path)
    if durable:
        sync_folder(os.path.dirname(path))
    return mark


def write_json(path: str, value: Json, durable: bool = False) -> tuple[int, int]:
    """Replace a JSON file in one step; the mark of what was written."""
    return write_text(path, json.dumps(value, indent=1) + "\n", durable)


def create_json(path: str, value: Json, durable: bool = False) -> bool:
    """Create a JSON file that is complete from its first moment; False when it already exists.

    O_EXCL alone would show an empty file to a reader who comes before the writer has written, and would leave
    one behind if the writer dies there. A hard link is exclusive too, and arrives with its content.
    """
    beside = _write_beside(path, json.dumps(value, indent=1) + "\n", durable)
    try:
        os.link(beside, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(beside)
    if durable:
        sync_folder(os.path.dirname(path))
    return True


def reserve(path: str) -> None:
    """Take the room for a file that must be written later, however full the disk is then. May be repeated."""
    fd = os.open(f"{path}.room", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, ROOM)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_reserved(path: str, value: Json) -> None:
    """Write a JSON file into the room that was reserved for it: no new block is needed, so it can't fail for one.

    The rest of the room is filled with blanks, which mean nothing to JSON. Without a room, or with a text too
    long for it, this is an ordinary durable write.
    """
    data = json.dumps(value, indent=1).encode()
    room = f"{path}.room"
    if len(data) >= ROOM or not os.path.exists(room):
        write_json(path, value, durable=True)
        return
    fd = os.open(room, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, data.ljust(ROOM - 1) + b"\n", 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(room, path)
    sync_folder(os.path.dirname(path))


def give_room_back(path: str) -> None:
    """Nothing will be written there any more."""
    if os.path.exists(f"{path}.room"):
        os.unlink(f"{path}.room")


def changed_at(path: str) -> tuple[int, int]:
    """A cheap mark that differs after every replacement of a file; (0, 0) when it is not there."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return (0, 0)
    return (found.st_mtime_ns, found.st_ino)


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold an exclusive lock; the kernel lets go of it when the holder dies, however it dies."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def try_lock(path: str, patience_s: float = 0.0) -> int | None:
    """An open descriptor that holds the lock for as long as it stays open, or None when another holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.02)
