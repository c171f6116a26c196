"""What goes wrong between AWS and us: events lost, late, doubled or out of order; calls refused.

All of it is drawn from a seed, so that a run which found a mistake can be run again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from .requests import ApiError

#: Amazon ECS, per account and Region: what may be called at once, and how many calls come back per second.
MODIFY, READ = (100.0, 40.0), (100.0, 20.0)
_MODIFY = (
    "StartTask",
    "RunTask",
    "StopTask",
    "PutAttributes",
    "DeleteAttributes",
    "DeregisterContainerInstance",
    "UpdateContainerInstancesState",
)
_READ = (
    "DescribeTasks",
    "DescribeContainerInstances",
    "ListTasks",
    "ListContainerInstances",
    "ListAttributes",
)
BUCKETS = dict.fromkeys(_MODIFY, "modify") | dict.fromkeys(_READ, "read")


@dataclass(slots=True, kw_only=True)
class Weather:
    """How badly events travel. Probabilities are per event, times in seconds."""

    drop: float = 0.0
    duplicate: float = 0.0  #: a second copy close behind the first
    late: float = 0.0  #: a second copy long after
    late_s: float = 30.0
    delay: float = 0.0  #: the event itself comes late
    delay_s: float = 5.0
    reorder_s: float = 0.0  #: every copy is late by up to this long, so neighbours change places
    latency_s: float = 0.0  #: on a good day

    def problems(self) -> list[str]:
        """What can't be: a chance beyond 0 to 1, a time before now."""
        chances = [
            f"{n} must be 0 to 1"
            for n in ("drop", "duplicate", "late", "delay")
            if not 0 <= getattr(self, n) <= 1
        ]
        times = [
            f"{n} must not be negative"
            for n in ("late_s", "delay_s", "reorder_s", "latency_s")
            if getattr(self, n) < 0
        ]
        return chances + times


class Courier:
    """Decides when each copy of an event arrives; no copy at all if it is lost."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.weather = Weather()
        self.counts: Counter[str] = Counter()

    def copies(self) -> list[float]:
        """Seconds until each copy of the next event arrives. Every event draws as often as every other."""
        w = self.weather
        lost, doubled, again, slow = (self._chance.random() for _ in range(4))
        jitter = [self._chance.random() * w.reorder_s for _ in range(3)]
        when = [w.latency_s + jitter[0] + (w.delay_s if slow < w.delay else 0.0)]
        if lost < w.drop:
            self.counts["dropped"] += 1
            return []
        if slow < w.delay:
            self.counts["delayed"] += 1
        if doubled < w.duplicate:
            self.counts["duplicated"] += 1
            when.append(w.latency_s + jitter[1])
        if again < w.late:
            self.counts["repeated late"] += 1
            when.append(w.latency_s + jitter[2] + w.late_s)
        return when


class Gate:
    """Every call passes here: it is counted, and may be refused."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._ordered: dict[str, list[ApiError]] = {}
        self._tokens = {"modify": MODIFY[0], "read": READ[0]}
        self._filled_at: float | None = None

    def refuse(self, action: str, error: ApiError, times: int = 1) -> None:
        """The next calls of this action fail with this error."""
        self._ordered.setdefault(action, []).extend([error] * times)

    def enter(self, action: str, now: float, *, throttle: bool) -> None:
        self.calls[action] += 1
        ordered = self._ordered.get(action)
        if ordered:
            self.refused[action] += 1
            raise ordered.pop(0)
        if throttle and not self._take(action, now):
            self.refused[action] += 1
            raise ApiError("ThrottlingException", "Rate exceeded")

    def _take(self, action: str, now: float) -> bool:
        bucket = BUCKETS.get(action)
        if bucket is None:
            return True
        passed = max(0.0, now - self._filled_at) if self._filled_at is not None else 0.0
        self._filled_at = now
        for name, (most, per_second) in (("modify", MODIFY), ("read", READ)):
            self._tokens[name] = min(most, self._tokens[name] + passed * per_second)
        if self._tokens[bucket] < 1.0:
            return False
        self._tokens[bucket] -= 1.0
        return True
