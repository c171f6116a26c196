"""Ranks that move: which node takes the place of one that was handed over, and how long a job waits for one.

The nodes of the fleet reach the rules as a fact. What is picked is claimed in the write that records it, together with
the node that is left behind, so that no two jobs ever get the same one: see `handover.taken`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from .. import examination, messages
from ..events import NodesOffered
from ..model import Failover, Job, JobStatus, NodeStatus, Rank, TaskStatus, Verdict
from ..node_record import Node
from . import leaves
from .draft import Draft, end

#: How a timeline tells that a rank has another node.
MOVED = re.compile(r"rank \d+ moved from (\S+) to (\S+)")
#: So many move in one step at most: each takes two nodes of the write, which has room for a hundred records.
AT_ONCE = 40
#: A node that was found healthy so recently is not examined again.
FRESH = timedelta(hours=6)


def may_move(job: Job | Draft) -> bool:
    """Whether ranks of this job may take other nodes."""
    return job.spec.moves and job.ending is None


def may_swap(job: Job | Draft) -> bool:
    """Whether a node that fails the check before the first start is exchanged: where any nodes would do."""
    return job.preflight and may_move(job) and job.spec.failover == Failover.ANY


def wanted(job: Job | Draft) -> frozenset[str]:
    """What a look at the fleet may give a job: a node for each of these, or the word that one is left for it."""
    if not may_move(job):
        return frozenset()
    if job.preflight:
        return frozenset(rank.handed for rank in job.ranks if rank.handed)
    if job.status is JobStatus.PENDING_HEALTHCHECK and job.look_at is not None:
        return frozenset({"hope"})
    if job.status is JobStatus.IN_PROGRESS:
        return frozenset(f"{rank.node} leaves" for rank in leaves.leaving(job))
    if job.status is not JobStatus.PENDING_RESTART:
        return frozenset()
    lost = NodeStatus.FAILED
    handed = [f"{r.handed} {lost if r.node_status is lost else ''}" for r in job.ranks if r.handed]
    return frozenset((*handed, *(f"{rank.node} leaves" for rank in leaves.leaving(job))))


def age(job: Job) -> tuple[datetime, datetime, str]:
    """Jobs that wait for nodes, in the order in which they get them."""
    return job.waiting_since or job.updated_at, job.created_at, job.id


def offered(draft: Draft, ev: NodesOffered) -> None:
    """Each rank that may leave its node takes the best of those that are free. Its own, if that is back, wins."""
    if not wanted(draft):
        return
    fleet = {node.name: node for node in ev.nodes}
    if draft.preflight:
        _swap(draft, fleet, frozen=ev.frozen)
        return
    if draft.status is JobStatus.IN_PROGRESS:
        draft.room = not _crowded_out(draft, leaves.leaving(draft), fleet)
        return
    if draft.status is JobStatus.PENDING_HEALTHCHECK:
        dead = [rank for rank in draft.ranks if rank.verdict is Verdict.REPLACE]
        draft.hope = not _left_out(draft, dead, fleet)
        return
    waits = [rank for rank in draft.ranks if rank.handed and not _is_back(rank, fleet.get(rank.node))]
    dead = [rank for rank in waits if rank.node_status is NodeStatus.FAILED]
    draft.hopeless = {r.index for r in dead if _must_stay(draft, r)} | _left_out(draft, dead, fleet)
    if draft.hopeless:
        return
    others = [rank for rank in waits if rank not in dead]  # whose own nodes may be back
    going = [rank for rank in leaves.leaving(draft) if not under_test(rank)]
    movable = [rank for rank in (*dead, *others, *going) if _may_leave(draft, rank)]
    for rank in [rank for rank in movable if not (ev.frozen and condemned(rank))][:AT_ONCE]:
        if free := _free(draft, rank, fleet):
            _take(draft, rank, min(free, key=_rank_by))
    draft.stays = {r.index for r in leaves.leaving(draft) if r.leave is not None and not r.leave.sure}


def condemned(rank: Rank) -> bool:
    """Whether a fault was found on its node. Too many at once have one cause more often than many, and then the next
    nodes break like the last: while the fleet is frozen for it, such a rank waits with its node."""
    return bool(rank.handed) and rank.verdict in (Verdict.REBOOT, Verdict.REPLACE)


def _swap(draft: Draft, fleet: Mapping[str, Node], *, frozen: bool) -> None:
    """Before the first start nothing runs anywhere, so bad nodes are left at once: all, or the job is refused. No new
    job gets a spare, and none gets another node while the fleet is frozen."""
    bad = [rank for rank in draft.ranks if rank.handed and not _is_back(rank, fleet.get(rank.node))]
    picked: dict[int, Node] = {}
    for rank in bad:
        fit = [] if frozen and condemned(rank) else _pool(draft, rank, fleet)
        pool = [n for n in fit if n not in picked.values() and not n.spare]
        if free := [node for node in pool if not node.engaged and node.fit]:
            picked[rank.index] = min(free, key=_rank_by)
    draft.hopeless = {rank.index for rank in bad if rank.index not in picked}
    if not draft.hopeless:
        for rank in bad[:AT_ONCE]:
            _take(draft, rank, picked[rank.index], examined=True)


def _left_out(draft: Draft, ranks: Iterable[Rank], fleet: Mapping[str, Node]) -> set[int]:
    """Ranks for which there is no node, now or later, if each of the others gets one."""
    used: set[str] = set()
    without: set[int] = set()
    for rank in ranks:
        node = next((node for node in _pool(draft, rank, fleet) if node.name not in used), None)
        if node is None:
            without.add(rank.index)
        else:
            used.add(node.name)
    return without


def _crowded_out(draft: Draft, ranks: Iterable[Rank], fleet: Mapping[str, Node]) -> bool:
    """Whether one of these ranks would find no free node, if the others had taken theirs."""
    used: set[str] = set()
    for rank in ranks:
        free = [node for node in _free(draft, rank, fleet) if node.name not in used]
        if not free:
            return True
        used.add(min(free, key=_rank_by).name)
    return False


def _free(draft: Draft, rank: Rank, fleet: Mapping[str, Node]) -> list[Node]:
    """The nodes that may take the place of this rank's own now."""
    return [node for node in _pool(draft, rank, fleet) if not node.engaged and node.fit]


def must_go(draft: Draft) -> bool:
    """Whether a rank waits for another node, though its own is there: that one is to be taken away."""
    return any(rank.index not in draft.stays for rank in leaves.leaving(draft))


def _is_back(rank: Rank, own: Node | None) -> bool:
    return own is not None and own.handed == rank.handed == own.returned


def _pool(draft: Draft, rank: Rank, fleet: Mapping[str, Node]) -> list[Node]:
    """The nodes that may take the place of this rank's own, now or later."""
    own = fleet.get(rank.node)
    if own is None:
        return []
    ours = {rank.node for rank in draft.ranks}
    anybody = draft.spec.failover == Failover.ANY
    return [
        node
        for node in fleet.values()
        if node.name not in ours and (node.spare or anybody) and _alike(node, own)
        if node.hold is None and node.leave is None and node.status is not NodeStatus.FAILED
    ]


def _alike(node: Node, own: Node) -> bool:
    """What is not known of a node is like nothing."""
    same = (node.kind, node.gpus, bool(node.ibdev)) == (own.kind, own.gpus, bool(own.ibdev))
    return same and bool(node.kind) and node.gpus > 0


def _rank_by(node: Node) -> tuple[bool, int, str]:
    """Spares first, then those with the cleanest record."""
    return not node.spare, len(node.condemned), node.name


def _asleep(rank: Rank) -> bool:
    """Nothing of it runs on its node, for sure: it was seen to end, and not only declared to have."""
    return rank.quiet and not rank.anew


def _may_leave(draft: Draft, rank: Rank) -> bool:
    """The task on a lost node may be alive: it gets the time in which a network, or the machine, may come back."""
    if _asleep(rank):
        return True
    if rank.stuck and rank.node_status is not NodeStatus.FAILED:
        return False  # its node is there, and the reboot ends its task
    since = rank.away_since or draft.waiting_since
    late = since is not None and draft.now - since >= draft.policy.failover_lost_after
    return late and not _must_stay(draft, rank)


def _must_stay(draft: Draft, rank: Rank) -> bool:
    """Two attempts of a job of one rank could both write its checkpoints, unless its program looks at the fence."""
    return len(draft.ranks) == 1 and not draft.spec.fenced and not _asleep(rank)


def _passed(draft: Draft, node: Node) -> bool:
    """Whether a check has found it healthy of late. A fault that was seen since has put that out."""
    return node.passed_at is not None and draft.now - node.passed_at < FRESH


def _take(draft: Draft, rank: Rank, node: Node, *, examined: bool = False) -> None:
    """`examined`: whatever was found on it of late."""
    passed = not examined and _passed(draft, node)
    why = f"rank {rank.index} moved from {rank.node} to {node.name}"
    going = not rank.handed and rank.leave is not None
    draft.note("job", draft.status, draft.status, why, leaves.reasons([rank]) if going else rank.findings)
    status = NodeStatus.AVAILABLE if passed else NodeStatus.ASSIGNED
    draft.note(node.name, node.status, status, f"taken by job {draft.id}", retold=True)
    if rank.live:
        draft.set(rank.index, task_status=TaskStatus.TERMINATED)
    draft.fresh(
        rank.index,
        node=node.name,
        address=node.ip,
        instance=node.instance,
        host=node.host,
        registered_at=node.registered_at,
        ibdev=node.ibdev,
        gpus=node.gpus,
        boot_id=node.boot_id,
        gpus_seen=node.gpus_seen,
        seen_version=node.seen_version,
        connected=True,
        away_since=None,
        back_at=None,
        gone=False,
        leave=None,
        node_status=status,
        handed="",
    )
    if not passed:
        examination.ask(draft, rank.index)


def examine(draft: Draft, index: int) -> None:
    """A node that was taken, or is suspected, is not used before it was examined."""
    draft.node(index, NodeStatus.ASSIGNED, "examined before it is used")
    examination.begin(draft, index)


def examine_suspects(draft: Draft) -> None:
    """A fault was seen on a node that only waited for the others: it is handed over too if it must be."""
    for rank in list(draft.ranks):
        if rank.suspect and not rank.handed and rank.node_status is NodeStatus.AVAILABLE:
            examine(draft, rank.index)


def admit(draft: Draft) -> None:
    """A node that was taken is as good as the others once its check says so; one that is bad is handed over too."""
    for rank in list(draft.ranks):
        if not under_test(rank) or rank.verdict in (None, Verdict.LOST):
            continue
        draft.set(rank.index, suspect=False)
        if rank.verdict is Verdict.REBOOT:
            draft.node(rank.index, NodeStatus.REBOOTING, "GPU fault that a reboot may cure", rank.findings)
        elif rank.verdict is Verdict.REPLACE:
            draft.node(rank.index, NodeStatus.FAILED, "GPU fault", rank.findings)
        else:
            draft.node(rank.index, NodeStatus.AVAILABLE, f"verdict {rank.verdict}", rank.findings)


def under_test(rank: Rank) -> bool:
    """In PENDING_RESTART: whether it has taken a node that is examined."""
    return not rank.handed and rank.node_status in (NodeStatus.ASSIGNED, NodeStatus.PENDING_HEALTHCHECK)


def wait(draft: Draft) -> None:
    """A job that waits for other nodes does so for a while only, and people hear of it once."""
    waits = [rank for rank in draft.ranks if rank.handed] + leaves.leaving(draft)
    if not (may_move(draft) and waits):
        draft.waiting_since, draft.wait_told, draft.look_at = None, False, None
        return
    since = draft.waiting_since = draft.waiting_since or draft.now
    policy = draft.policy
    if draft.now >= since + policy.wait_told_after and not draft.wait_told:
        draft.wait_told = True
        said = f"waits for {len(waits)} of {len(draft.ranks)} nodes since {since:%Y-%m-%d %H:%M} UTC"
        draft.note("job", draft.status, draft.status, said)
        draft.order(messages.job_waits(draft.id, draft.attempt, since, waits, len(draft.ranks)))
    ends = since + policy.wait_for_nodes
    if draft.now >= ends:
        hours = policy.wait_for_nodes.total_seconds() / 3600
        end(draft, JobStatus.FAILED, f"no node was found for {_names(waits)} within {hours:g} hours")
        return
    lost = [(rank.away_since or since) + policy.failover_lost_after for rank in waits if not _asleep(rank)]
    moments = [ends, *lost, *([] if draft.wait_told else [since + policy.wait_told_after])]
    draft.look_at = min(at for at in moments if at > draft.now)


def _names(ranks: Sequence[Rank]) -> str:
    return ", ".join(f"rank {rank.index}" for rank in ranks[:8]) + (" and others" if len(ranks) > 8 else "")
