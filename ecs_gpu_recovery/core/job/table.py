"""The one function that decides, and the table that names every pair of status and event.

    fact -> decide(job, fact, policy, now) -> Step(job', orders)

A rule records the fact, the joint rules draw the consequences, the draft is frozen. No clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from .. import draft as d
from .. import examination
from ..draft import ignore
from ..errors import Bug, Refused
from ..events import (
    CheckRefused,
    CheckStarted,
    Fact,
    FaultSeen,
    GangStalled,
    NodeChecked,
    NodeGivenUp,
    NodeLeaving,
    NodeRepaired,
    NodeSeen,
    NodesOffered,
    OrderFailed,
    OrdersClaimed,
    OrderSent,
    ProgressSeen,
    StartRefused,
    StopAsked,
    TaskEnded,
    TaskStarted,
    Tick,
)
from ..model import Budget, Job, JobSpec, JobStatus, NodeStatus, Rank
from ..node_record import Node
from ..policy import Policy
from . import budget as b
from . import claim, hang, leaves
from . import rules as r
from . import sightings as s
from .draft import Draft, Step
from .joint import settle

Rule = Callable[[Draft, Any], None]

#: The same in every state: they concern the outbox and the record, not the state.
_ALWAYS: dict[type[Fact], Rule] = {
    OrderSent: d.order_sent,
    OrderFailed: d.order_failed,
    OrdersClaimed: d.orders_claimed,
    FaultSeen: s.fault_seen,
    NodeLeaving: leaves.node_leaving,
    ProgressSeen: b.progress_seen,
}
_NO_CHECK: dict[type[Fact], Rule] = {
    CheckStarted: ignore("no check is awaited while the gang starts or runs"),
    CheckRefused: ignore("no check is pending while the gang starts or runs"),
    NodeChecked: ignore("the gang starts or runs: this answers a question of before"),
}
_NONE_HANDED: dict[type[Fact], Rule] = {
    NodeRepaired: ignore("no node is handed over now: this is old news of an earlier attempt"),
    NodeGivenUp: ignore("no node is handed over now: this is old news of an earlier attempt"),
}
_ENDED: dict[type[Fact], Rule] = {
    **_ALWAYS,
    TaskStarted: r.task_started_too_late,
    TaskEnded: ignore("the job is over: each of its tasks had ended before, or was given up"),
    StartRefused: ignore("the job is over, and its starts were withdrawn"),
    CheckStarted: ignore("the job is over: the check was withdrawn, and its stop is sent by its token"),
    CheckRefused: ignore("the job is over, and its checks were withdrawn"),
    NodeChecked: ignore("the job is over: a verdict decides nothing any more"),
    NodeRepaired: ignore("the job is over, and nobody waits for the node"),
    NodeGivenUp: ignore("the job is over, and nobody waits for the node"),
    NodesOffered: ignore("the job is over, and needs no node"),
    NodeSeen: ignore("the job is over and holds no node: the node's own record keeps it"),
    FaultSeen: ignore("the job is over and holds no node: the node's own record keeps it"),
    NodeLeaving: ignore("the job is over and holds no node: the node's own record keeps it"),
    ProgressSeen: ignore("the job is over: it needs no restart any more"),
    GangStalled: ignore("the job is over"),
    Tick: ignore("the job is over, and waits for nothing"),
    StopAsked: r.already_over,
}

TABLE: dict[JobStatus, dict[type[Fact], Rule]] = {
    JobStatus.IN_PROGRESS: {
        **_ALWAYS,
        **_NO_CHECK,
        **_NONE_HANDED,
        TaskStarted: r.task_started,
        TaskEnded: r.task_ended,
        StartRefused: r.start_refused,
        NodesOffered: claim.offered,
        NodeSeen: s.node_seen,
        GangStalled: hang.gang_stalled,
        Tick: r.tick,
        StopAsked: r.stop_asked,
    },
    JobStatus.PENDING_HEALTHCHECK: {
        **_ALWAYS,
        NodeRepaired: r.node_repaired,
        NodeGivenUp: r.node_given_up,
        TaskStarted: r.task_started_too_late,
        TaskEnded: r.task_ended,
        StartRefused: ignore("the gang is stopping and its starts were withdrawn, or it was not started yet"),
        CheckStarted: r.check_started,
        CheckRefused: r.check_refused,
        NodeChecked: r.node_checked,
        NodesOffered: claim.offered,
        NodeSeen: s.node_seen,
        GangStalled: ignore("the gang is being stopped, or its nodes are examined"),
        Tick: r.tick,
        StopAsked: r.stop_asked,
    },
    JobStatus.PENDING_RESTART: {
        **_ALWAYS,
        TaskStarted: r.task_started_too_late,
        TaskEnded: r.task_ended,
        StartRefused: ignore(
            "the starts of the last attempt were withdrawn, and the next is not ordered yet"
        ),
        CheckStarted: r.check_started,
        CheckRefused: r.check_refused,
        NodeChecked: r.node_checked,
        NodeRepaired: r.node_repaired,
        NodeGivenUp: r.node_given_up,
        NodesOffered: claim.offered,
        NodeSeen: s.node_seen,
        GangStalled: ignore("nothing of the job runs"),
        Tick: r.tick,
        StopAsked: r.stop_asked,
    },
    JobStatus.RESTARTING: {
        **_ALWAYS,
        **_NO_CHECK,
        **_NONE_HANDED,
        NodesOffered: ignore("the gang is being started, and needs no other node"),
        TaskStarted: r.task_started,
        TaskEnded: r.task_ended,
        StartRefused: r.start_refused,
        NodeSeen: s.node_seen,
        GangStalled: ignore("the gang is being started: every start has its own deadline"),
        Tick: r.tick,
        StopAsked: r.stop_asked,
    },
    JobStatus.COMPLETE: _ENDED,
    JobStatus.FAILED: _ENDED,
    JobStatus.USER_STOPPED: _ENDED,
}


def decide(job: Job, ev: Fact, policy: Policy, now: datetime | None = None) -> Step:
    """What this fact means for this job. The same arguments always give the same answer.

    `now` is the clock of whoever asks: a fact may be old when it is heard, and no wait begins before that.
    """
    rule = TABLE[job.status].get(type(ev))
    if rule is None:
        raise Bug(f"{type(ev).__name__} is not an event of a job")
    draft = Draft(job, ev.clock(job.updated_at, now), policy, now)
    rule(draft, ev)
    settle(draft)
    return draft.finish()


def unexamined(nodes: Sequence[Node], policy: Policy) -> bool:
    """Whether one of these is new, and nobody has examined it: the job that takes it so early has to."""
    return policy.admission_check and any(node.fresh for node in nodes)


def submit(  # noqa: PLR0913 - all by name
    *,
    job_id: str,
    cluster: str,
    spec: JobSpec,
    nodes: Sequence[Node],
    policy: Policy,
    at: datetime,
    check: bool,
    overrides: Sequence[str] = (),
    salt: str = "",
) -> Step:
    """A new job on chosen nodes: examined first, or started at once. The store claims the nodes in the same breath."""
    if not nodes:
        raise Refused("a job needs at least one node")
    if len({node.name for node in nodes}) != len(nodes):
        raise Refused("a node was chosen twice")
    check = check or unexamined(nodes, policy)
    ranks = tuple(
        Rank(
            index=i,
            node=node.name,
            instance=node.instance,
            host=node.host,
            registered_at=node.registered_at,
            address=node.ip,
            ibdev=node.ibdev,
            gpus=node.gpus,
            boot_id=node.boot_id,
            gpus_seen=node.gpus_seen,
            seen_version=node.seen_version,
            connected=node.away_since is None,
            away_since=node.away_since,
            node_status=NodeStatus.ASSIGNED,
            overrides=overrides[i] if overrides else "",
        )
        for i, node in enumerate(nodes)
    )
    status = JobStatus.PENDING_HEALTHCHECK if check else JobStatus.IN_PROGRESS
    job = Job(
        id=job_id,
        cluster=cluster,
        spec=spec,
        status=status,
        ranks=ranks,
        created_at=at,
        updated_at=at,
        max_retries=policy.max_retries,
        restart_when_healthy=policy.restart_when_healthy,
        budget=Budget(),
        preflight=check,
        salt=salt,
    )
    draft = Draft(job, at, policy)
    draft.note(
        "job",
        "",
        status,
        "submitted" + (f" by {spec.submitted_by}" if spec.submitted_by else ""),
        f"nodes {', '.join(n.name for n in nodes)}",
    )
    for rank in ranks:
        if check:
            examination.ask(draft, rank.index)
        else:
            draft.order_start(rank.index)
    return draft.finish()
