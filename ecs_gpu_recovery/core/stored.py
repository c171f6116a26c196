"""What every part of a stored record has, whichever release wrote it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A part of a record. Two releases may work on one record at once, during an upgrade or after a rollback: what
    only the newer one knows of it stays in it, whoever writes it next."""

    unknown_fields: str = ""  #: as JSON; only the codec reads and writes it
