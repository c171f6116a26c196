"""Nodes that nobody uses are examined now and then, so that a fault is found before a job finds it.

One node at a time: while it is examined no job can take it. What follows from the verdict is what follows
from any check: a bad node is set aside and a person is told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from ..core.errors import Refused
from ..core.events import NodeAsked
from ..core.model import NodeStatus
from ..core.node_record import Node
from .runtime import Runtime

log = logging.getLogger("ecs_gpu_recovery")
BY = "idle check"
LOOK_EVERY = timedelta(seconds=1)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class IdleChecks:
    """When which free node is due. It keeps nothing: a node's own history says when it was last examined."""

    def __init__(self, every: timedelta, *, level: str = "quick") -> None:
        self._every, self._level = every, level
        self._looked_at: datetime | None = None

    def look(self, runtime: Runtime, at: datetime) -> str | None:
        """Ask the free node that has waited longest, if it is due; its name."""
        if self._looked_at is not None and at < self._looked_at + LOOK_EVERY:
            return None
        self._looked_at = at
        node = due(runtime.store.nodes(), at, self._every)
        if node is None:
            return None
        minutes = f"{self._every.total_seconds() / 60:g} minutes"
        why = f"not examined for {minutes}" if last_checked(node) else "never examined before"
        ask = NodeAsked(at=at, node=node.name, ask="check", by=BY, why=why, level=self._level)
        try:
            runtime.handle_node(node.name, [ask])
        except Refused as exc:  # a job took it in this moment
            log.info("idle check left out", extra={"node": node.name, "why": str(exc)})
            return None
        return node.name


def due(nodes: Iterable[Node], at: datetime, every: timedelta) -> Node | None:
    """The free node whose last check is the oldest and too old; none while one is being examined."""
    every_node = list(nodes)
    if any(n.status is NodeStatus.PENDING_HEALTHCHECK and not n.job_id for n in every_node):
        return None
    free = [n for n in every_node if n.status is NodeStatus.AVAILABLE and not n.job_id and n.connected]
    late = [n for n in free if (last := last_checked(n)) is None or at - last >= every]
    return min(late, key=lambda n: (last_checked(n) or _LONG_AGO, n.name), default=None)


def last_checked(node: Node) -> datetime | None:
    """None for a node that was never examined: it has just been set up, and is due at once."""
    checked = (entry.at for entry in node.timeline if entry.after == NodeStatus.PENDING_HEALTHCHECK.value)
    return max(checked, default=None)
