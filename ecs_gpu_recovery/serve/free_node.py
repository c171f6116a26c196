"""The demo's story of a node that no job holds: it breaks, is examined, repaired, passes its gate and is free again."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..cli.render import plain, styled
from ..cli.terminal import emit_json
from ..core.errors import RecoveryError
from ..core.model import NodeStatus
from ..core.node_record import Node
from ..local.wiring import Embedded

LIMIT_S = 100.0
MOST_NOTICES = 50
#: It answers for itself here until it is in one of these.
AT_REST = frozenset({NodeStatus.AVAILABLE, NodeStatus.FAILED})

Say = Callable[..., None]


def play(parts: Embedded, fault: str, says: str, say: Say, rest: Callable[[], None]) -> tuple[Node, float]:
    """Break the first free node and tell what becomes of it; the node as it is then, and the seconds it took."""
    victim = min(node.name for node in parts.store.nodes() if node.claimable)
    told = len(parts.store.node(victim).timeline)
    began = time.monotonic()
    say(f"{victim} is free; {says}", "bold red")
    parts.cluster.inject(victim, fault)
    while True:
        node = parts.store.node(victim)
        for entry in node.timeline[told:]:
            move = styled(entry.after)
            if entry.before not in ("", entry.after):
                move = f"{styled(entry.before)} -> {move}"
            said = ": ".join(filter(None, (entry.why, entry.evidence)))
            say(f"{victim}  {move}: [dim]{plain(said)}[/]")
        told = len(node.timeline)
        if node.condemned and node.status in AT_REST and not node.outbox:
            return node, time.monotonic() - began
        if time.monotonic() - began > LIMIT_S:
            raise RecoveryError(f"the demo did not end within {LIMIT_S:.0f} s; {victim} is {node.status}")
        rest()


def report(parts: Embedded, name: str, want: NodeStatus, node: Node, seconds: float, *, quiet: bool) -> int:
    """Whether it ended as it should."""
    good = node.status is want and node.condemned[-1].outcome == "cured"
    notices = list(parts.reads.notices(MOST_NOTICES))
    if quiet:
        emit_json(
            {
                "fault": name,
                "node": node.name,
                "status": node.status.value,
                "as_expected": good,
                "moves": [e.after for e in node.timeline if e.before != e.after],
                "repairs": [each.outcome for each in node.condemned],
                "seconds": round(seconds, 2),
                "notices": notices,
            }
        )
        return 0 if good else 1
    print()
    print(f"{node.name} is {node.status}, {seconds:.1f} s after its fault; nobody was asked for anything")
    for message in notices:
        print(f"  message to people: {message['happened']} {message['next']}")
    print("  as it should be" if good else f"  NOT as it should be: expected {want}")
    return 0 if good else 1
