"""The repair of a node: a fault is held against it, and a reboot is ordered once, and believed when it is proven."""

from __future__ import annotations

from datetime import timedelta

from ..effects import RebootNode
from ..events import RebootFailed, RebootProven
from ..model import Condemnation, NodeStatus, Verdict
from .draft import NodeDraft

#: A node that is condemned so often within this time is not repaired any more: a person must look at it.
TOO_OFTEN, WITHIN = 3, timedelta(days=7)
#: How many condemnations a record remembers.
REMEMBERED = 10


def condemn(d: NodeDraft, key: str, verdict: Verdict, findings: str) -> None:
    """A fault was found that a reboot may cure. Whether that was tried in vain before is remembered."""
    recent = [each for each in d.node.condemned if d.now - each.at < WITHIN]
    often = len(recent) + 1 >= TOO_OFTEN
    entry = Condemnation(at=d.now, verdict=verdict, findings=findings[:300], repair="" if often else "reboot")
    d.set(condemned=(*d.node.condemned, entry)[-REMEMBERED:])
    if often:
        d.fail(f"condemned {len(recent) + 1} times within {WITHIN.days} days", findings)
    else:
        order(d, key)


def order(d: NodeDraft, key: str) -> None:
    d.set(reboot_key=key, rebooted=False, deadline=d.now + d.policy.reboot_timeout)
    d.order(RebootNode(key=key, node=d.name))


def awaited(d: NodeDraft, ev: RebootProven | RebootFailed) -> bool:
    """Whether this tells of the reboot that is waited for."""
    return d.node.status is NodeStatus.REBOOTING and ev.key == d.node.reboot_key


def proven(d: NodeDraft, ev: RebootProven) -> None:
    """The boot id belongs to our order: seen again later, it is no restart under the next task."""
    if awaited(d, ev):
        d.drop(ev.key)
        if not d.node.rebooted:
            d.set(rebooted=True, boot_id=ev.boot_id or d.node.boot_id)


def failed(d: NodeDraft, ev: RebootFailed) -> bool:
    """Whether it has; a reboot that is proven has not. Its order is withdrawn."""
    if not awaited(d, ev) or d.node.rebooted:
        return False
    d.drop(ev.key)
    return True
