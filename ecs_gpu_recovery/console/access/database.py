"""The console's own file: sessions, who did what, and which submissions it has seen.

Beside the control plane's database, so that nothing here can slow down or damage a recovery.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class Database:
    """Safe for many threads; one small transaction per call. Only its owner can read the file."""

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self.now = now
        self.lock = threading.RLock()
        self._conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        self._conn.execute("PRAGMA journal_mode=WAL")

    def close(self) -> None:
        with self.lock:
            self._conn.close()

    def create(self, schema: str) -> None:
        with self.lock:
            self._conn.executescript(schema)

    def run(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        with self.lock:
            return self._conn.execute(sql, args).fetchall()

    def changed(self, sql: str, *args: object) -> bool:
        """Whether a row was written."""
        with self.lock:
            return self._conn.execute(sql, args).rowcount == 1
