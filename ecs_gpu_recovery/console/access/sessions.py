"""Signed-in browsers."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http.cookies import CookieError, SimpleCookie

from .database import Database

COOKIE = "gpu_recovery_session"
SESSION_HOURS = 12
_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (
  digest TEXT PRIMARY KEY, who TEXT NOT NULL, csrf TEXT NOT NULL, ends TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS secret (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A signed-in browser. `csrf` must come back with everything it asks to change."""

    who: str
    csrf: str


def _digest(token: str) -> str:
    """Only digests are kept: a person who reads the file can't sign in with it."""
    return hashlib.sha256(token.encode()).hexdigest()


def session_token(headers: Mapping[str, str], name: str = COOKIE) -> str:
    """What a browser got when it signed in; empty where it did not."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


class Sessions:
    """Opened by a password, found by a token, ended by their time or by their person."""

    def __init__(self, database: Database) -> None:
        self._db = database
        database.create(_SCHEMA)

    def open(self, who: str) -> tuple[str, Session]:
        token, made = secrets.token_urlsafe(32), Session(who=who, csrf=secrets.token_urlsafe(24))
        now = self._db.now()
        self._db.run("DELETE FROM session WHERE ends < ?", now.isoformat())
        ends = now + timedelta(hours=SESSION_HOURS)
        self._db.run("INSERT INTO session VALUES (?,?,?,?)", _digest(token), who, made.csrf, ends.isoformat())
        return token, made

    def find(self, token: str) -> Session | None:
        found = self._db.run("SELECT who, csrf, ends FROM session WHERE digest=?", _digest(token))
        if not found or found[0][2] < self._db.now().isoformat():
            return None
        return Session(who=found[0][0], csrf=found[0][1])

    def end(self, token: str) -> None:
        self._db.run("DELETE FROM session WHERE digest=?", _digest(token))

    def secret(self) -> bytes:
        """Made once: pages that were open while the console was restarted go on working."""
        asked = "SELECT value FROM secret WHERE name='csrf'"
        if not (
            found := self._db.run(asked)
        ):  # a page is shown on a full disk too, where nothing can be written
            self._db.run("INSERT OR IGNORE INTO secret VALUES ('csrf', ?)", secrets.token_bytes(32))
            found = self._db.run(asked)
        return bytes(found[0][0])
