"""What is seen of a job's nodes, and what it means that one is gone or has registered anew."""

from __future__ import annotations

from datetime import datetime

from .. import examination, sighting
from ..events import FaultSeen, NodeSeen
from ..model import Exit, Job, JobStatus, NodeStatus, Rank, Verdict
from .claim import under_test
from .draft import Draft


def rank_on(draft: Draft, node: str) -> Rank | None:
    return next((rank for rank in draft.ranks if rank.node == node), None)


def node_seen(draft: Draft, ev: NodeSeen) -> None:
    """Keep what is new. Most sightings change nothing, and then nothing is written."""
    rank = rank_on(draft, ev.node)
    if rank is not None and ev.succeeds(rank) and _can_be_met(rank, ev):
        _registered_anew(draft, rank, ev)
        return
    changes = sighting.changes(rank, ev, draft.now) if rank is not None else None
    if rank is None or changes is None:
        return
    rebooted_under_us = bool(rank.boot_id and ev.boot_id and ev.boot_id != rank.boot_id)
    blind = not ev.connected and not (ev.boot_id or rank.boot_id)
    back = changes["connected"] and rank.away_since is not None
    changes["back_at"] = draft.at if back else rank.back_at
    changes["doubted"] = rank.doubted or (not rank.quiet and (rebooted_under_us or blind))
    if sighting.says_nothing_new(rank, ev, rank.node_status, changes):
        return
    sighting.note_leave(draft, rank.node, rank.node_status, rank.leave, changes["leave"])
    draft.set(rank.index, seen_version=max(ev.version, rank.seen_version), **changes)
    if ev.gone:
        lose(draft, draft.ranks[rank.index], ev.why or "the instance is gone")


def _can_be_met(rank: Rank, ev: NodeSeen) -> bool:
    """The others of the gang meet at the address of rank 0, so it must be known where it is now."""
    return rank.index > 0 or ev.host == rank.host or bool(ev.address) or not rank.address


def _registered_anew(draft: Draft, rank: Rank, ev: NodeSeen) -> None:
    """The same machine as a new instance: its agent has lost its memory, so what it ran before is reported by nobody.

    Whether the machine restarted, nobody tells either: a task that was not known to have ended may run on. Another
    machine in the place of one that is gone is examined in the same way.
    """
    name, another = ev.instance.rpartition("/")[2], ev.host != rank.host
    why = f"{ev.host} has taken its place as {name}" if another else f"its host registered again as {name}"
    draft.note(rank.node, rank.node_status, rank.node_status, why)
    draft.set(
        rank.index,
        back_at=draft.at,
        anew=rank.anew or another or not rank.quiet,
        address=ev.address if another else rank.address,
        **sighting.registered_anew(rank, ev, draft.at),
    )
    rank = draft.ranks[rank.index]
    if not rank.quiet:
        lose(draft, rank, why)
    elif rank.check_id and rank.verdict is None and rank.deadline is not None and draft.ending is None:
        examination.withdraw(draft, rank.index, why)
        examination.no_answer(draft, rank.index, why)


def lose(draft: Draft, rank: Rank, why: str) -> None:
    """The node is gone. Its task may still run somewhere out of sight, so it is not called ended."""
    if draft.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING) and not rank.ended and rank.exit is None:
        draft.set(rank.index, exit=Exit.LOST, exit_reason=why)
    elif rank.verdict is None and draft.ending is None and _is_examined(draft, rank):
        examination.withdraw(draft, rank.index, "the node is lost")
        draft.set(rank.index, verdict=Verdict.LOST, findings=why, deadline=None)
        draft.node(rank.index, NodeStatus.UNKNOWN, "lost", why)


def _is_examined(draft: Draft, rank: Rank) -> bool:
    if draft.status is JobStatus.PENDING_RESTART:
        return under_test(rank)
    return draft.status is JobStatus.PENDING_HEALTHCHECK


def fault_seen(draft: Draft, ev: FaultSeen) -> None:
    """Evidence for whoever reads the timeline, under the node's own time; the verdict stays with the check.

    After a fatal one the rank has a little time to end or to get further, also where the word that its task runs, or
    that of others of its gang, has yet to come. One from before this attempt is settled. A node that was examined, and
    waits for others, is suspected: see `claim.examine_suspects`.
    """
    rank = rank_on(draft, ev.node)
    if rank is None or not sighting.note_fault(draft, rank.node, rank.node_status, ev):
        return
    if ev.grave and _only_waits(draft, rank) and not _is_cured(draft, rank, ev):
        draft.set(rank.index, suspect=True)
    trains = draft.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING)
    runs = not rank.quiet and trains and draft.ending is None
    if ev.fatal and runs and rank.frozen_at is None and ev.at >= _begun(draft):
        draft.set(rank.index, frozen_at=draft.now + draft.policy.fault_grace)


def _only_waits(draft: Draft, rank: Rank) -> bool:
    if draft.ending is not None or draft.preflight or rank.handed or not rank.quiet:
        return False
    examined = draft.status is JobStatus.PENDING_HEALTHCHECK and rank.verdict is not None
    ready = draft.status is JobStatus.PENDING_RESTART and rank.node_status is NodeStatus.AVAILABLE
    return examined or ready


def _is_cured(draft: Draft, rank: Rank, ev: FaultSeen) -> bool:
    """Whether it is of a boot before this one. Where nobody tells of boots, one check more does no harm."""
    other = bool(ev.boot_id and rank.boot_id) and ev.boot_id != rank.boot_id
    return other and ev.at < (rank.back_at or _begun(draft))


def _begun(draft: Draft) -> datetime:
    """When this attempt was decided on."""
    return draft.budget.since or draft.created_at


def may_freeze(job: Job | Draft, rank: Rank) -> bool:
    """Whether it still matters that a rank shows no sign of life: nothing of its gang has failed, or is to stop."""
    trains = job.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING) and job.ending is None
    return trains and not rank.ended and rank.exit is None


def frozen(job: Job | Draft, now: datetime) -> list[Rank]:
    """The ranks for which the gang is to be stopped now. One that starts is waited for."""
    if job.status is JobStatus.RESTARTING:
        return []
    late = (rank for rank in job.ranks if rank.frozen_at is not None and rank.frozen_at <= now)
    return [rank for rank in late if rank.live and may_freeze(job, rank)]
