"""The nodes' numbers over time, from CloudWatch: what the watch on each node told of it once a minute.

A metric names its node by the container instance, as the records do; the host's own name, which only people need, is in
another dimension. CloudWatch wants both to find a metric, so the names are listed now and then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..core.errors import Transient
from ..health.watch.node_metrics import DIMENSIONS, EVERY_S, NAMESPACE
from .pages import pages

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient

#: By metric and node, moments in seconds since 1970 with their values.
Numbers = Mapping[str, Mapping[str, Mapping[float, float]]]
#: A line has about so many points.
POINTS = 240
#: How long an answer is good for: no node tells more often. Nodes' own names change with their machines only.
_GOOD_FOR, _NAMES_GOOD_FOR = timedelta(seconds=EVERY_S), timedelta(minutes=5)
#: CloudWatch keeps single minutes for 15 days, and five of them together for 63.
_COARSER = ((timedelta(days=63), 3600), (timedelta(days=15), 300))
#: CloudWatch answers so many questions at once.
_AT_ONCE = 500
#: Every node has this one.
_ALWAYS = "Memory"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Some metrics of some nodes over a time. `nodes` has the name of each with its container instance."""

    metrics: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...]
    since: datetime
    until: datetime
    every_s: int = 0  #: between two points; 0: as many as a line has

    def rounded(self, now: datetime) -> Wanted:
        """To whole periods, as CloudWatch keeps them. Whoever asks in the same minute asks for the same."""
        step = self.step(now)
        first, last = (int(at.timestamp()) // step * step for at in (self.since, self.until))
        begin, end = (datetime.fromtimestamp(at, UTC) for at in (first, last + step))
        return replace(self, since=begin, until=end)

    def step(self, now: datetime) -> int:
        """Seconds between two points."""
        if self.every_s:
            return self.every_s
        finest = next((step for age, step in _COARSER if now - self.since > age), int(EVERY_S))
        share = (self.until - self.since).total_seconds() / POINTS
        return max(1, -(-int(share) // finest)) * finest


class NodeNumbers:
    """Few calls: names are listed once in five minutes, and what one viewer was shown, the next sees too."""

    def __init__(
        self, client: Callable[[], CloudWatchClient], cluster: str, now: Callable[[], datetime]
    ) -> None:
        self._client, self._cluster, self._now = client, cluster, now
        self._lock = threading.Lock()
        self._known: dict[Wanted, tuple[datetime, Numbers]] = {}
        self._hosts: tuple[datetime, Mapping[str, Sequence[str]]] | None = None
        self._trouble: tuple[datetime, Transient] | None = None

    def read(self, asked: Wanted) -> Numbers:
        now = self._now()
        wanted = asked.rounded(now)
        with self._lock:  # two viewers at once ask once
            self._known = {one: kept for one, kept in self._known.items() if now - kept[0] < _GOOD_FOR}
            if wanted not in self._known:
                self._known[wanted] = (now, self._patiently(wanted, now))
            return self._known[wanted][1]

    def _patiently(self, wanted: Wanted, now: datetime) -> Numbers:
        """A service that does not answer is left alone for a minute: a page with charts has more to show."""
        if self._trouble is not None and now - self._trouble[0] < _GOOD_FOR:
            raise self._trouble[1]
        try:
            return self._asked(wanted, wanted.step(now))
        except Transient as exc:
            self._trouble = (now, exc)
            raise

    def _asked(self, wanted: Wanted, step: int) -> Numbers:
        found: dict[str, dict[str, dict[float, float]]] = {metric: {} for metric in wanted.metrics}
        hosts = self._names({instance.rpartition("/")[2] for _, instance in wanted.nodes})
        queries: list[dict[str, Any]] = []
        meant: dict[str, tuple[str, str]] = {}
        for node, instance in wanted.nodes:
            own = instance.rpartition("/")[2]
            for host in hosts.get(own, ()):
                for metric in wanted.metrics:
                    name = f"q{len(queries)}"
                    queries.append(self._query(name, metric, own, host, step))
                    meant[name] = (metric, node)
        for start in range(0, len(queries), _AT_ONCE):
            for name, points in self._answers(queries[start : start + _AT_ONCE], wanted):
                metric, node = meant[name]
                found[metric].setdefault(node, {}).update(points)
        return found

    def _query(self, name: str, metric: str, instance: str, host: str, step: int) -> dict[str, Any]:
        values = dict(zip(DIMENSIONS, (self._cluster, instance, host), strict=True))
        named = {
            "Namespace": NAMESPACE,
            "MetricName": metric,
            "Dimensions": [{"Name": key, "Value": value} for key, value in values.items()],
        }
        return {"Id": name, "MetricStat": {"Metric": named, "Period": step, "Stat": "Average"}}

    def _answers(
        self, queries: Sequence[dict[str, Any]], wanted: Wanted
    ) -> Iterator[tuple[str, Mapping[float, float]]]:
        for page in pages(
            "reading the nodes' numbers",
            self._client().get_metric_data,
            following="NextToken",
            MetricDataQueries=queries,
            StartTime=wanted.since,
            EndTime=wanted.until,
        ):
            for one in page["MetricDataResults"]:
                moments = (at.timestamp() for at in one["Timestamps"])
                yield one["Id"], dict(zip(moments, one["Values"], strict=True))

    def _names(self, wanted: Collection[str]) -> Mapping[str, Sequence[str]]:
        """What the hosts of the cluster call themselves, by container instance. One that is not known may be new."""
        now = self._now()
        known = self._hosts
        good_for = _NAMES_GOOD_FOR if known and known[1].keys() >= set(wanted) else _GOOD_FOR
        if known is None or now - known[0] >= good_for:
            known = self._hosts = (now, self._listed())
        return known[1]

    def _listed(self) -> Mapping[str, Sequence[str]]:
        cluster, instance, node = DIMENSIONS
        found: dict[str, list[str]] = {}
        for page in pages(
            "listing the nodes' metrics",
            self._client().list_metrics,
            following="NextToken",
            Namespace=NAMESPACE,
            MetricName=_ALWAYS,
            Dimensions=[{"Name": cluster, "Value": self._cluster}],
        ):
            for metric in page["Metrics"]:
                said = {one["Name"]: one["Value"] for one in metric["Dimensions"]}
                if set(said) == set(DIMENSIONS):
                    found.setdefault(said[instance], []).append(said[node])
        return found
