"""Who did what, when, and how it ended."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any

from ...masks import masked_text
from .database import Database

audit_log = logging.getLogger("ecs_gpu_recovery.console.audit")
#: Longer ones are cut: a record of who did what must not be a place to fill a disk from.
LONGEST_TEXT = 500
_SCHEMA = """
CREATE TABLE IF NOT EXISTS audit (
  id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, who TEXT NOT NULL, role TEXT NOT NULL,
  action TEXT NOT NULL, subject TEXT NOT NULL, why TEXT NOT NULL, outcome TEXT NOT NULL,
  address TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS audit_subject ON audit(subject, id);
"""


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


_FIELDS = tuple(AuditEntry.__dataclass_fields__)


class Audit:
    """Only ever added to."""

    def __init__(self, database: Database) -> None:
        self._db = database
        database.create(_SCHEMA)

    def note(self, entry: AuditEntry) -> None:
        texts = {
            name: masked_text(value)[:LONGEST_TEXT].encode(errors="replace").decode()
            for name, value in asdict(entry).items()
        }
        at = self._db.now().isoformat(timespec="milliseconds")
        audit_log.info("deed", extra={"deed": {"at": at, **texts}})
        self._db.run(
            "INSERT INTO audit (at, who, role, action, subject, why, outcome, address)"
            " VALUES (?,?,?,?,?,?,?,?)",
            at,
            *texts.values(),
        )

    def entries(self, *, limit: int = 100, before: int = 0, subject: str = "") -> list[dict[str, Any]]:
        """Newest first."""
        where, args = ["1=1"], []
        if before:
            where.append("id < ?")
            args.append(str(before))
        if subject:
            where.append("subject = ?")
            args.append(subject)
        found = self._db.run(
            "SELECT id, at, who, role, action, subject, why, outcome, address FROM audit"  # noqa: S608
            f" WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?",
            *args,
            limit,
        )
        return [dict(zip(("id", "at", *_FIELDS), row, strict=True)) for row in found]
