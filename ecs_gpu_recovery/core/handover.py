"""Two records, one write: a job hands a node over, and hears what became of it. Why is in
docs/decisions/0014-a-node-is-repaired-by-its-own-record.md.

Whoever commits a job writes the nodes that it hands over in the same breath. What the two records tell each other after
that is a fact like any other: it can be read from the teller's record at any time, so one that got lost is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from . import rows, sighting
from .errors import NodesTaken, NotFound, Unreadable
from .events import Fact, HandedOver, NodeGivenUp, NodeLeaving, NodeRepaired, OldTaskEnded
from .model import Job, JobStatus, NodeStatus, Notice, Rank, Verdict
from .node.table import decide_node
from .node_record import Node
from .policy import Policy


def handed(old: Job, new: Job) -> list[Rank]:
    """The ranks whose nodes are handed over in this step."""
    pairs = zip(old.ranks, new.ranks, strict=True)
    return [rank for before, rank in pairs if rank.handed and rank.handed != before.handed]


def taken(
    old: Job, new: Job, read: Callable[[str], Node], policy: Policy, now: datetime | None = None
) -> tuple[Node, ...]:
    """The nodes that this step of a job hands over, takes or leaves, as their own records have it then.

    Those that have taken it are left out: many nodes may be handed over in several writes, and a crash in between is
    followed by the same step once more. So is one whose record is damaged: nobody can repair it, and the job hears so.
    """
    found = [(rank, _read(rank, read)) for rank in handed(old, new)]
    given = [taken for rank, node in found if node for taken in _taken(new, rank, node, policy, now)]
    pairs = [
        (before, rank) for before, rank in zip(old.ranks, new.ranks, strict=True) if before.node != rank.node
    ]
    return (*given, *(node for before, rank in pairs for node in _exchanged(old, new, before, rank, read)))


def _exchanged(old: Job, job: Job, before: Rank, rank: Rank, read: Callable[[str], Node]) -> Iterator[Node]:
    """The node that a rank takes, and the one that it leaves, as both records have it then.

    What was picked may be gone by now, and the rank's own node may be back: then the job has to look again.
    """
    left, node = _read(before, read), _read(rank, read)
    why = "its record cannot be read" if node is None else node.engaged
    if left is not None and before.handed and _is_ours(job, before, left) and left.returned == left.handed:
        why = f"{left.name} is back"
    if node is None or why:
        raise NodesTaken({rank.node: why})
    yield rows.claimed_node(node, job, rank.node_status, job.updated_at)
    if left is not None and left.job_id == job.id:
        if not before.handed:  # nothing is wrong with it; it is to be taken away
            held = replace(rows.held_node(left, old) or left, **sighting.known(before))
            left = replace(held, leave=left.leave or before.leave, version=left.version)
        yield rows.left_node(left, job, f"rank {rank.index} of job {job.id} moved to {rank.node}", before)


def _taken(job: Job, rank: Rank, node: Node, policy: Policy, now: datetime | None) -> Iterator[Node]:
    """A job may end in the step that hands a node over, for another one's sake: then it lets go of it at once."""
    if node.job_id != job.id or node.handed == rank.handed:
        return
    held = rows.held_node(node, replace(job, status=JobStatus.PENDING_RESTART)) or node
    held = replace(held, **sighting.known(rank))
    fact = HandedOver(
        at=job.updated_at,
        node=node.name,
        job=job.id,
        key=rank.handed,
        verdict=rank.verdict or Verdict.LOST,
        findings=rank.findings,
        task="" if rank.quiet else rank.task_id or "its start was not answered",
        anew=rank.anew,
        level=job.spec.check_level,
        salt=job.salt,
        first=rank.index == 0,
    )
    after = decide_node(held, fact, policy, now).node
    if job.status.final:
        after = rows.held_node(replace(after, job_version=node.job_version), job) or after
    yield replace(after, job_version=0 if job.status.final else job.version, version=node.version + 1)


def news_for_node(job: Job, rank: Rank) -> Fact | None:
    """What the record of a node that was handed over has yet to learn of its job."""
    if rank.handed and rank.quiet and not rank.anew:
        return OldTaskEnded(at=job.updated_at, node=rank.node, key=rank.handed)
    return None


def news_for_job(node: Node) -> Fact | None:
    """What became of a node that was handed over; nothing while its repair goes on."""
    if not (node.job_id and node.handed):
        return None
    if node.returned == node.handed:
        at, name = node.updated_at, node.name
        return NodeRepaired(at=at, node=name, key=node.handed, machine=node, address=node.ip, kept=node.kept)
    if node.status is NodeStatus.FAILED:
        at, name = node.updated_at, node.name
        return NodeGivenUp(at=at, node=name, key=node.handed, reason=node.findings, kept=node.kept)
    return None


def news(old: Node, new: Node) -> Iterator[Fact]:
    """What a step of a node means for the job that holds it, or has handed it over."""
    fact = news_for_job(new)
    if fact is not None and type(news_for_job(old)) is not type(fact):
        yield fact
    if new.job_id and new.leave != old.leave:
        yield leave_of(new)


def leave_of(node: Node) -> NodeLeaving:
    """Whether a node that a job holds is to be taken away, as the node's own record has it."""
    return NodeLeaving(at=node.updated_at, node=node.name, leave=node.leave)


def leave_missed(rank: Rank, node: Node, now: datetime) -> NodeLeaving | None:
    """The same, where the job has not heard of it. What the cluster shows of a leave, the job may have seen first, and
    also that the node is there still."""
    if node.leave is not None and sighting.over(node.leave, now):
        return None
    if node.leave is None:
        unheard = rank.leave is not None and rank.leave.notice is not Notice.SEEN
    else:
        unheard = sighting.after(rank.leave, node.leave) != rank.leave
    return leave_of(node) if unheard else None


def missed(
    job: Job, known: Mapping[str, Node], read: Callable[[str], Node]
) -> Iterator[tuple[Rank, Fact | None, Fact | None]]:
    """For each node that is handed over: what its record has not taken yet, and what the job has not.

    `known` are nodes as a list has them, which may be old; that the job has lost one is believed of a fresh look only.
    """
    for rank in () if job.status.final else job.ranks:
        if rank.handed:
            node = known.get(rank.node)
            if node is None or not _is_ours(job, rank, node):
                node = _read(rank, read)
            if node is None or not _is_ours(job, rank, node):
                yield rank, None, _gone(rank, job.updated_at)
            else:
                yield rank, news_for_node(job, rank) if node.task else None, news_for_job(node)


def _is_ours(job: Job, rank: Rank, node: Node) -> bool:
    return node.job_id == job.id and node.handed == rank.handed


def _read(rank: Rank, read: Callable[[str], Node]) -> Node | None:
    try:
        return read(rank.node)
    except (NotFound, Unreadable):
        return None


def _gone(rank: Rank, at: datetime) -> NodeGivenUp:
    """Another hand has taken it from the job, deleted it, or damaged its record."""
    return NodeGivenUp(
        at=at, node=rank.node, key=rank.handed, reason="its record is gone, damaged or not the job's"
    )
