"""What the console itself must remember: sessions, who did what, and which submissions it has seen.

A file of its own beside the control plane's database, so that nothing here can slow down or damage a
recovery.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ..views import masked_text

audit_log = logging.getLogger("ecs_gpu_recovery.console.audit")
SESSION_HOURS = 12
#: For so long the same key is the same submission.
REMEMBER_DAYS = 30
#: Longer ones are cut: a record of who did what must not be a place to fill a disk from.
LONGEST_TEXT = 500
_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (
  digest TEXT PRIMARY KEY, who TEXT NOT NULL, csrf TEXT NOT NULL, ends TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit (
  id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, who TEXT NOT NULL, role TEXT NOT NULL,
  action TEXT NOT NULL, subject TEXT NOT NULL, why TEXT NOT NULL, outcome TEXT NOT NULL,
  address TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS audit_subject ON audit(subject, id);
CREATE TABLE IF NOT EXISTS secret (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS submission (
  key TEXT PRIMARY KEY, digest TEXT NOT NULL, job_id TEXT NOT NULL, at TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A signed-in browser. `csrf` must come back with everything it asks to change."""

    who: str
    csrf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line of the audit."""

    who: str
    role: str
    action: str
    subject: str = ""
    why: str = ""
    outcome: str = "done"
    address: str = ""


_DEED = ("who", "role", "action", "subject", "why", "outcome", "address")


def _digest(token: str) -> str:
    """Only digests are kept: whoever reads the file can't sign in with it."""
    return hashlib.sha256(token.encode()).hexdigest()


class Memory:
    """Safe for many threads; one small transaction per call."""

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._now = now
        self._lock = threading.Lock()
        self._conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        self._conn.execute("PRAGMA journal_mode=WAL")
        self._conn.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._conn.close()

    def _run(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._conn.execute(sql, args).fetchall()

    # -- sessions ------------------------------------------------------------------------------------------

    def open_session(self, who: str) -> tuple[str, Session]:
        token, made = secrets.token_urlsafe(32), Session(who=who, csrf=secrets.token_urlsafe(24))
        now = self._now()
        self._run("DELETE FROM session WHERE ends < ?", now.isoformat())
        ends = now + timedelta(hours=SESSION_HOURS)
        self._run("INSERT INTO session VALUES (?,?,?,?)", _digest(token), who, made.csrf, ends.isoformat())
        return token, made

    def session(self, token: str) -> Session | None:
        found = self._run("SELECT who, csrf, ends FROM session WHERE digest=?", _digest(token))
        if not found or found[0][2] < self._now().isoformat():
            return None
        return Session(who=found[0][0], csrf=found[0][1])

    def end_session(self, token: str) -> None:
        self._run("DELETE FROM session WHERE digest=?", _digest(token))

    def secret(self) -> bytes:
        """Made once: pages that were open while the console was restarted go on working."""
        self._run("INSERT OR IGNORE INTO secret VALUES ('csrf', ?)", secrets.token_bytes(32))
        ((value,),) = self._run("SELECT value FROM secret WHERE name='csrf'")
        return bytes(value)

    # -- audit ---------------------------------------------------------------------------------------------

    def note(self, deed: AuditEntry) -> None:
        values = (deed.who, deed.role, deed.action, deed.subject, deed.why, deed.outcome, deed.address)
        texts = [masked_text(value)[:LONGEST_TEXT].encode(errors="replace").decode() for value in values]
        at = self._now().isoformat(timespec="milliseconds")
        audit_log.info("deed", extra={"deed": {"at": at, **dict(zip(_DEED, texts, strict=True))}})
        self._run(
            "INSERT INTO audit (at, who, role, action, subject, why, outcome, address)"
            " VALUES (?,?,?,?,?,?,?,?)",
            at,
            *texts,
        )

    def audit(self, *, limit: int = 100, before: int = 0, subject: str = "") -> list[dict[str, Any]]:
        """Newest first."""
        where, args = ["1=1"], []
        if before:
            where.append("id < ?")
            args.append(str(before))
        if subject:
            where.append("subject = ?")
            args.append(subject)
        found = self._run(
            "SELECT id, at, who, role, action, subject, why, outcome, address FROM audit"  # noqa: S608
            f" WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?",
            *args,
            limit,
        )
        return [dict(zip(("id", "at", *_DEED), row, strict=True)) for row in found]

    # -- submissions ---------------------------------------------------------------------------------------

    def reserve(self, key: str, digest: str, job_id: str) -> tuple[str, str, bool]:
        """The digest and job id that belong to this key, and whether they are these: it was not used before."""
        now, old = self._now(), self._now() - timedelta(days=REMEMBER_DAYS)
        with self._lock:
            run = self._conn.execute
            run("DELETE FROM submission WHERE at < ?", (old.isoformat(),))
            row = (key, digest, job_id, now.isoformat())
            new = run("INSERT OR IGNORE INTO submission VALUES (?,?,?,?)", row).rowcount == 1
            found = run("SELECT digest, job_id FROM submission WHERE key=?", (key,)).fetchone()
        return str(found[0]), str(found[1]), new

    def forget(self, key: str) -> None:
        """A submission that was refused leaves its key free."""
        self._run("DELETE FROM submission WHERE key=?", key)
