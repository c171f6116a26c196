"""Nodes that stand out in their gang: by the power that their GPUs take, or by the clock of the slowest of them.

All ranks of a gang take the same time for a step, for each waits for the others: so a step names no node. What its GPUs
do meanwhile does. Nothing is ever done about it, people are told: a node may be slow for a good reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean, median

from .core.model import Job, NodeStatus
from .health.policy import Limits
from .report import lanes

#: What is known of a node in an hour: watts of its GPUs, megahertz of the slowest, and percent of its use.
POWER, CLOCK, BUSY = "power", "clock", "busy"
#: How people call what nodes are compared by, and its unit.
MEASURES = {POWER: ("GPU power", "W"), CLOCK: ("GPU clock", "MHz")}
HOUR = 3600.0
#: By measure and node: the mean of each hour, by its beginning in seconds since 1970.
Hours = Mapping[str, Mapping[str, Mapping[float, float]]]
Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A node that stood out: means over the hours in which it did."""

    node: str
    job: str
    measure: str
    value: float
    others: float  #: the middle of its gang
    hours: int
    until: datetime  #: the end of the last of them

    def __str__(self) -> str:
        name, unit = MEASURES[self.measure]
        return f"{name} {self.value:,.0f} {unit}, its gang {self.others:,.0f} {unit}"


def ran(job: Job, now: datetime, near: str = "", most: int = 0) -> dict[str, list[Span]]:
    """When each node of a gang ran a rank. Of a large gang, `near` one of them, `most` are enough to compare with."""
    own = sorted(job.ranks, key=lambda rank: rank.node != near)[: most or None]
    seen = lanes(job, now)
    begin = job.timeline[0].at if job.timeline else now
    found: dict[str, list[Span]] = {}
    for rank in own:
        spans = [
            (each.start.timestamp(), each.end.timestamp())
            for each in seen[rank.node]
            if each.status == NodeStatus.IN_PROGRESS
        ]
        if not seen[rank.node] and rank.live:  # for longer than the timeline reaches back
            spans = [(begin.timestamp(), now.timestamp())]
        found[rank.node] = spans
    return found


def judge(job: str, gang: Mapping[str, Sequence[Span]], hours: Hours, limits: Limits) -> list[Slow]:
    """Each hour by itself: who was busy in all of it, and far from the middle of those who were."""
    found: defaultdict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    busy = hours.get(BUSY, {})
    for begin in sorted({at for node in gang for at in busy.get(node, ())}):
        works = [
            node
            for node, spans in gang.items()
            if _covered(begin, spans, limits.slow_after_s)
            and busy.get(node, {}).get(begin, 0.0) >= limits.slow_busy
        ]
        for measure in MEASURES:
            told = {
                node: at[begin] for node in works if begin in (at := hours.get(measure, {}).get(node, {}))
            }
            for node, value, middle in _far(told, measure, limits):
                found[node, measure].append((begin, value, middle))
    return [
        Slow(
            node=node,
            job=job,
            measure=measure,
            value=fmean(value for _, value, _ in rows),
            others=fmean(middle for _, _, middle in rows),
            hours=len(rows),
            until=datetime.fromtimestamp(rows[-1][0] + HOUR, UTC),
        )
        for (node, measure), rows in sorted(found.items())
    ]


def _covered(begin: float, spans: Iterable[Span], start_s: float) -> bool:
    """Whether a rank ran there in all of the hour, and was not starting."""
    return any(first + start_s <= begin and begin + HOUR <= last for first, last in spans)


def _far(told: Mapping[str, float], measure: str, limits: Limits) -> Iterator[tuple[str, float, float]]:
    if len(told) < limits.slow_gang:
        return
    middle = median(told.values())
    usual = median(abs(value - middle) for value in told.values())
    share = limits.slow_power_share if measure == POWER else limits.slow_clock_share
    for node, value in told.items():
        off = abs(value - middle)
        fast = measure == CLOCK and value > middle
        if not fast and off >= share * middle and off > limits.slow_spread * usual:
            yield node, value, middle
