"""What a job's time went into, read from its timeline: for the demo, the command line and the console."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from .core.model import Job, JobStatus

#: How people call the states when they ask where the time went.
PHASES = {
    JobStatus.IN_PROGRESS: "running",
    JobStatus.PENDING_HEALTHCHECK: "stopping and checking",
    JobStatus.PENDING_RESTART: "rebooting",
    JobStatus.RESTARTING: "restarting",
}


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


def phases(job: Job, now: datetime) -> list[Phase]:
    """The job's states in order, each with its begin and end. The first check is named apart."""
    moves = [entry for entry in job.timeline if entry.subject == "job" and entry.before != entry.after]
    found = []
    for entry, nxt in zip(moves, [*moves[1:], None], strict=True):
        status = JobStatus(entry.after)
        if status.final:
            break
        first_check = status is JobStatus.PENDING_HEALTHCHECK and not entry.before
        found.append(
            Phase(
                status=status,
                name="checking before the start" if first_check else PHASES[status],
                attempt=entry.attempt,
                start=entry.at,
                end=nxt.at if nxt is not None else now,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the training itself reported: one line per step."""

    steps: int = 0  #: the furthest step
    loss: float | None = None
    lost_steps: int = 0  #: trained more than once
    resumed_at: tuple[int, ...] = ()  #: the first step of every attempt after the first
    step_s: float = 0.0  #: a typical step


def progress(lines: Iterable[str]) -> Progress:
    """Read progress.jsonl, which any program may have written.

    A line that makes no sense is passed over: a killed writer leaves one. A loss that is no number is none,
    because JSON could not carry it on.
    """
    seen: list[tuple[int, int, datetime]] = []
    loss = None
    for line in lines:
        try:
            data = json.loads(line)
            at = datetime.fromisoformat(data["at"])
            seen.append(
                (int(data["attempt"]), int(data["step"]), at if at.tzinfo else at.replace(tzinfo=UTC))
            )
            loss = float(data["loss"]) if math.isfinite(data["loss"]) else None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    if not seen:
        return Progress()
    firsts: dict[int, int] = {}
    for attempt, step, _ in seen:
        firsts.setdefault(attempt, step)
    gaps = sorted(
        (b[2] - a[2]).total_seconds() / (b[1] - a[1])
        for a, b in pairwise(seen)
        if a[0] == b[0] and b[1] > a[1]
    )
    steps = [step for _, step, _ in seen]
    return Progress(
        steps=max(steps),
        loss=loss,
        lost_steps=len(steps) - len(set(steps)),
        resumed_at=tuple(step for attempt, step in sorted(firsts.items()) if attempt),
        step_s=gaps[len(gaps) // 2] if gaps else 0.0,
    )


def read_progress(checkpoint_dir: str) -> Progress:
    """The progress of a job whose checkpoint folder this machine can read; empty where it can't."""
    if not checkpoint_dir:
        return Progress()
    try:
        with open(Path(checkpoint_dir) / "progress.jsonl", errors="replace") as lines:
            return progress(lines)
    except OSError:
        return Progress()


def effective_ratio(job: Job, done: Progress, now: datetime) -> float | None:
    """Effective training time: the time of the steps that count, over all the time since submission."""
    end = job.updated_at if job.status.final else now
    total = (end - job.created_at).total_seconds()
    if not done.steps or not done.step_s or total <= 0:
        return None
    return min(1.0, done.steps * done.step_s / total)
