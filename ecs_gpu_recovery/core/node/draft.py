"""A node while it is being decided on: the one place where a node's own record changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from .. import edges, examination, keys, messages
from ..draft import RecordDraft
from ..effects import CheckNode, Effect, Order, RebootNode, ReplaceNode
from ..errors import Bug
from ..model import NodeStatus
from ..node_record import Node
from ..policy import Policy
from ..timeline import kept_in


@dataclass(frozen=True, slots=True)
class NodeStep:
    """What was decided: the record as it shall be, and the orders that are new in it."""

    node: Node
    orders: tuple[Order, ...] = ()
    changed: bool = False


class NodeDraft(RecordDraft):
    """A node's."""

    def __init__(self, node: Node, at: datetime, policy: Policy, now: datetime | None = None) -> None:
        super().__init__(node, at, policy, now)
        self.node = self._old = node
        self.salt = node.salt

    @property
    def standing(self) -> str:
        return self.node.status

    def cut(self, text: str) -> str:
        return text[:1000]

    def machine(self, index: int = 0) -> Node:
        return self.node

    def set(self, index: int = 0, /, **changes: Any) -> Node:
        self.node = replace(self.node, **changes)
        return self.node

    def node_of(self, index: int = 0) -> tuple[str, NodeStatus]:
        return self.name, self.node.status

    def may_be_examined(self, index: int = 0) -> bool:
        return self.node.status is NodeStatus.PENDING_HEALTHCHECK

    def check_key(self, index: int = 0) -> str:
        return keys.node_check(self.node)

    def check_order(self, index: int, level: str) -> CheckNode:
        key, node = self.check_key(), self.node
        usual = self.policy.check_level_before if node.anew or node.fresh else self.policy.check_level_after
        level = level or node.level or usual
        return CheckNode(
            key=key,
            token=keys.token(key, node.salt),
            node=self.name,
            level=examination.deepest(level, self.policy.check_level_gate) if node.rebooted else level,
            check_try=self.node.check_try,
            idle=self.node.anew,
        )

    def wait_for(self, effect: Effect) -> None:
        if not isinstance(effect, RebootNode) or effect.key != self.node.reboot_key or self.node.rebooted:
            return
        replaces = isinstance(effect, ReplaceNode)
        if self.node.status is NodeStatus.PENDING_HEALTHCHECK:
            what = "replacement" if replaces else "reboot"
            self.move(NodeStatus.REBOOTING, f"its {what} has a permit")
            self.set(deadline=self.now)
        if self.node.status is NodeStatus.REBOOTING:
            self.wait_longer(0, self.policy.replace_timeout if replaces else self.policy.reboot_timeout)

    def keep(self, effect: Effect, archive: str) -> None:
        if effect.key == self.node.reboot_key:
            what = "replacement" if isinstance(effect, ReplaceNode) else "reboot"
            self.set(kept=archive)
            self.say(f"what its {what} would wipe is kept first", kept_in(self.name, archive))

    def say(self, why: str, evidence: str = "") -> None:
        """A line that is no move."""
        self.note(self.name, self.standing, self.standing, why, evidence)

    def move(self, status: NodeStatus, why: str, evidence: str = "") -> None:
        before = self.node.status
        if before is status:
            return
        if (before.value, status.value) not in edges.NODE:
            raise Bug(f"node {self.name}: {before} -> {status} is no move that exists")
        self.note(self.name, before.value, status.value, why, evidence)
        self.set(status=status)

    def well(self, why: str, evidence: str = "") -> None:
        """Free again, or back in the hands of the job that waits for it."""
        self.move(NodeStatus.AVAILABLE, why, evidence)
        self.repair_ends("cured")
        examined = self.node.fresh and self.node.verdict is not None
        self.set(
            fresh=self.node.fresh and not examined,
            returned=self.node.handed,
            task="",
            anew=False,
            rebooted=False,
            deadline=None,
        )

    def repair_ends(self, outcome: str) -> None:
        *before, last = self.node.condemned or (None,)
        if last is not None and not last.outcome:
            self.set(condemned=(*before, replace(last, outcome=outcome)))

    def fail(self, why: str, evidence: str = "") -> None:
        """Out of use until a person releases it; the person is told, by the job if one waits for the node."""
        missed = self.node.being_replaced or not self.node.gone  # one that was terminated needs no repair
        self.move(NodeStatus.FAILED, why, evidence)
        told = f"{why}: {evidence}" if evidence else why
        self.repair_ends(why)
        if self.node.job_id:
            self.set(deadline=None, findings=told)
            return
        self.set(deadline=None, findings=evidence or why, errands=self.node.errands + 1)
        if missed:
            self.order(messages.node_failed(self.node, told))

    def finish(self) -> NodeStep:
        """Freeze. A draft that changed nothing gives back the very record it was opened with."""
        old, version = self._old, self._old.version + 1
        timeline = self.told(version)
        new = replace(self.node, outbox=self.orders, timeline=timeline)
        if new == old:
            return NodeStep(old)
        new = replace(new, updated_at=max(self.at, old.updated_at), version=version)
        return NodeStep(new, self.added, changed=True)
