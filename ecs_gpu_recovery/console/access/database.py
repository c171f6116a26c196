"""The console's own file: sessions, who did what, and which submissions it has seen.

Beside the control plane's database, so that nothing here can slow down or damage a recovery.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...core.errors import Transient


class Database:
    """Safe for many threads; one small transaction per call. Only its owner can read the file."""

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._path, self.now = path, now
        self.lock = threading.RLock()
        self._conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        with self._plainly():
            self._conn.execute("PRAGMA journal_mode=WAL")

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """One at a time, and what fails is told in words that a person can act on."""
        with self.lock:
            try:
                yield
            except sqlite3.OperationalError as exc:
                disk = f"the disk of {self._path.parent}"
                told = f"{disk} is full" if "full" in str(exc) else f"{disk} failed ({exc})"
                raise Transient(
                    f"{told}: the console can't keep who signs in and who does what; free some space and it goes on"
                ) from exc

    def close(self) -> None:
        with self.lock:
            self._conn.close()

    def create(self, schema: str) -> None:
        with self._plainly():
            self._conn.executescript(schema)

    def run(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        with self._plainly():
            return self._conn.execute(sql, args).fetchall()

    def changed(self, sql: str, *args: object) -> bool:
        """Whether a row was written."""
        with self._plainly():
            return self._conn.execute(sql, args).rowcount == 1
