"""Databases that may be lost: nothing is decided from them, so nothing waits for the disk on their account.

They are written without a flush (`synchronous=OFF`): a loss of power may cost such a file, and then a new one is
begun. Only its owner can read it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path

log = logging.getLogger("ecs_gpu_recovery")


def open_scratch(path: Path, version: int, schema: str) -> sqlite3.Connection:
    """A file that is damaged, or of another version, makes room for a new one.

    Raises `sqlite3.OperationalError` for a full disk or a lock, which are no reason to throw anything away.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for _ in range(2):
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
        conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            if not (why := _unfit(conn, version)):
                conn.executescript(
                    "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; PRAGMA journal_size_limit=4194304;"
                    f"BEGIN IMMEDIATE; {schema}; PRAGMA user_version={version}; COMMIT;"
                )
                return conn
        except sqlite3.OperationalError:
            conn.close()
            raise
        except sqlite3.DatabaseError as exc:
            why = str(exc)
        conn.close()
        log.warning("a file is begun anew", extra={"file": str(path), "why": why})
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
    raise sqlite3.OperationalError(f"{path} can't be made anew")


def _unfit(conn: sqlite3.Connection, version: int) -> str:
    """Why this file can't be used; empty if it can."""
    (found,) = conn.execute("PRAGMA user_version").fetchone()
    empty = not conn.execute("SELECT 1 FROM sqlite_master").fetchone()
    if found != version and not (found == 0 and empty):
        return f"it is of version {found}"
    (said,) = conn.execute("PRAGMA quick_check(1)").fetchone()
    return "" if said == "ok" else str(said)
