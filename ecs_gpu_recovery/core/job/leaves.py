"""Planned leaves: a node is to be taken away though nothing is wrong with it, and its job goes on elsewhere.

The gang runs on until a node for each rank that has to leave is in sight, and then to its next step, or until shortly
before the end. It is stopped, not examined, and what it costs is not charged. The ranks take other nodes as ranks of
bad nodes do: see `claim`. Why: docs/decisions/0019-a-job-leaves-a-node-before-it-is-taken-away.md
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from .. import sighting
from ..events import NodeLeaving, Tick
from ..model import Exit, Job, JobStatus, NodeStatus, Notice, Rank, Verdict
from ..policy import Policy
from . import budget
from .draft import Draft

NOT_EXAMINED = "not examined: nothing has failed"


def node_leaving(draft: Draft, ev: NodeLeaving) -> None:
    """Keep it. What the cluster shows of the node itself, the job sees as well."""
    rank = next((rank for rank in draft.ranks if rank.node == ev.node), None)
    if rank is None or (ev.leave is None and rank.leave is not None and rank.leave.notice is Notice.SEEN):
        return
    leave = ev.leave and sighting.after(rank.leave, ev.leave)
    sighting.note_leave(draft, rank.node, rank.node_status, rank.leave, leave)
    draft.set(rank.index, leave=leave)


def leaving(job: Job | Draft) -> list[Rank]:
    """The ranks that have to leave nodes with which nothing is wrong."""
    if not job.spec.moves or job.ending is not None:
        return []
    return [rank for rank in job.ranks if rank.leave is not None and rank.leave.moves and not rank.handed]


def stop_at(job: Job | Draft, policy: Policy) -> datetime | None:
    """When the gang is stopped for those that have to leave; None while there is no reason to.

    A training that tells no steps has no better moment than the first. Without another node in sight it runs for as
    long as it can.
    """
    some = leaving(job) if job.status is JobStatus.IN_PROGRESS else []
    if not some or not all(rank.live and rank.exit is None for rank in job.ranks):
        return None
    heard = max(rank.leave.at for rank in some if rank.leave is not None)
    ends = [rank.leave.until - policy.leave_grace for rank in some if rank.leave and rank.leave.until]
    if not job.room:
        return min(ends, default=None)
    told = job.marker.at if job.marker is not None else heard
    return told if told is not None and told >= heard else min([heard + policy.leave_within, *ends])


def due(job: Job | Draft, policy: Policy, now: datetime) -> list[Rank]:
    """The ranks for which the gang is to be stopped now."""
    at = stop_at(job, policy)
    return leaving(job) if at is not None and now >= at and job.attempt < policy.max_attempts else []


def stop(draft: Draft, ev: Tick) -> None:
    """To stop a gang that has not ended takes a permit. Without one it runs on."""
    if ev.may_stop and due(draft, draft.policy, draft.now):
        draft.planned = True


def depart(draft: Draft) -> None:
    """The gang is stopped, so that ranks can go."""
    some = leaving(draft)
    budget.attempt_over(draft)
    planned = draft.planned
    draft.move(JobStatus.PENDING_HEALTHCHECK, why(some), reasons(some))
    draft.planned = planned
    for rank in list(draft.ranks):
        draft.node(rank.index, NodeStatus.PENDING, "its gang is stopped: a node of it is to be taken away")
        draft.order_stop(rank.index, "a node of the job is to be taken away")


def unexamined(draft: Draft, rank: Rank) -> bool:
    """Whether there is nothing to ask of its node: its task ended because it was stopped."""
    if not draft.planned or rank.exit is Exit.LOST:
        return False
    draft.set(rank.index, verdict=Verdict.INCONCLUSIVE, findings=NOT_EXAMINED)
    return True


def why(ranks: Sequence[Rank]) -> str:
    return f"{', '.join(rank.node for rank in ranks)} {sighting.LEAVES}"


def reasons(ranks: Sequence[Rank]) -> str:
    return "; ".join(dict.fromkeys(rank.leave.why for rank in ranks if rank.leave is not None))[:500]
