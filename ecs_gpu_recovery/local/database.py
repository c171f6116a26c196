"""One SQLite file for many threads and processes: WAL, full durability, group commit, errors in plain words.

Writers queue up; the one that gets the lock takes the whole queue into one transaction and one fsync. A write that
is refused changes nothing and does not disturb its neighbours.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import RecoveryError, Refused, Transient
from .schema import ADDED, SCHEMA, SCHEMA_VERSION

#: How long a writer waits for another process before it says that the database is busy.
_BUSY_S = 20.0


@dataclass(slots=True)
class _Write:
    act: Callable[[sqlite3.Connection], Any]
    done: bool = False
    result: Any = None
    error: Exception | None = None


class Database:
    """The file, its schema, and the two ways to use it: `read` and `write`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._local = threading.local()
        self._queue: list[_Write] = []
        self._queue_lock = threading.Lock()
        self._writing = threading.Lock()
        self._open: list[sqlite3.Connection] = []
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with _translated(self.path):
                _make_private(self.path)
                self._writer = self._connect()
                self._prepare()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        conn = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
        self._open.append(conn)
        self._must_be_known(conn)  # before the first change: a newer release wants its file back as it was
        _into_wal(conn)
        conn.execute("PRAGMA synchronous=FULL")
        return conn

    def _must_be_known(self, conn: sqlite3.Connection) -> int:
        version = int(conn.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise Refused(
                f"{self.path} was written by a newer release (schema {version}, this one knows"
                f" {SCHEMA_VERSION}): update, or use another state folder"
            )
        return version

    def _prepare(self) -> None:
        if self._must_be_known(self._writer) < SCHEMA_VERSION:
            self._writer.execute("BEGIN IMMEDIATE")
            if self._must_be_known(self._writer) < SCHEMA_VERSION:  # another process may have been faster
                for statement in SCHEMA:
                    self._writer.execute(statement)
                self._writer.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            self._writer.execute("COMMIT")
        for statement in ADDED:
            self._writer.execute(statement)

    def close(self) -> None:
        for conn in self._open:
            conn.close()
        self._open.clear()

    @property
    def _reader(self) -> sqlite3.Connection:
        conn: sqlite3.Connection | None = getattr(self._local, "conn", None)
        if conn is None:
            conn = self._local.conn = self._connect()
        return conn

    def read(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        with _translated(self.path):
            return self._reader.execute(sql, args).fetchall()

    def write(self, act: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run a write durably. It looks before it changes anything, so a refusal needs no undo."""
        mine = _Write(act)
        with self._queue_lock:
            self._queue.append(mine)
        with self._writing:
            if not mine.done:  # no writer before us took it along
                self._write_queue()
        if mine.error is not None:
            raise mine.error
        return mine.result

    def _write_queue(self) -> None:
        with self._queue_lock:
            batch, self._queue = self._queue, []
        try:
            with _translated(self.path):
                self._writer.execute("BEGIN IMMEDIATE")
                for write in batch:
                    try:
                        write.result = write.act(self._writer)
                    except RecoveryError as exc:
                        write.error = exc
                self._writer.execute("COMMIT")
        except BaseException as exc:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            told = (
                exc
                if isinstance(exc, Exception)
                else Transient("the write was interrupted; nothing was changed")
            )
            for write in batch:
                write.error = write.error or told
            if told is not exc:
                raise
        finally:
            for write in batch:
                write.done = True


def _make_private(path: Path) -> None:
    """Records hold the environment of jobs. SQLite gives its other files the mode of this one.

    A file that is there is not opened: to close it would drop the locks of all connections that this process has to it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise sqlite3.OperationalError(f"unable to open database file: {exc.strerror}") from exc


def _into_wal(conn: sqlite3.Connection) -> None:
    """Two processes that make the same database at once: here SQLite refuses without its usual patience."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            conn.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """SQLite's errors in words that say what to do."""
    try:
        yield
    except sqlite3.OperationalError as exc:
        text = str(exc)
        if "full" in text:
            raise Transient(
                f"the disk of {path.parent} is full: nothing was changed; free some space and it goes on"
            ) from exc
        if "locked" in text or "busy" in text:
            raise Transient(f"{path} is locked by another process for too long") from exc
        if "unable to open" in text or "readonly" in text:
            raise Refused(
                f"{path} cannot be opened for writing ({text}): check the folder's permissions"
            ) from exc
        if "disk I/O" in text:
            raise Transient(f"the disk of {path.parent} failed: {text}") from exc
        raise
    except sqlite3.DatabaseError as exc:
        if "malformed" in str(exc) or "not a database" in str(exc):
            raise Refused(
                f"{path} is damaged ({exc}): move it away and start with an empty state, or restore a copy"
            ) from exc
        raise
