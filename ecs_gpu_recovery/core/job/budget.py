"""The budget of restarts: what spends it, what gives it back, and what is said when none is left.

A restart is charged until the training has come further than ever before. So a job goes on for as long as it gets
somewhere, and ends soon when it does not. Why: docs/decisions/0016-progress-gives-restarts-back.md
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..events import ProgressSeen
from ..model import JobStatus, Marker
from ..policy import NEVER
from . import hang
from .draft import Draft

#: Nothing of the attempt that is counted trains yet.
_BETWEEN = (JobStatus.PENDING_RESTART, JobStatus.RESTARTING)
TWICE = "the same step twice: look at the data or the checkpoint"


def progress_seen(draft: Draft, ev: ProgressSeen) -> None:
    """Keep how far the training came. Further than ever before is progress, and gives the restarts back.

    What was there before the job is no progress of it. Which attempt came so far is told, or else follows from where
    the job stands: before it was restarted, it was the one before.
    """
    old = draft.marker
    if not (ev.step or ev.checkpoint) or (old is not None and not _further(ev, old)):
        return
    if ev.reached is not None and ev.reached < draft.created_at:
        draft.marker = Marker(step=ev.step, checkpoint=ev.checkpoint)
        return
    attempt = _attempt_of(draft, ev)
    draft.marker = Marker(step=ev.step, checkpoint=ev.checkpoint, attempt=attempt, at=draft.now)
    for rank in list(draft.ranks):
        if rank.frozen_at is not None and attempt == draft.attempt:  # a gang gets further together
            draft.set(rank.index, frozen_at=draft.now + draft.policy.fault_grace)
    if attempt == draft.attempt and draft.status is JobStatus.IN_PROGRESS:
        hang.heals(draft, f"it came to {f'step {ev.step}' if ev.step else f'checkpoint {ev.checkpoint}'}")
    _refill(draft, draft.attempt - attempt)


def _attempt_of(draft: Draft, ev: ProgressSeen) -> int:
    last = draft.attempt - (draft.status is JobStatus.PENDING_RESTART)
    if ev.attempt is not None:
        return max(0, min(ev.attempt, last))
    began = draft.budget.since
    late = ev.reached is not None and began is not None and ev.reached < began
    return max(0, draft.attempt - 1) if late or draft.status in _BETWEEN else draft.attempt


def _further(ev: ProgressSeen, than: Marker) -> bool:
    """Steps count; names only where no step was ever told, and only upwards: a name that comes again is no progress."""
    if ev.step or than.step:
        return ev.step > than.step
    return _natural(ev.checkpoint) > _natural(than.checkpoint)


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in a name count as numbers."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    ]


def _refill(draft: Draft, since: int) -> None:
    """So many restarts were made since the training got somewhere; those that nobody is charged for don't count."""
    spent = draft.budget
    free = tuple(attempt for attempt in spent.uncharged if attempt > draft.attempt - since)
    if draft.policy.retry_refill != NEVER:
        draft.budget = replace(spent, charged=min(spent.charged, since - len(free)), uncharged=free)


def attempt_begun(draft: Draft) -> None:
    draft.budget = replace(draft.budget, since=draft.now)


def attempt_started(draft: Draft) -> None:
    draft.budget = replace(draft.budget, started=draft.now)


def attempt_over(draft: Draft) -> None:
    """Of a training that tells nothing, time must do: a repair that has held for so long was worth its restart. The
    time it took to start is no such time."""
    spent = draft.budget
    times = [at for at in (spent.since, spent.started) if at is not None]
    held = draft.now - max(times) if times and spent.repaired else None
    if draft.marker is None and held is not None and held >= draft.policy.refill_after:
        _refill(draft, 0)


def progressed(draft: Draft) -> bool:
    """Whether this attempt came further than any before it."""
    return draft.marker is not None and draft.marker.attempt == draft.attempt


def left(draft: Draft) -> bool:
    return draft.budget.charged < draft.max_retries and draft.attempt < draft.policy.max_attempts


def left_when_healthy(draft: Draft) -> bool:
    """Whether a job goes on though no node is at fault: if it got somewhere, and wants to."""
    if not draft.restarts_when_healthy or not left(draft):
        return False
    return progressed(draft) if draft.marker is not None else draft.budget.blind < draft.max_retries


def spend(draft: Draft, *, repair: bool) -> None:
    spent = draft.budget
    blind = spent.blind + (not repair and draft.marker is None)
    draft.budget = replace(spent, charged=spent.charged + 1, blind=blind, repaired=repair)


def spend_nothing(draft: Draft) -> None:
    """The next attempt begins because a node is to be taken away."""
    spent = draft.budget
    draft.budget = replace(spent, uncharged=(*spent.uncharged, draft.attempt + 1), repaired=False)


def shortage(draft: Draft) -> str:
    """Why a job that should be restarted is not."""
    if draft.attempt >= draft.policy.max_attempts:
        return f"no restart is left ({draft.attempt} of {draft.policy.max_attempts} in all)"
    said = f"no restart is left ({draft.budget.charged} of {draft.max_retries} used)"
    return f"{said}; {TWICE}" if _stuck(draft) else said


def why_not_restarted(draft: Draft) -> str:
    """The same where no node is at fault; nothing where nobody asked for a restart."""
    if not draft.restarts_when_healthy or not draft.max_retries:
        return ""
    if draft.marker is None or not left(draft):
        return f"; {shortage(draft)}"
    return f"; {TWICE}" if _stuck(draft) else "; it made no progress"


def _stuck(draft: Draft) -> bool:
    """It has been restarted, and came no further."""
    marker = draft.marker
    return marker is not None and 0 <= marker.attempt < draft.attempt
