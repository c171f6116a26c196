"""A job that neither trains nor dies: two witnesses end its attempt, one tells a person.

The GPUs are one witness, what the ranks write is the other. Both must have stood still for `HANG_AFTER_S`, on the whole
gang. Ranks that have finished belong to it no more. Nothing is concluded while a rank starts, is stopped, or is away:
then somebody else decides.
"""

from __future__ import annotations

from datetime import datetime

from .. import messages
from ..events import GangStalled
from ..model import Exit, Job, Rank, TaskStatus
from .draft import Draft

#: How the notes of a hang begin in the timeline: one that only people hear of, and one that ends the attempt.
NOTED, SEEN = "the job may hang", "the job hangs: "
#: And of one that was none, or is over.
HEALED = "the job trains again"
#: In the reason of every stop for a hang: what stands still is looked at before it is ended.
HANGS = "the gang hangs"


def gang_stalled(draft: Draft, ev: GangStalled) -> None:
    """What the sweeper has put together for this attempt. It says so again and again while it lasts."""
    if (
        ev.attempt != draft.attempt
        or draft.ending is not None
        or not all(_runs(draft, r) for r in gang(draft))
    ):
        return
    if ev.works:
        heals(draft, "the GPUs of every node have worked since")
    elif two_witnesses(draft, ev):
        if draft.recovers_hangs and not ev.withheld:
            stop(draft, ev)
        elif draft.recovers_hangs:
            _tell(draft, ev, f"nothing was done yet: it {ev.withheld}")
        else:
            _tell(draft, ev, "nothing was done: ON_HANG is notify, or another tool wrote the job")
    elif _one_witness(draft, ev):
        _tell(draft, ev, "nothing was done: one witness alone proves no hang")


def gang(job: Job | Draft) -> list[Rank]:
    """The ranks that have not finished. Where some have, each of the others must be seen again and again: that wait
    says nothing of a rank that is seen, and stands still."""
    return [rank for rank in job.ranks if rank.task_status is not TaskStatus.COMPLETE]


def _runs(draft: Draft, rank: Rank) -> bool:
    """Nothing else is going on with it."""
    waits = rank.deadline is not None and not draft.finishing
    return rank.live and rank.exit is None and not waits and rank.away_since is None


def two_witnesses(draft: Draft, ev: GangStalled) -> bool:
    """Some spin and all stand still, and nobody writes: both for so long. A job that has never trained is starting."""
    if ev.still_since is None or ev.still_until is None or ev.silent_since is None:
        return False
    lasted = ev.still_until - max(ev.still_since, ev.silent_since)
    return ev.spinning and ev.trained and lasted >= draft.policy.hang_after and _silent(draft, ev)


def _silent(draft: Draft, ev: GangStalled) -> bool:
    if ev.silent_since is None:
        return False
    return draft.now - ev.silent_since >= max(draft.policy.silent_after, ev.patience)


def _one_witness(draft: Draft, ev: GangStalled) -> bool:
    """GPUs that spin, or ranks that write nothing. A start may take longer than anything later: of a job that is not
    known to have trained, people hear later too. They hear later as well where the second witness may be on its way."""
    known = ev.still_since is not None and ev.trained
    patience = draft.policy.hang_after if known else draft.policy.first_progress
    if ev.still_since is not None and ev.still_until is not None and ev.spinning:
        more = 1.5 if known and ev.silent_since is not None else 1
        return ev.still_until - ev.still_since >= patience * more
    return ev.silent_since is not None and draft.now - ev.silent_since >= patience and _silent(draft, ev)


def stop(draft: Draft, ev: GangStalled) -> None:
    """The gang is stopped and examined as if a rank had died: the odd one, or all of them where none stands out.

    The one place where a gang is stopped though none of its ranks has ended: whoever tells of the hang has asked the
    guard of the fleet for a permit.
    """
    why = _since(ev)
    odd = [rank for rank in gang(draft) if rank.node in ev.odd] or gang(draft)
    for rank in odd:
        reason = f"{why}; the others wait for it" if ev.odd else why
        draft.set(rank.index, exit=Exit.SUSPECT, exit_reason=draft.cut(reason), hung=True)
    evidence = draft.cut("; ".join(filter(None, (ev.what, ev.written))))
    draft.note("job", draft.status, draft.status, f"{SEEN}{why}", evidence)


def _tell(draft: Draft, ev: GangStalled, done: str) -> None:
    """Once in an attempt."""
    if not draft.reported(NOTED):
        evidence = draft.cut("; ".join(filter(None, (_since(ev), ev.what, ev.written))))
        draft.note("job", draft.status, draft.status, NOTED, evidence)
        looked_at = ev.spinning and draft.policy.keeps_evidence
        told = messages.job_may_hang(draft.id, draft.attempt, _since(ev), evidence, done, looked_at=looked_at)
        draft.order(ev.tell or told)


def alarmed_at(job: Job) -> datetime | None:
    """When people were told in this attempt that it may hang, if they have heard nothing since."""
    said = {entry.why: entry.at for entry in job.timeline if entry.attempt == job.attempt}
    return None if HEALED in said else said.get(NOTED)


def heals(draft: Draft, evidence: str) -> None:
    """Who was told that it may hang, hears that it does not: once, as that was."""
    if draft.reported(NOTED) and not draft.reported(HEALED):
        draft.note("job", draft.status, draft.status, HEALED, evidence)
        draft.order(messages.job_trains_again(draft.id, draft.attempt, evidence))


def _since(ev: GangStalled) -> str:
    parts = []
    if ev.still_since is not None:
        what = "no GPU has worked since" if ev.spinning else "all GPUs have been idle since"
        parts.append(f"{what} {ev.still_since:%H:%M:%S}")
    if ev.silent_since is not None:
        parts.append(f"no rank has written since {ev.silent_since:%H:%M:%S}")
    return " and ".join(parts)
