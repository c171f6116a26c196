"""What people can choose about recovery, and how fast people are. Minutes, unless the name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random

HOUR = 60.0
DAY = 24 * HOUR
WEEK = 7 * DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPolicy:
    """One way to run a fleet. The defaults are this project's own defaults and common times."""

    automatic: bool = True  #: otherwise a person starts every recovery
    max_retries: int = (
        1  #: recoveries that are charged; then a person submits again, and the count starts anew
    )
    refill: bool = True  #: they are given back when the job has passed a checkpoint since
    restart_when_healthy: bool = True  #: a job that has passed one goes on though no node is at fault
    failover: bool = True  #: a rank whose node is bad takes a free one, and the repair goes on beside it
    admit: float = 2.0  #: until the node that it takes has been examined
    hang_after: float = 11.0  #: until a hang is known
    checkpoint: float = 60.0  #: interval
    checkpoint_cost: float = 0.5  #: the job stands still this long for one
    detect: float = 1.0  #: until the first rank's end is known
    check: float = 4.0  #: stop the gang, examine every node
    reboot: float = 8.0
    restart: float = 5.0  #: start the gang, load the checkpoint, meet again
    spares: int = 0  #: nodes that take over at once
    repair_h: float = 48.0  #: a node that no reboot cures is away so long
    on_call: bool = False  #: someone is woken at night
    hands_on: float = 20.0  #: what a person needs per case, once there


#: The first release: one restart in all, each rank on its own node, a hang ends by the program's own time-out.
FIRST_RELEASE: dict[str, object] = {
    "refill": False,
    "restart_when_healthy": False,
    "failover": False,
    "hang_after": 30.0,
    "spares": 0,
}

#: One change at a time, in words a person would use.
CHANGES: tuple[tuple[str, dict[str, object]], ...] = (
    ("recover by hand, in working hours", {"automatic": False}),
    ("recover by hand, someone on call", {"automatic": False, "on_call": True}),
    ("as the first release did it", FIRST_RELEASE),
    ("ranks stay on their nodes", {"failover": False}),
    ("end jobs where no node is at fault", {"restart_when_healthy": False}),
    ("leave hangs to the program's time-out", {"hang_after": 30.0}),
    ("3 retries instead of 1", {"max_retries": 3}),
    ("10 retries instead of 1", {"max_retries": 10}),
    ("charge every restart", {"refill": False}),
    ("someone on call for what is left", {"on_call": True}),
    ("spares: 1 node in 64", {"spares": -64}),
    ("spares: 1 node in 16", {"spares": -16}),
    ("checkpoint every 15 minutes", {"checkpoint": 15.0}),
    ("checkpoint every 4 hours", {"checkpoint": 240.0}),
    ("reboot in 3 minutes instead of 8", {"reboot": 3.0}),
    ("check in 1 minute instead of 4", {"check": 1.0}),
)


def changed(policy: FleetPolicy, change: dict[str, object], nodes: int) -> FleetPolicy:
    """A negative number of spares means one spare for so many nodes."""
    spares = change.get("spares")
    if isinstance(spares, int) and spares < 0:
        change = {**change, "spares": max(1, nodes // -spares)}
    return replace(policy, **change)  # type: ignore[arg-type]


def described(policy: FleetPolicy) -> dict[str, object]:
    return {f.name: getattr(policy, f.name) for f in fields(policy)}


def until_person(now: float, policy: FleetPolicy, rng: Random) -> float:
    """How long until a person has dealt with it. Time 0 is Monday, midnight; work is 9 to 18 on weekdays."""
    answer = rng.expovariate(1 / 20.0) + policy.hands_on
    if policy.on_call:
        return answer + (0.0 if _at_work(now) else 15.0)
    begin = now
    while not _at_work(begin):
        begin = _next_opening(begin)
    return begin - now + answer


def _at_work(at: float) -> bool:
    day, minute = divmod(at % WEEK, DAY)
    return day < 5 and 9 * HOUR <= minute < 18 * HOUR


def _next_opening(at: float) -> float:
    day = at // DAY * DAY + 9 * HOUR
    return day if day > at else day + DAY
