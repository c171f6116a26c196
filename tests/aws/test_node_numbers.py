"""What the watch on a node tells CloudWatch is found again by the node's record, with few calls."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import boto3
import pytest
from botocore.exceptions import ClientError

from ecs_gpu_recovery.aws.node_numbers import NodeNumbers, Wanted
from ecs_gpu_recovery.core.errors import Transient
from ecs_gpu_recovery.health.watch.node_metrics import DIMENSIONS, NAMESPACE, UNITS, line
from tests.cli.aws_person import Metrics
from tests.stories.account import KEYS, Wire, _Wired

NOW = datetime.now(UTC).replace(second=30, microsecond=0)
HOUR = timedelta(hours=1)


class Told(Protocol):
    """CloudWatch, in memory or a local AWS."""

    client: Any

    def add(self, line: Mapping[str, Any]) -> None: ...


class InMemory:
    """The one that the tests of the console use."""

    def __init__(self) -> None:
        self.client = Metrics()
        self.add = self.client.add


class OverHttp:
    """MiniStack reads no log, so the metrics of a line are put there as CloudWatch reads them from it."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def add(self, line: Mapping[str, Any]) -> None:
        ((group,),) = [line["_aws"]["CloudWatchMetrics"]]
        (names,) = group["Dimensions"]
        place = [{"Name": name, "Value": line[name]} for name in names]
        at = datetime.fromtimestamp(line["_aws"]["Timestamp"] / 1000, UTC)
        self.client.put_metric_data(
            Namespace=group["Namespace"],
            MetricData=[
                {"MetricName": one["Name"], "Dimensions": place, "Timestamp": at, "Value": line[one["Name"]]}
                for one in group["Metrics"]
            ],
        )


@pytest.fixture(params=["in memory", pytest.param("over HTTP", marks=pytest.mark.ministack)])
def told(request: pytest.FixtureRequest) -> Iterator[Told]:
    if request.param == "in memory":
        yield InMemory()
    else:
        url = request.getfixturevalue("aws_url")
        yield OverHttp(boto3.client("cloudwatch", endpoint_url=url, **KEYS))


class Reader:
    """Reads, and counts its calls."""

    def __init__(self, client: Any, cluster: str) -> None:
        self.wire, self.at = Wire(), NOW
        wired = _Wired(client, "cloudwatch", self.wire)
        self.numbers = NodeNumbers(lambda: wired, cluster, lambda: self.at)

    def read(self, *metrics: str, nodes: Mapping[str, str], back: timedelta = HOUR) -> Any:
        places = {name: f"arn:aws:ecs:r:a:container-instance/c/{one}" for name, one in nodes.items()}
        return self.numbers.read(Wanted(metrics, tuple(places.items()), self.at - back, self.at))

    def calls(self) -> list[str]:
        made = [action for _, action in self.wire.calls]
        self.wire.forget()
        return made


def said(cluster: str, instance: str, host: str, minutes_ago: int, **values: float) -> Mapping[str, Any]:
    place = {"cluster": cluster, "containerInstanceArn": f"arn:aws:ecs:r:a:container-instance/c/{instance}"}
    at = (NOW - timedelta(minutes=minutes_ago)).timestamp()
    return line(place, host, [], {"Memory": 10.0, **values}, at)


def test_two_hosts_of_one_name_are_two_nodes(told: Told) -> None:
    """Machines of an image may all call themselves alike; the operator calls them what they like."""
    cluster = f"c-{uuid.uuid4().hex[:8]}"
    for minutes in (2, 1):
        told.add(said(cluster, "i1", "localhost", minutes, Cpu=10.0 + minutes))
        told.add(said(cluster, "i2", "localhost", minutes, Cpu=80.0 + minutes))
    told.add(said("another", "i1", "localhost", 1, Cpu=99.0))
    reader = Reader(told.client, cluster)
    found = reader.read("Cpu", "Disk", nodes={"rack1": "i1", "rack2": "i2", "rack3": "i3"})
    assert {node: [*points.values()] for node, points in found["Cpu"].items()} == {
        "rack1": [12.0, 11.0],
        "rack2": [82.0, 81.0],
    }
    assert not any(found["Disk"].values())


def test_the_next_viewer_costs_nothing_and_the_next_minute_one_call(told: Told) -> None:
    cluster = f"c-{uuid.uuid4().hex[:8]}"
    told.add(said(cluster, "i1", "h", 1, Cpu=10.0))
    reader = Reader(told.client, cluster)
    reader.read("Cpu", nodes={"n": "i1"})
    assert reader.calls() == ["list_metrics", "get_metric_data"]
    reader.at += timedelta(seconds=20)
    reader.read("Cpu", nodes={"n": "i1"})
    assert reader.calls() == []
    reader.at += timedelta(seconds=40)
    assert reader.read("Cpu", nodes={"n": "i1"})["Cpu"]["n"]
    assert reader.calls() == ["get_metric_data"]
    reader.at += timedelta(minutes=5)
    reader.read("Cpu", nodes={"n": "i1"})
    assert reader.calls() == ["list_metrics", "get_metric_data"]


def test_a_node_that_begins_to_tell_is_found_within_a_minute() -> None:
    told = InMemory()
    reader = Reader(told.client, "c")
    assert reader.read("Cpu", nodes={"n": "i1"}) == {"Cpu": {}}
    told.add(said("c", "i1", "h", 1, Cpu=10.0))
    reader.at += timedelta(minutes=1)
    assert [*reader.read("Cpu", nodes={"n": "i1"})["Cpu"]["n"].values()] == [10.0]


def test_where_no_node_tells_anything_only_the_names_are_asked_for() -> None:
    reader = Reader(Metrics(), "c")
    assert reader.read("Cpu", nodes={"n": "i1"}) == {"Cpu": {}}
    assert reader.calls() == ["list_metrics"]


def test_a_service_that_does_not_answer_is_asked_once_a_minute() -> None:
    reader = Reader(Metrics(), "c")
    reader.wire.fail_all["cloudwatch", "list_metrics"] = "ServiceUnavailable"
    for _ in range(3):
        with pytest.raises(Transient):
            reader.read("Cpu", nodes={"n": "i1"})
    assert reader.calls() == ["list_metrics"]
    reader.wire.fail_all.clear()
    reader.at += timedelta(minutes=1)
    assert reader.read("Cpu", nodes={"n": "i1"}) == {"Cpu": {}}
    reader.at += timedelta(minutes=1)
    reader.wire.fail_all["cloudwatch", "list_metrics"] = "AccessDenied"
    with pytest.raises(ClientError):
        reader.read("Cpu", nodes={"n": "i1"})


@pytest.mark.parametrize(
    ("ago", "long", "step"),
    [
        (timedelta(), HOUR, 60),
        (timedelta(), timedelta(days=1), 360),
        (timedelta(days=20), HOUR, 300),
        (timedelta(days=70), HOUR, 3600),
        (timedelta(days=70), timedelta(days=12), 7200),
    ],
)
def test_points_are_as_far_apart_as_cloudwatch_still_has_them(
    ago: timedelta, long: timedelta, step: int
) -> None:
    end = NOW - ago
    wanted = Wanted(("Cpu",), (), end - long, end)
    assert wanted.step(NOW) == step
    rounded = wanted.rounded(NOW)
    assert rounded.since <= wanted.since < rounded.since + timedelta(seconds=step)
    assert rounded.until - timedelta(seconds=step) <= wanted.until < rounded.until


def test_a_line_of_the_watch_is_what_cloudwatch_asks_for() -> None:
    """https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html"""
    line = said("c", "i1", "h", 0, Cpu=1.0)
    (group,) = line["_aws"]["CloudWatchMetrics"]  # type: ignore[index]
    assert group["Namespace"] == NAMESPACE
    assert all(line[name] for names in group["Dimensions"] for name in names)
    assert [*group["Dimensions"]] == [DIMENSIONS]
    assert {one["Name"] for one in group["Metrics"]} <= set(UNITS) & set(line)
