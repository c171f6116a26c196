"""The one function that decides on a node, and the table that names every pair of status and event.

While a job holds the node there is another table: the job's record is the truth then.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from .. import draft as d
from ..draft import ignore
from ..errors import Bug
from ..events import (
    CheckRefused,
    CheckStarted,
    Fact,
    FaultSeen,
    HandedOver,
    NodeAsked,
    NodeChecked,
    NodeLeaving,
    NodePulse,
    NodeReplaced,
    NodeSeen,
    OldTaskEnded,
    OrderFailed,
    OrdersClaimed,
    OrderSent,
    PermitWithheld,
    RebootFailed,
    RebootProven,
    Tick,
    WatchFact,
)
from ..model import NodeStatus
from ..node_record import Node
from ..policy import Policy
from . import rules as r
from .draft import NodeDraft, NodeStep

Rule = Callable[[NodeDraft, Any], None]

#: The same in every state, and whoever holds the node.
_ALWAYS: dict[type[Fact], Rule] = {
    NodeAsked: r.asked,
    NodeSeen: r.node_seen,
    NodeLeaving: r.node_leaving,
    FaultSeen: r.fault_seen,
    NodePulse: r.node_pulse,
    OrderSent: d.order_sent,
    OrderFailed: d.order_failed,
    OrdersClaimed: d.orders_claimed,
}
_NO_CHECK: dict[type[Fact], Rule] = {
    CheckStarted: ignore("no check is awaited: its order was withdrawn before"),
    CheckRefused: ignore("no check is pending"),
    NodeChecked: ignore("no check is awaited: this answers a question of before"),
}
_NO_REBOOT: dict[type[Fact], Rule] = {
    RebootProven: ignore("no reboot is awaited: the last one is over"),
    RebootFailed: ignore("no reboot is awaited: the last one is over"),
    PermitWithheld: r.permit_withheld,
}
_AT_REST: dict[type[Fact], Rule] = {
    **_ALWAYS,
    **_NO_CHECK,
    **_NO_REBOOT,
    HandedOver: ignore("no job holds it, or it was handed over already"),
    OldTaskEnded: r.old_task_ended,
    NodeReplaced: r.node_replaced,
    Tick: r.tick,
}

TABLE: dict[NodeStatus, dict[type[Fact], Rule]] = {
    **dict.fromkeys(NodeStatus, _AT_REST),
    NodeStatus.PENDING_HEALTHCHECK: {
        **_AT_REST,
        CheckStarted: r.check_started,
        CheckRefused: r.check_refused,
        NodeChecked: r.node_checked,
        RebootProven: r.reboot_proven,
        RebootFailed: r.reboot_failed,
    },
    NodeStatus.REBOOTING: {
        **_AT_REST,
        RebootProven: r.reboot_proven,
        RebootFailed: r.reboot_failed,
    },
}

#: Of a node that a job holds and has not handed over.
HELD: dict[type[Fact], Rule] = {
    **_ALWAYS,
    CheckStarted: ignore("a job holds the node, and its checks name the job: this is one of before"),
    CheckRefused: ignore("a job holds the node, and its checks name the job: this is one of before"),
    NodeChecked: ignore("a job holds the node, and its checks name the job: this is one of before"),
    RebootProven: ignore("a job holds the node: its last reboot is over"),
    RebootFailed: ignore("a job holds the node: its last reboot is over"),
    PermitWithheld: r.permit_withheld,
    HandedOver: r.handed_over,
    OldTaskEnded: ignore("a job holds the node, and knows its own tasks"),
    NodeReplaced: ignore("a job holds the node: it has a machine"),
    Tick: ignore("a job holds the node, and looks at its deadlines and absences"),
}


def decide_node(node: Node, ev: Fact, policy: Policy, now: datetime | None = None) -> NodeStep:
    """What this fact means for a node, heard `now`. The same arguments always give the same answer."""
    rule = (TABLE[node.status] if node.own else HELD).get(type(ev))
    if rule is None:
        raise Bug(f"{type(ev).__name__} is not an event of a node")
    at = ev.clock(node.updated_at, now) if isinstance(ev, WatchFact) else ev.at
    draft = NodeDraft(node, at, policy, now)
    rule(draft, ev)
    r.settle(draft)
    return draft.finish()
