"""What a job's time went into, read from its timeline: for the demo, the command line and the console."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest

from .core.job.claim import MOVED
from .core.model import Entry, Job, JobStatus

#: How people call the states when they ask where the time went.
PHASES = {
    JobStatus.IN_PROGRESS: "running",
    JobStatus.PENDING_HEALTHCHECK: "stopping and checking",
    JobStatus.PENDING_RESTART: "waiting for nodes",
    JobStatus.RESTARTING: "restarting",
}
FIRST_CHECK = "checking before the start"
EARLIER = "earlier"


#: Which run it is, and how many may follow; for none, one and more. The texts are keys of the catalogues.
RUNS = ("first run", "restarted once", "restarted {count} times")
LEFT = ("no restart left", "1 restart left", "{count} restarts left")
NEXT = "a restart waits for its nodes"


def runs(attempt: int, left: int, *, ended: bool, waits: bool = False) -> list[tuple[str, int]]:
    """Texts with their count. What is left is nobody's concern when the job has ended. A restart that `waits` is spent,
    and has not been made."""
    if waits:
        return [(RUNS[min(attempt - 1, 2)], attempt - 1), (NEXT, 1)]
    return [(RUNS[min(attempt, 2)], attempt), *([] if ended else [(LEFT[min(left, 2)], left)])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of a job's life in one state."""

    status: JobStatus
    name: str
    attempt: int
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def phases(job: Job, now: datetime, earlier: Iterable[Entry] = ()) -> list[Phase]:
    """The job's states in order, each with its begin and end. The first check is named apart.

    `earlier` are entries that no longer fit into the record. What is known from neither is one stretch
    without a name of its own, so that the sum stays right.
    """
    moves = _moves(job, earlier)
    found = []
    if moves and moves[0].before:
        before, first = JobStatus(moves[0].before), moves[0]
        attempt = first.attempt - (first.after == JobStatus.PENDING_RESTART)
        found.append(Phase(status=before, name=EARLIER, attempt=attempt, start=job.created_at, end=first.at))
    for entry, nxt in zip_longest(moves, moves[1:]):
        status = JobStatus(entry.after)
        if status.final:
            break
        first_check = status is JobStatus.PENDING_HEALTHCHECK and not entry.before
        found.append(
            Phase(
                status=status,
                name=FIRST_CHECK if first_check else PHASES[status],
                attempt=entry.attempt,
                start=entry.at,
                end=nxt.at if nxt is not None else now,
            )
        )
    return found


def _moves(job: Job, earlier: Iterable[Entry]) -> list[Entry]:
    """The job's own moves, each once, in the order in which they were made."""
    known: dict[tuple[datetime, str, str], Entry] = {}
    for entry in (*earlier, *job.timeline):
        if entry.subject == "job" and entry.before != entry.after:
            known[entry.at, entry.before, entry.after] = entry
    return list(known.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A node's time in one state, while it belonged to a job."""

    status: str
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def lanes(job: Job, now: datetime, earlier: Iterable[Entry] = ()) -> dict[str, list[Stretch]]:
    """What each node did and when while it was the job's, in the order of the ranks; as far as the entries reach.

    A node that a rank has left stands before the one that the rank went to, and each has its own part of the time.
    """
    marks: dict[str, list[tuple[datetime, str]]] = {rank.node: [] for rank in job.ranks}
    moved, joined = list[tuple[str, str]](), set[str]()
    for entry in (*earlier, *job.timeline):
        of_node = marks.setdefault(entry.subject, [])
        if entry.subject == "job" and (move := MOVED.match(entry.why)):
            moved.append((move[1], move[2]))
            joined.add(move[2])
            marks.setdefault(move[1], []).append((entry.at, ""))
        elif entry.subject in joined:  # what it was before was not the job's time
            joined.discard(entry.subject)
            of_node.append((entry.at, entry.after))
        elif entry.before != entry.after:
            if not of_node and entry.before:
                of_node.append((min(job.created_at, entry.at), entry.before))
            of_node.append((entry.at, entry.after))
    order = [rank.node for rank in job.ranks]
    for left, taken in reversed(moved):
        if left not in order:
            order.insert(order.index(taken), left)
    return {node: _stretches(marks[node], job.updated_at if job.status.final else now) for node in order}


def _stretches(marks: list[tuple[datetime, str]], end: datetime) -> list[Stretch]:
    return [
        Stretch(status=status, start=at, end=max(nxt[0] if nxt is not None else end, at))
        for (at, status), nxt in zip_longest(marks, marks[1:])
        if status
    ]


_ARCHIVED = re.compile(r"(\S+) (\S+) ([A-Z_]*)->([A-Z_]*) ?(.*)")


def archived(lines: Iterable[str]) -> list[Entry]:
    """Entries that left the record, read back from the lines that were kept of them, oldest first.

    The lines don't tell the attempt: it is counted, since each restart is one more. What can't be read is
    passed over.
    """
    found = []
    for line in lines:
        if not (parts := _ARCHIVED.fullmatch(line)):
            continue
        try:
            at = datetime.fromisoformat(parts[1])
        except ValueError:
            continue
        found.append(Entry(at=at, subject=parts[2], before=parts[3], after=parts[4], why=parts[5]))
    found.sort(key=lambda entry: entry.at)
    attempt, counted = 0, []
    for entry in found:
        if entry.subject == "job" and entry.before != entry.after:
            attempt += entry.after == JobStatus.PENDING_RESTART
        counted.append(replace(entry, attempt=attempt))
    return counted
