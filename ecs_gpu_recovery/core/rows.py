"""What other tools read: the task and node rows, derived from the job record. Names and types are the schema's.

Every store asks here what a step of a job changes in them, and writes it in its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from . import keys, messages
from .effects import Order
from .events import FAULT
from .guard import open_fault
from .model import Entry, Job, JobStatus, NodeStatus, Rank, TaskStatus, Verdict
from .node_record import Condemnation, Node, successor
from .timeline import NODE_LINES, archive, shortened

#: A claim this young may belong to a job that is being recorded right now.
ORPHAN_AGE = timedelta(minutes=10)
#: A rank may lose its task and get its next one in a single step; then no record was ever written that says so.
FORGOTTEN = "it ended, and its rank was started again in the same step"
#: Of the task of a node that was lost: nobody has seen its end.
LEFT = "its node was lost, and its rank moved to another one"


@dataclass(frozen=True, slots=True)
class Changes:
    """What a step changes for other tools: whole rows of tasks, and nodes with what is new in their story."""

    tasks: tuple[dict[str, str], ...]
    nodes: tuple[tuple[Rank, tuple[Entry, ...]], ...]
    opens: bool  #: more of a node's record changes than its row shows, so it must be read first

    @property
    def ranks(self) -> set[int]:
        return {int(row["node_index_in_job"]) for row in self.tasks} | {rank.index for rank, _ in self.nodes}


def changes(old: Job, new: Job) -> Changes:
    """A job that has ended gave its nodes back: whatever it still says of them is none of its business."""
    tasks: list[dict[str, str]] = []
    nodes: list[tuple[Rank, tuple[Entry, ...]]] = []
    ends = new.status.final and not old.status.final
    opens = ends
    said = _said(old, new)
    for before, rank in zip(old.ranks, new.ranks, strict=True):
        lines = said.get(rank.node, ())
        if before is not rank:
            tasks += _task_changes(old, new, before, rank)
        moved = before.instance != rank.instance or before.node_status is not rank.node_status
        # Its own record tells, or it was written with the job; the job only lets go of it in the end.
        if rank.handed or before.handed or before.node != rank.node:
            moved, lines = False, ()
        if (moved or lines or ends) and not old.status.final:
            nodes.append((rank, lines))
            opens = opens or before.instance != rank.instance
    return Changes(tuple(tasks), tuple(nodes), opens)


def owing(old: Job, new: Job, changed: Changes) -> tuple[tuple[int, int], ...]:
    """What the rows of a step make of `Job.owed`, until they are known to be written."""
    return tuple(sorted({**dict(old.owed), **dict.fromkeys(changed.ranks, new.version)}.items()))


def forgets(old: Job, new: Job, index: int) -> bool:
    """Whether a rank's task is named for the last time by the old record. If its row is owed it must be written now."""
    return old.ranks[index].task_id not in ("", new.ranks[index].task_id)


def _task_changes(old: Job, new: Job, before: Rank, rank: Rank) -> list[dict[str, str]]:
    found = []
    if before.live and before.task_id and before.task_id != rank.task_id:
        why = FORGOTTEN if before.node == rank.node else LEFT
        ended = replace(before, task_status=TaskStatus.TERMINATED, exit_reason=why)
        found.append(task_row(replace(old, updated_at=new.updated_at), ended))
    row, known = task_row(new, rank), task_row(replace(old, updated_at=new.updated_at), before)
    if row != known:
        found.append(row)
    return [row for row in found if row is not None]


def _said(old: Job, new: Job) -> dict[str, tuple[Entry, ...]]:
    """What this step says of each node."""
    said: dict[str, tuple[Entry, ...]] = {}
    if new.timeline != old.timeline:
        known = set(old.timeline)
        for entry in new.timeline:
            if entry.subject != "job" and entry not in known and not entry.retold:
                said[entry.subject] = (*said.get(entry.subject, ()), replace(entry, job=new.id))
    return said


def task_row(job: Job, rank: Rank) -> dict[str, str] | None:
    """The row of a rank's current task, all strings; None while the cluster has not named the task."""
    if not rank.task_id:
        return None
    revision = job.spec.task_def.rpartition("/")[2].partition(":")[2]
    row = {
        "ecs_task_id": rank.task_id,
        "node_name": rank.node,
        "node_index_in_job": str(rank.index),
        "job_id": job.id,
        "job_timestamp": _text(job.created_at),
        "job_num_nodes": str(len(job.ranks)),
        "task_def_arn": job.spec.task_def,
        "task_def_name": job.spec.family,
        "task_def_revision": revision,
        "cluster_name": job.cluster,
        "container_inst_id": rank.instance.rpartition("/")[2],
        "container_instance_arn": rank.instance,
        "retry": str(rank.task_attempt),
        "task_status": str(rank.task_status or ""),
        "updated_at": _text(job.updated_at),
    }
    if rank.exit_code is not None:
        row["exit_code"] = str(rank.exit_code)
    if rank.exit_reason:
        row["exit_reason"] = rank.exit_reason[:1000]
    return row


def job_row(job: Job) -> dict[str, str | list[str]]:
    """The schema's attributes of a job, beside which the record itself is kept."""
    return {
        "job_id": job.id,
        "job_timestamp": _text(job.created_at),
        "cluster_name": job.cluster,
        "num_nodes": str(len(job.ranks)),
        "assigned_nodes": [rank.node for rank in job.ranks],
        "submitted_container_inst_ids": [rank.instance.rpartition("/")[2] for rank in job.ranks],
        "submitted_ecs_task_ids": [rank.task_id for rank in job.ranks if rank.task_id],
        "created_at": _text(job.created_at),
        "updated_at": _text(job.updated_at),
        "retry": str(job.attempt),
        "job_status": job.status.value,
    }


def node_row(node: Node) -> dict[str, str]:
    """The schema's attributes of a node."""
    return {
        "node_name": node.name,
        "container_instance_id": node.instance.rpartition("/")[2],
        "container_instance_arn": node.instance,
        "cluster_name": node.cluster,
        "node_status": node.status.value,
        "ip": node.ip,
        "ibdev": node.ibdev,
        "created_at": _text(node.created_at),
        "updated_at": _text(node.updated_at),
    }


def held_node(node: Node, job: Job, lines: Sequence[Entry] | None = None) -> Node | None:
    """The node as this version of its job says; None when that is old news or none of its business.

    `lines` is what is new in its story, as far as the caller knows it. A job that ended gives the node back. If it had
    handed the node over, it has nothing more to say of it: an unfinished repair goes on.
    """
    rank = next((r for r in job.ranks if r.node == node.name), None)
    if rank is None or node.job_id != job.id or node.job_version >= job.version:
        return None
    if node.own or (rank.handed and rank.handed == node.handed):
        return _let_go(node, job) if job.status.final else None
    if lines is None or (lines[0].before if lines else rank.node_status.value) != node.status.value:
        lines = _untold(node, job)  # or the record could not be read for a while, and missed some
    if not lines and node.status is not rank.node_status:
        lines = (_move(node, rank, job),)
    node = replace(
        _told(_as_registered(node, rank), lines, job.updated_at),
        status=rank.node_status,
        fresh=_still_new(node, rank),
        job_version=job.version,
        updated_at=job.updated_at,
        version=node.version + 1,
    )
    if not job.status.final:
        return node
    failed = rank.node_status is NodeStatus.FAILED
    if failed and rank.verdict in (Verdict.REBOOT, Verdict.REPLACE):
        fault = Condemnation(at=job.updated_at, verdict=rank.verdict, findings=rank.findings[:300])
        node = replace(node, condemned=node.with_fault(replace(fault, outcome="its job ended")))
    return replace(
        node,
        job_id="",
        rank=None,
        job_version=0,
        verdict=rank.verdict if failed else None,
        suspected=_suspicion(rank, job),
        findings=rank.findings if rank.node_status in (NodeStatus.FAILED, NodeStatus.UNKNOWN) else "",
    )


def _suspicion(rank: Rank, job: Job) -> str:
    """What was seen on its node, if its job has ended before anybody looked."""
    if not rank.suspect:
        return ""
    seen = [e.evidence for e in job.timeline if (e.subject, e.why) == (rank.node, FAULT)]
    return seen[-1] if seen else "a GPU fault was seen while its job waited"


def _still_new(node: Node, rank: Rank | None) -> bool:
    """Whether its job has learned nothing of it: a check that was not answered is for the next to repeat."""
    return node.fresh and rank is not None and rank.verdict is None and not rank.start_try


def _let_go(node: Node, job: Job) -> Node:
    """Nobody waits for it any more. A repair goes on; one that is missing is not waited for, and what the job has not
    told people of it, it tells them itself."""
    missed = node.status is NodeStatus.UNKNOWN and open_fault(node) is None
    node = replace(
        node,
        job_id="",
        rank=None,
        job_version=0,
        task="",
        errands=node.errands + 1,
        deadline=None if missed else node.deadline,
        updated_at=job.updated_at,
        version=node.version + 1,
    )
    rank = next((rank for rank in job.ranks if rank.node == node.name), None)
    knew = rank is not None and rank.node_status in (NodeStatus.FAILED, NodeStatus.UNKNOWN)
    if node.status is not NodeStatus.FAILED or (knew and job.status is JobStatus.FAILED):
        return node
    by, told = successor(node.findings), node.findings
    message = messages.node_replaced(node, by, told) if by else messages.node_failed(node, told)
    return replace(node, outbox=(*node.outbox, Order(effect=message, due=job.updated_at, own=False)))


def left_node(node: Node, job: Job, why: str, rank: Rank | None = None) -> Node:
    """A node that its job waited for, and has left for another: its repair goes on without the job.

    What ran there may run on: before the node is used again it is looked at. If the `rank` that left says that nothing
    is wrong with it, it is free.
    """
    well = rank is not None and not rank.handed and rank.quiet and rank.connected
    status = node.status if node.own else NodeStatus.AVAILABLE if well else NodeStatus.UNKNOWN
    line = Entry(
        at=job.updated_at,
        subject=node.name,
        before=node.status.value,
        after=status.value,
        why=why,
        job=job.id,
    )
    free = _let_go(_told(replace(node, status=status), [line], job.updated_at), job)
    seen = _suspicion(rank, job) if rank is not None else ""
    return replace(
        free,
        deadline=node.deadline,
        anew=node.anew or bool(node.task),
        suspected=node.suspected or seen,
        version=node.version + 1,
    )


def _untold(node: Node, job: Job) -> tuple[Entry, ...]:
    """What the job's timeline says of the node after the last line that the node knows, or has told itself."""
    said = [replace(entry, job=job.id) for entry in job.timeline if entry.subject == node.name]
    known = set(node.timeline)
    last = max((i for i, entry in enumerate(said) if entry in known or entry.retold), default=-1)
    return tuple(said[last + 1 :])


def _move(node: Node, rank: Rank, job: Job) -> Entry:
    """A gang so large that its own timeline has dropped the line by now: the job's last move is the reason."""
    moves = [entry.why for entry in job.timeline if entry.subject == "job" and entry.before != entry.after]
    return Entry(
        at=job.updated_at,
        subject=node.name,
        before=node.status.value,
        after=rank.node_status.value,
        why=moves[-1] if moves else "moved by its job",
        attempt=job.attempt,
        job=job.id,
    )


def _told(node: Node, lines: Sequence[Entry], at: datetime) -> Node:
    """The node with more of its story. What becomes too much is archived, half of it at once."""
    kept, gone = shortened((*node.timeline, *lines), NODE_LINES, node.name)
    if not gone:
        return replace(node, timeline=kept)
    effect = archive(keys.archive(keys.record_of_node(node.name), node.version + 1), gone)
    return replace(node, timeline=kept, outbox=(*node.outbox, Order(effect=effect, due=at, own=False)))


def _as_registered(node: Node, rank: Rank) -> Node:
    """A node whose machine registered anew in the hands of its job follows it; what is older moves nothing."""
    later = rank.registered_at and (node.registered_at is None or rank.registered_at > node.registered_at)
    if not later or rank.instance == node.instance:
        return node
    return replace(
        node,
        instance=rank.instance,
        host=rank.host,
        ip=rank.address or node.ip,
        ibdev=rank.ibdev,
        gone=rank.gone,
        registered_at=rank.registered_at,
        seen_version=rank.seen_version,
        connected=rank.connected,
        away_since=rank.away_since,
        gpus_seen=rank.gpus_seen,
    )


def claimed_node(
    node: Node, job: Job, status: NodeStatus = NodeStatus.ASSIGNED, at: datetime | None = None
) -> Node:
    """The node as a job takes it, a new one or at that time one of whose ranks moves. Only for one that is free."""
    at = at or job.created_at
    rank = next((rank for rank in job.ranks if rank.node == node.name), None)
    taken = Entry(
        at=at,
        subject=node.name,
        before=node.status.value,
        after=status.value,
        why=f"taken by job {job.id}",
        job=job.id,
    )
    return replace(
        _told(node, [taken], at),
        job_id=job.id,
        rank=None if rank is None else rank.index,
        job_version=job.version,
        status=status,
        updated_at=at,
        version=node.version + 1,
        verdict=None,
        findings="",
        deadline=None,
        handed="",
        returned="",
        level="",
        fresh=_still_new(node, rank),
    )


def freed_node(node: Node, job: Job | None, at: datetime) -> Node | None:
    """A node whose holder has ended, or was never recorded, free again; None while somebody may want it."""
    if job is not None and all(rank.node != node.name for rank in job.ranks):
        return left_node(node, job, f"job {job.id} has moved on without it")
    if job is not None:
        return held_node(replace(node, job_version=0), job) if job.status.final else None
    if at - node.updated_at < ORPHAN_AGE:
        return None
    line = Entry(
        at=at,
        subject=node.name,
        before=node.status.value,
        after=NodeStatus.UNKNOWN.value,
        why="the job that took it was never recorded",
        job=node.job_id,
    )
    return replace(
        _told(node, [line], at),
        job_id="",
        rank=None,
        job_version=0,
        status=NodeStatus.UNKNOWN,
        updated_at=at,
        version=node.version + 1,
    )


def _text(at: datetime) -> str:
    return at.isoformat()
