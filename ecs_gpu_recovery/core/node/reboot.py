"""The reboot of a node: ordered once, and believed when it is proven."""

from __future__ import annotations

from ..effects import RebootNode
from ..events import RebootFailed, RebootProven
from ..model import NodeStatus
from .draft import NodeDraft


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
