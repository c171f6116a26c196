"""What AWS allows in a second, and how long a call takes, in virtual time. A call beyond a limit is refused, and sent
again as the client library does it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

#: How often a call is sent in all, and the longest wait before the next time.
TRIES, LONGEST_S = 5, 20.0
#: About what a call takes, in seconds.
LATENCY_S = {"dynamodb": 0.01, "ecs": 0.15, "ssm": 0.2, "sns": 0.05}
#: Calls of ECS that share a limit: at once, and in a second.
CHANGES = frozenset({"start_task", "stop_task", "put_attributes"})
LOOKS = frozenset(
    {"describe_tasks", "describe_container_instances", "list_tasks", "list_container_instances"}
)
ECS = {"changes": (100.0, 40.0), "looks": (100.0, 20.0)}
#: Write units that one item, which can't be in more than one partition, takes in a second.
ITEM = (1000.0, 1000.0)


@dataclass(slots=True)
class Bucket:
    """So much at once, and so much in a second."""

    size: float
    per_s: float
    level: float
    at: float

    def spend(self, amount: float, now: float) -> None:
        self.level = min(self.size, self.level + (now - self.at) * self.per_s) - amount
        self.at = now

    def has(self, amount: float, now: float) -> bool:
        return min(self.size, self.level + (now - self.at) * self.per_s) >= amount


@dataclass
class Limits:
    """Of one account. `units` are write units by table, `writes` how often each item was written."""

    now: Callable[[], float]
    sleep: Callable[[float], None]
    refused: Callable[[str], Exception]
    size_of: Callable[[str, str], int]  #: bytes of an item, by table and key
    chance: Random = field(default_factory=lambda: Random(0))  # noqa: S311
    units: Counter[str] = field(default_factory=Counter)
    writes: Counter[tuple[str, str]] = field(default_factory=Counter)
    throttled: Counter[str] = field(default_factory=Counter)
    _buckets: dict[object, Bucket] = field(default_factory=dict)

    def call(
        self,
        service: str,
        action: str,
        method: Callable[..., Any],
        request: Mapping[str, Any],
        key_of: Mapping[str, str],
    ) -> Any:
        written = dict(_written(action, request, key_of)) if service == "dynamodb" else {}
        for tried in range(TRIES):
            self.sleep(LATENCY_S.get(service, 0.05))
            if self._passes(service, action, written):
                try:
                    return method(**request)
                finally:  # a write that is refused for its condition counts too
                    for item, factor in written.items():
                        self._charge(item, factor)
            self.throttled[action] += 1
            self.sleep(min(LONGEST_S, self.chance.random() * 2**tried))
        raise self.refused("ThrottlingException")

    def _passes(self, service: str, action: str, written: Mapping[tuple[str, str], int]) -> bool:
        kind = "changes" if action in CHANGES else "looks" if action in LOOKS else ""
        if service == "ecs" and kind:
            bucket = self._bucket(kind, ECS[kind])
            if not bucket.has(1, self.now()):
                return False
            bucket.spend(1, self.now())
        return all(self._bucket(item, ITEM).has(1, self.now()) for item in written)

    def _charge(self, item: tuple[str, str], factor: int) -> None:
        units = factor * max(1, math.ceil(self.size_of(*item) / 1024))
        self._bucket(item, ITEM).spend(units, self.now())
        self.units[item[0]] += units
        self.writes[item] += 1

    def _bucket(self, name: object, limit: tuple[float, float]) -> Bucket:
        return self._buckets.setdefault(name, Bucket(limit[0], limit[1], limit[0], self.now()))

    def forget(self) -> None:
        """Count from nothing again."""
        for counts in (self.units, self.writes, self.throttled):
            counts.clear()


def _written(
    action: str, request: Mapping[str, Any], key_of: Mapping[str, str]
) -> list[tuple[tuple[str, str], int]]:
    """Table and key of what a call writes, and how often its units count: in a transaction, twice."""
    if action == "update_item":
        return [((request["TableName"], request["Key"][key_of[request["TableName"]]]["S"]), 1)]
    if action != "transact_write_items":
        return []
    parts = [next(iter(part.items())) for part in request["TransactItems"]]
    return [
        ((what["TableName"], what["Item" if kind == "Put" else "Key"][key_of[what["TableName"]]]["S"]), 2)
        for kind, what in parts
    ]
