"""Machines that EC2 has terminated: nobody is called for one, and after a week it is forgotten.

ECS says so of a machine whose agent was connected to the end. Of one that was stopped or silent before, only EC2 knows.
Machines of ECS Anywhere are never forgotten: one that registers again has its record, and what is held against it.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from ..core.events import NodeSeen
from ..core.node.rules import forgotten_at
from ..core.node_record import Node
from ..engine.runtime import Runtime
from .machines import Machines, is_silent
from .store import DynamoStore

log = logging.getLogger("ecs_gpu_recovery")
#: A machine that is gone is in no hurry.
EVERY = timedelta(minutes=10)


class Retired:
    """Looks after nodes that no job holds; those of a job are looked for while it lives."""

    def __init__(self, machines: Machines, store: DynamoStore) -> None:
        self._machines, self._store = machines, store
        self._next: datetime | None = None
        self._marked: dict[str, int] = {}  #: which are to be forgotten, each at its version

    def look(self, runtime: Runtime, at: datetime) -> None:
        """One question to EC2 for all that are silent, and none while all are there."""
        if self._next is not None and at < self._next:
            return
        self._next = at + EVERY
        missed = [node for node in self._store.nodes() if is_silent(node, at) and not node.job_id]
        gone = self._machines.gone(node.host for node in missed)
        for node in missed:
            if node.host in gone and not node.gone:
                why = f"EC2 says that {node.host} is terminated"
                seen = NodeSeen(
                    at=at, node=node.name, connected=False, gone=True, why=why, instance=node.instance
                )
                runtime.handle_node(node.name, [seen], node)
            elif node.host in gone and self._marked.get(node.name) != node.version:
                self._mark(node)

    def _mark(self, node: Node) -> None:
        """DynamoDB itself deletes the row: no function may."""
        at = forgotten_at(node)
        if at is not None and self._store.forget_node(node, at):
            self._marked[node.name] = node.version
            log.info("to be forgotten", extra={"node": node.name, "at": at.isoformat()})
