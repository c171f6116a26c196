"""The rung above the reboot: a machine is taken away, and another one comes in its place.

That it is gone, the cluster tells: its container instance is no more. Whoever comes for it is a new machine. Under the
same name it takes the record over; under another it is a node of its own, and the old record only learns of it. Either
way it is examined before a job gets it. Why: docs/decisions/0021-a-machine-is-replaced-by-its-own-group.md
"""

from __future__ import annotations

from collections.abc import Iterable

from .. import keys, messages
from ..effects import ReplaceNode
from ..events import NodeReplaced
from ..guard import open_fault
from ..model import NodeStatus
from ..node_record import REPLACED_BY, Node
from .draft import NodeDraft

GONE = "its machine is gone; another one is to come"


def begin(d: NodeDraft, why: str, findings: str) -> None:
    d.set(errands=d.node.errands + 1)
    told = f"{why}; its machine is replaced"
    if d.node.status is NodeStatus.REBOOTING:  # it did not come back from the rung below
        d.say(told, findings)
    else:
        d.move(NodeStatus.REBOOTING, told, findings)
    order(d, keys.node_replace(d.name, d.node.errands))


def order(d: NodeDraft, key: str) -> None:
    d.set(reboot_key=key, kept="", rebooted=False, deadline=d.now + d.policy.replace_timeout)
    d.order(ReplaceNode(key=key, node=d.name))


def gone(d: NodeDraft) -> None:
    """The cluster does not have it any more. What was found on it is no fault of the one that comes. An order that
    waits for its permit is not needed then: whoever took the machine away did not ask for one."""
    if d.node.being_taken_away:
        d.drop(d.node.reboot_key)
        d.move(NodeStatus.UNKNOWN, GONE)
        d.set(deadline=d.now + d.policy.replace_timeout, verdict=None, fresh=True, task="")


def overdue(node: Node) -> str:
    """What to say when the time is over."""
    if node.status is NodeStatus.UNKNOWN:
        return "its machine was taken away, and no other has come in its place"
    return "its machine was not taken away in time"


def succeeded(d: NodeDraft, ev: NodeReplaced) -> None:
    """Another machine has come. A job that waits for this one hears that it will not be back."""
    fault = open_fault(d.node)
    if d.node.status is not NodeStatus.UNKNOWN or not d.node.being_replaced or fault is None:
        return
    why = f"{REPLACED_BY}{ev.by}"
    d.repair_ends(why)
    if d.node.job_id:
        d.fail(why, fault.findings)
        return
    d.say(why, fault.findings)
    d.set(deadline=None, fresh=False, errands=d.node.errands + 1)
    d.order(messages.node_replaced(d.node, ev.by, fault.findings))


def taken_over(d: NodeDraft) -> None:
    """Another machine has its name. The fault went with the one before: whatever this one has is a new one."""
    fault = open_fault(d.node)
    if d.node.being_replaced and fault is not None:
        d.repair_ends("another machine has its name")
        d.set(errands=d.node.errands + 1)
        d.order(messages.node_replaced(d.node, d.name, fault.findings))


def successors(nodes: Iterable[Node]) -> list[tuple[Node, Node]]:
    """Who has come for whom: machines that were first seen after the fault, the oldest first. Those of the same kind go
    before others with as many GPUs: a group may start the next one in another zone, and no label is on it yet.

    It can be told from the records at any time, so nothing is lost with a process that dies.
    """
    nodes = list(nodes)
    taken = {each.outcome.removeprefix(REPLACED_BY) for node in nodes for each in node.condemned}
    waits = [node for node in nodes if node.status is NodeStatus.UNKNOWN and node.being_replaced]
    waits.sort(key=lambda node: (node.condemned[-1].at, node.name))
    came = sorted((node for node in nodes if not node.gone), key=lambda node: (node.created_at, node.name))
    pairs: dict[str, tuple[Node, Node]] = {}
    for alike in (_same_kind, _same_gpus):
        for old in (each for each in waits if each.name not in pairs):
            fit = (n for n in came if n.created_at > old.condemned[-1].at and alike(old, n))
            new = next((n for n in fit if n.name not in taken), None)
            if new is not None:
                pairs[old.name] = (old, new)
                taken.add(new.name)
    return list(pairs.values())


def _same_kind(old: Node, new: Node) -> bool:
    return old.kind == new.kind


def _same_gpus(old: Node, new: Node) -> bool:
    return old.gpus == new.gpus
