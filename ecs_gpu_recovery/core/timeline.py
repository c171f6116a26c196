"""Timelines are bounded: what leaves a record is archived, never dropped."""

from __future__ import annotations

from collections.abc import Iterable

from .effects import Archive
from .model import Entry

#: How many lines a node's own timeline holds. Beyond that, half of them go at once.
NODE_LINES = 50


def archive(key: str, entries: Iterable[Entry]) -> Archive:
    """Entries that leave a record, a line each."""
    lines = (f"{e.at.isoformat()} {e.subject} {e.before}->{e.after} {e.why} {e.evidence}" for e in entries)
    return Archive(key=key, lines=tuple(line.rstrip() for line in lines))


def shortened(entries: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """What a node's timeline keeps, and what leaves it; nothing leaves a short one."""
    if len(entries) <= NODE_LINES:
        return entries, ()
    extra = len(entries) - NODE_LINES // 2
    return entries[extra:], entries[:extra]
