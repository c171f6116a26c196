"""Which submissions the console has seen: the same key is the same job, however often it is sent."""

from __future__ import annotations

from datetime import timedelta

from .access.database import Database

#: For so long the same key is the same submission.
REMEMBER_DAYS = 30
_SCHEMA = """
CREATE TABLE IF NOT EXISTS submission (
  key TEXT PRIMARY KEY, digest TEXT NOT NULL, job_id TEXT NOT NULL, at TEXT NOT NULL) WITHOUT ROWID;
"""


class Submissions:
    """Keys that callers chose, with what they asked for and the job that became of it."""

    def __init__(self, database: Database) -> None:
        self._db = database
        database.create(_SCHEMA)

    def reserve(self, key: str, digest: str, job_id: str) -> tuple[str, str, bool]:
        """The digest and job id that belong to this key, and whether they are these: it was not used before."""
        now = self._db.now()
        old = now - timedelta(days=REMEMBER_DAYS)
        with self._db.lock:
            self._db.run("DELETE FROM submission WHERE at < ?", old.isoformat())
            row = (key, digest, job_id, now.isoformat())
            new = self._db.changed("INSERT OR IGNORE INTO submission VALUES (?,?,?,?)", *row)
            ((digest, job_id),) = self._db.run("SELECT digest, job_id FROM submission WHERE key=?", key)
        return digest, job_id, new

    def forget(self, key: str) -> None:
        """A submission that was refused leaves its key free."""
        self._db.run("DELETE FROM submission WHERE key=?", key)
