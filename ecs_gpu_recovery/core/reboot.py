"""The reboot of a machine: ordered once, and believed when it is proven."""

from __future__ import annotations

from .draft import RecordDraft
from .effects import RebootNode
from .events import RebootFailed, RebootProven
from .model import NodeStatus


def order(draft: RecordDraft, index: int = 0) -> None:
    draft.set(index, rebooted=False, deadline=draft.now + draft.policy.reboot_timeout)
    node, _ = draft.node_of(index)
    draft.order(RebootNode(key=draft.reboot_key(index), node=node, attempt=draft.attempt))


def awaited(draft: RecordDraft, index: int, ev: RebootProven | RebootFailed) -> bool:
    """Whether this tells of the reboot that is waited for."""
    return draft.node_of(index)[1] is NodeStatus.REBOOTING and ev.key == draft.reboot_key(index)


def proven(draft: RecordDraft, index: int, ev: RebootProven) -> None:
    """The boot id belongs to our order: seen again later, it is no restart under the next task."""
    record = draft.machine(index)
    if awaited(draft, index, ev):
        draft.drop(ev.key)
        if not record.rebooted:
            draft.set(index, rebooted=True, boot_id=ev.boot_id or record.boot_id)


def failed(draft: RecordDraft, index: int, ev: RebootFailed) -> bool:
    """Whether it has; a reboot that is proven has not. Its order is withdrawn."""
    if not awaited(draft, index, ev) or draft.machine(index).rebooted:
        return False
    draft.drop(ev.key)
    return True
