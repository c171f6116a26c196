"""What is seen of a job's nodes, and what it means that one is gone or has registered anew."""

from __future__ import annotations

from ..events import FaultSeen, NodeSeen
from ..model import Exit, JobStatus, NodeStatus, Rank, Verdict
from .draft import Draft


def rank_on(draft: Draft, node: str) -> Rank | None:
    return next((rank for rank in draft.ranks if rank.node == node), None)


def node_seen(draft: Draft, ev: NodeSeen) -> None:
    """Keep what is new. Most sightings change nothing, and then nothing is written."""
    rank = rank_on(draft, ev.node)
    if rank is not None and ev.succeeds(rank):
        _registered_anew(draft, rank, ev)
        return
    if rank is None or not ev.concerns(rank) or (ev.version and ev.version < rank.seen_version):
        return
    rebooted_under_us = bool(rank.boot_id and ev.boot_id and ev.boot_id != rank.boot_id)
    blind = not ev.connected and not (ev.boot_id or rank.boot_id)
    there = ev.connected and not ev.gone
    changes: dict[str, object] = {
        "connected": there,
        "away_since": None if there else rank.away_since or draft.at,
        "back_at": draft.at if there and rank.away_since is not None else rank.back_at,
        "boot_id": ev.boot_id or rank.boot_id,
        "gpus_seen": rank.gpus_seen if ev.gpus is None else ev.gpus,
        "doubted": rank.doubted or (not rank.quiet and (rebooted_under_us or blind)),
    }
    # An absence is kept: older good news must not undo it. So is a look at a node that reboots: what is heard later of
    # how it went down must not be held against the next attempt.
    known = ev.version <= rank.seen_version or (there and rank.node_status is not NodeStatus.REBOOTING)
    if known and not ev.gone and all(getattr(rank, name) == value for name, value in changes.items()):
        return
    draft.set(rank.index, seen_version=max(ev.version, rank.seen_version), **changes)
    if ev.gone:
        lose(draft, draft.ranks[rank.index], ev.why or "the instance is gone")


def _registered_anew(draft: Draft, rank: Rank, ev: NodeSeen) -> None:
    """The same machine as a new instance: its agent has lost its memory, so what it ran before is reported by nobody.

    Whether the machine restarted, nobody tells either: a task that was not known to have ended may run on.
    """
    why = f"its host registered again as {ev.instance.rpartition('/')[2]}"
    draft.note(rank.node, rank.node_status, rank.node_status, why)
    draft.set(
        rank.index,
        instance=ev.instance,
        registered_at=ev.registered or draft.at,
        seen_version=ev.version,
        connected=True,
        away_since=None,
        back_at=draft.at,
        gpus_seen=rank.gpus_seen if ev.gpus is None else ev.gpus,
        anew=rank.anew or not rank.quiet,
    )
    rank = draft.ranks[rank.index]
    if not rank.quiet:
        lose(draft, rank, why)
    elif rank.check_id and rank.verdict is None and rank.deadline is not None and draft.ending is None:
        draft.withdraw_check(rank.index, why)
        no_answer(draft, rank, why)


def lose(draft: Draft, rank: Rank, why: str) -> None:
    """The node is gone. Its task may still run somewhere out of sight, so it is not called ended."""
    if draft.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING) and not rank.ended and rank.exit is None:
        draft.set(rank.index, exit=Exit.LOST, exit_reason=why)
    elif draft.status is JobStatus.PENDING_HEALTHCHECK and rank.verdict is None and draft.ending is None:
        draft.withdraw_check(rank.index, "the node is lost")
        draft.set(rank.index, verdict=Verdict.LOST, findings=why, deadline=None)
        draft.node(rank.index, NodeStatus.UNKNOWN, "lost", why)


def no_answer(draft: Draft, rank: Rank, why: str) -> None:
    spent = rank.checks_spent + 1
    draft.set(rank.index, checks_spent=spent, findings=draft.cut(why))
    if spent < draft.policy.check_tries and draft.ending is None:
        draft.note(rank.node, rank.node_status, rank.node_status, "no verdict; the check is tried again", why)
        draft.order_check(rank.index)
    else:
        draft.set(rank.index, verdict=Verdict.INCONCLUSIVE, deadline=None)


def fault_seen(draft: Draft, ev: FaultSeen) -> None:
    """Evidence for whoever reads the timeline, under the node's own time; the verdict stays with the check."""
    rank = rank_on(draft, ev.node)
    if rank is not None and not draft.noted(ev.at, rank.node, ev.noted_as, ev.evidence):
        draft.note(rank.node, rank.node_status, rank.node_status, ev.noted_as, ev.evidence, ev.at)
