"""A node's file that can't be read: the node is away until a person has looked, so a person is told which it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from ..core import keys
from ..core.effects import Notify
from .files import DamagedFile
from .wiring import Embedded

log = logging.getLogger("ecs_gpu_recovery")
LOOK_EVERY_S = 1.0


class BadFiles:
    """Remembers what was told, so that each trouble is told once for as long as it lasts."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}
        self._looked_at = -LOOK_EVERY_S

    def look(self, parts: Embedded, trouble: Mapping[str, Exception]) -> None:
        """`trouble` is what kept the agents of nodes from being started, by node."""
        now = time.monotonic()
        if now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        found = {view.name: view.why_off or "" for view in parts.cluster.nodes() if view.damaged}
        asleep = {name: str(exc) for name, exc in trouble.items() if name not in found}
        for name, why in {**asleep, **found}.items():
            if self._told.get(name) == why:
                continue
            log.error("a node cannot be looked after", extra={"node": name, "why": why})
            if name in found or isinstance(trouble[name], DamagedFile):
                parts.notifier.notify(message(name, why))
            self._told[name] = why
        for name in [name for name in self._told if name not in found and name not in asleep]:
            log.info("a node can be looked after again", extra={"node": name})
            del self._told[name]


def message(node: str, why: str) -> Notify:
    return Notify(
        key=keys.unreadable_file(node, why),
        subject=f"Node {node}: a file of it cannot be read",
        happened=f"The control plane cannot read a file of node {node}.",
        evidence=why,
        done="The node counts as not answering. All other nodes go on.",
        next="Look at that file: restore it, make it readable, or take the node's folder away while nothing runs on"
        " it, and the next start makes a new node. The control plane goes on by itself when the file is good again.",
        node=node,
    )
