"""How processes of the embedded cluster talk: small JSON files that appear whole or not at all.

Every writer here may be killed at any instruction. So a file is written beside its place and then renamed
(it replaces) or linked (it is created once, and only one writer can win). A reader never sees half a file.

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


def now_iso() -> str:
    """The time in UTC as ISO 8601, made without the datetime module to keep the shim small."""
    ns = time.time_ns()
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 1000:06d}+00:00"


def read_text(path: str) -> str | None:
    """The content of a file, or None when it (or its folder) is not there."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_json(path: str) -> Json | None:
    """The object in a file, or None when it is not there. Damage is an error: our writers leave none."""
    text = read_text(path)
    if text is None:
        return None
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return value


def _write_beside(path: str, text: str, durable: bool) -> str:
    beside = f"{path}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError:  # a full disk must not fill up further
        if os.path.exists(beside):
            os.unlink(beside)
        raise
    return beside


def sync_folder(folder: str) -> None:
    """Make renames and links inside a folder survive a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_text(path: str, text: str, durable: bool = False) -> None:
    """Replace a file in one step. Durable for orders and results that must outlive a loss of power."""
    os.replace(_write_beside(path, text, durable), path)
    if durable:
        sync_folder(os.path.dirname(path))


def write_json(path: str, value: Json, durable: bool = False) -> None:
    """Replace a JSON file in one step."""
    write_text(path, json.dumps(value, indent=1) + "\n", durable)


def create_json(path: str, value: Json, durable: bool = False) -> bool:
    """Create a JSON file that is complete from its first moment; False when it already exists.

    O_EXCL alone would show an empty file to whoever looks before the writer has written, and would leave
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
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def try_lock(path: str, patience_s: float = 0.0) -> int | None:
    """An open descriptor that holds the lock for as long as it stays open, or None when another holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
