"""What people see of the fleet's guard, and what they may say to it: freeze, thaw, yes and no."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from ..core import guard as rules
from ..core.errors import NotFound, Refused
from ..core.guard import FleetGuard
from ..core.policy import Policy
from ..engine.permits import Permits

ASKS = ("freeze", "thaw", "allow", "refuse")
#: As commands, pages and the API have it.
FleetView = dict[str, Any]


def view(guard: FleetGuard, policy: Policy, now: datetime) -> FleetView:
    """Whether it is frozen, and what waits for a permit, oldest first, each with its evidence."""
    frozen, thawed = guard.frozen, guard.thawed_at
    return {
        "repairs": policy.repairs,
        "frozen": frozen and {"at": frozen.at.isoformat(), "by": frozen.by, "why": frozen.why},
        "thawed": thawed and {"at": thawed.isoformat(), "by": guard.thawed_by, "why": guard.thawed_why},
        "waiting": [
            {
                "key": each.key,
                "what": each.what,
                "node": each.node,
                "job": each.job,
                "at": each.at.isoformat(),
                "why": each.why,
                "waits_for": rules.waits_for(guard, each, policy, now) or "the next look at it",
            }
            for each in guard.waiting
        ],
    }


def granted(permits: Permits | None) -> Permits:
    if permits is None:
        raise Refused("this deployment has no guard: nothing waits for a permit (GUARD_TABLE_NAME)")
    return permits


def ask(
    permits: Permits, ask: str, name: str, *, by: str, why: str, at: datetime
) -> tuple[FleetGuard, FleetGuard]:
    """A person's word. `name` is what is allowed or refused: a key, a node or a job. The guard before it, and after."""
    if ask not in ASKS:
        raise NotFound(f"a fleet can be asked to {', '.join(ASKS)}, not to {ask}")
    if ask != "allow" and not why.strip():
        raise Refused("give a reason: the next person who looks at the fleet will ask for it")
    word: Callable[[FleetGuard], FleetGuard] = {
        "freeze": partial(rules.freeze, by=by, why=why, at=at),
        "thaw": partial(rules.thaw, by=by, why=why, at=at),
        "allow": partial(rules.allow, name=name, by=by),
        "refuse": partial(rules.refuse, name=name, by=by, why=why),
    }[ask]
    seen: list[FleetGuard] = []

    def decide(guard: FleetGuard) -> FleetGuard:
        seen.append(guard)
        return word(guard)

    new = permits.change(decide)
    return seen[-1], new
