"""Timelines are bounded: what leaves a record is archived, never dropped."""

from __future__ import annotations

from collections.abc import Iterable

from .effects import Archive
from .model import Entry

#: How many lines a node's own timeline holds. Beyond that, half of them go at once.
NODE_LINES = 50


def kept_in(node: str, archive: str) -> str:
    """Where to find what was kept of a node before its repair; nothing where none was."""
    return f"gpu-recovery evidence {node}: {archive}" if archive else ""


def archive(key: str, entries: Iterable[Entry]) -> Archive:
    """Entries that leave a record, a line each."""
    lines = (f"{e.at.isoformat()} {e.subject} {e.before}->{e.after} {e.why} {e.evidence}" for e in entries)
    return Archive(key=key, lines=tuple(line.rstrip() for line in lines))


def shortened(
    entries: tuple[Entry, ...], limit: int, subject: str
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """What a timeline keeps, and what leaves it; nothing leaves a short one.

    Half of it goes at once, so that a busy record archives now and then, not with every step. The moves of the record's
    own `subject` stay longest: where its time went is read from them, and a job of many nodes would push them out with
    its first start.
    """
    if len(entries) <= limit:
        return entries, ()
    extra = len(entries) - limit // 2
    moves = [i for i, e in enumerate(entries[:extra]) if e.subject == subject and e.before != e.after]
    kept = set(moves[max(0, len(moves) - limit // 4) :])
    return (
        tuple(e for i, e in enumerate(entries) if i >= extra or i in kept),
        tuple(e for i, e in enumerate(entries[:extra]) if i not in kept),
    )
