"""The stream's memory: what was told, under which number, and what was known then.

With it a console that is started again goes on counting where it stopped, and tells what changed meanwhile.
Nothing is decided from it, so it is written without waiting for the disk: it survives the death of the process,
and after a restart of the machine it is begun anew, under a new name.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...scratch import open_scratch

log = logging.getLogger("ecs_gpu_recovery.console")
FILE = "stream.db"
#: So many events can be asked for again.
RING = 2000
_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS life (epoch TEXT NOT NULL, boot TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS event (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS known (
  kind TEXT NOT NULL, key TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One message of the stream."""

    number: int
    kind: str
    data: str  #: JSON


@dataclass(slots=True)
class Past:
    """What an earlier life of the console left."""

    epoch: str
    events: list[Event] = field(default_factory=list)
    known: dict[str, dict[str, Any]] = field(default_factory=dict)  #: by kind, then by key

    @property
    def number(self) -> int:
        return self.events[-1].number if self.events else 0


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return secrets.token_hex(8)  # nothing can be told about this machine: every life is a new one


class Journal:
    """One file. Without a path, or where it can't be used, nothing is remembered."""

    def __init__(self, path: Path | None, boot: str = "") -> None:
        self._lock = threading.Lock()
        self._conn: sqlite3.Connection | None = None
        self._held: int | None = None
        self._boot = boot or boot_id()
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._held = _only_one(path)
            if self._held is not None:
                self._conn = open_scratch(path, _VERSION, _SCHEMA)
        except (OSError, sqlite3.OperationalError) as exc:
            log.warning("the stream keeps no memory", extra={"why": f"{path}: {exc}"})

    def close(self) -> None:
        with self._lock:
            if self._conn is not None:
                self._conn.close()
                self._conn = None
            if self._held is not None:
                os.close(self._held)
                self._held = None

    def past(self) -> Past:
        """The last life's memory, or a new beginning."""
        fresh = Past(epoch=secrets.token_hex(4))
        with self._lock:
            if self._conn is None:
                return fresh
            try:
                row = self._conn.execute("SELECT epoch FROM life WHERE boot=?", (self._boot,)).fetchone()
                if row is None:
                    for table in ("life", "event", "known"):
                        self._conn.execute(f"DELETE FROM {table}")  # noqa: S608 (one of three names)
                    self._conn.execute("INSERT INTO life VALUES (?,?)", (fresh.epoch, self._boot))
                    return fresh
                events = [Event(*r) for r in self._conn.execute("SELECT * FROM event ORDER BY number")]
                found = Past(epoch=str(row[0]), events=events[-RING:])
                for kind, key, data in self._conn.execute("SELECT * FROM known"):
                    found.known.setdefault(kind, {})[key] = json.loads(data)
            except (sqlite3.Error, ValueError) as exc:
                log.warning("the stream begins anew", extra={"why": str(exc)})
                return fresh
        return found

    def add(self, events: Iterable[Event], known: Mapping[tuple[str, str], Any]) -> None:
        """Both in one transaction. A value of None is forgotten."""
        with self._lock:
            if self._conn is None:
                return
            try:
                self._conn.execute("BEGIN IMMEDIATE")
                self._conn.executemany(
                    "INSERT INTO event VALUES (?,?,?)", [(e.number, e.kind, e.data) for e in events]
                )
                for (kind, key), value in known.items():
                    if value is None:
                        self._conn.execute("DELETE FROM known WHERE kind=? AND key=?", (kind, key))
                    else:
                        row = (kind, key, json.dumps(value))
                        self._conn.execute("INSERT OR REPLACE INTO known VALUES (?,?,?)", row)
                self._conn.execute(
                    "DELETE FROM event WHERE number <= (SELECT max(number) FROM event) - ?", (RING,)
                )
                self._conn.execute("COMMIT")
            except sqlite3.Error as exc:
                # A gap in the memory must not be taken for none: the next life gets a new name.
                log.warning("the stream keeps no memory from here on", extra={"why": str(exc)})
                self._give_up()

    def _give_up(self) -> None:
        if self._conn is None:
            return
        try:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
            self._conn.execute("DELETE FROM life")
        except sqlite3.Error:
            log.warning("the stream's memory can't be marked as old")
        self._conn.close()
        self._conn = None


def _only_one(path: Path) -> int | None:
    """Two consoles on one folder would count differently: the second keeps no memory."""
    held = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held
