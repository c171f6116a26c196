from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.metrics.catalogue import METRICS, Kind
from ecs_gpu_recovery.metrics.prometheus import CONTENT_TYPE, STALE_S, Endpoint, exposition
from ecs_gpu_recovery.metrics.sample import Sample
from tests.metrics.exposition import parse

NOW = 1_800_000_000.0


def test_every_metric_is_written_so_that_a_scraper_reads_the_same_numbers() -> None:
    sample = Sample(NOW)
    for number, metric in enumerate(METRICS.values()):
        labels = {name: f"{name}-{number}" for name in metric.labels}
        sample.put(metric.name.removeprefix("gpu_recovery_"), number + 0.5, **labels)
    read = parse(exposition(sample, NOW + 1))
    assert set(read) == set(METRICS)
    for number, metric in enumerate(METRICS.values()):
        assert read[metric.name].kind == metric.kind
        assert read[metric.name].help == metric.help
        if metric.name != "gpu_recovery_sample_age_seconds":
            assert list(read[metric.name].samples.values()) == [number + 0.5]


@pytest.mark.parametrize(
    "name", ['quo"te', "back\\slash", "two\nlines", "comma,=", "}{", "", "a\u2028b", "ü\\n"]
)
def test_a_job_may_have_any_name(name: str) -> None:
    sample = Sample(NOW)
    sample.put("job_info", 1, job="j", name=name)
    assert list(parse(exposition(sample, NOW))["gpu_recovery_job_info"].samples) == [
        (("job", "j"), ("name", name))
    ]


@pytest.mark.parametrize("value", [0.0, -1.5, 2.0**60, 1e-9, float("inf"), float("-inf"), 123456789012345.0])
def test_numbers_arrive_as_they_are(value: float) -> None:
    sample = Sample(NOW)
    sample.put("job_loss", value, job="j")
    assert list(parse(exposition(sample, NOW))["gpu_recovery_job_loss"].samples.values()) == [value]


def test_a_loss_that_is_no_number_is_told_as_such() -> None:
    sample = Sample(NOW)
    sample.put("job_loss", float("nan"), job="j")
    assert 'gpu_recovery_job_loss{job="j"} NaN\n' in exposition(sample, NOW)


def test_old_numbers_are_not_shown_as_if_they_were_new() -> None:
    sample = Sample(NOW)
    sample.put("jobs", 3, status="FAILED")
    read = parse(exposition(sample, NOW + STALE_S + 1))
    assert list(read) == ["gpu_recovery_sample_age_seconds"]
    assert exposition(None, NOW) == ""


def test_names_follow_the_conventions() -> None:
    for metric in METRICS.values():
        assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
        assert metric.help.endswith(".")
        assert "\n" not in metric.help
        assert not set(metric.labels) - {
            "node",
            "gpu",
            "job",
            "host",
            "status",
            "name",
            "phase",
            "xid",
            "part",
            "kind",
            "version",
        }


def test_a_number_with_the_wrong_labels_is_a_bug() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        Sample(NOW).put("job_loss", 1, node="n")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint("127.0.0.1", 0) as made:
        yield made


def test_the_page_is_served(endpoint: Endpoint) -> None:
    import time

    sample = Sample(time.time())
    sample.put("jobs", 3, status="FAILED")
    endpoint.latest = lambda: sample
    with urllib.request.urlopen(endpoint.url) as reply:
        assert reply.headers["Content-Type"] == CONTENT_TYPE
        read = parse(reply.read().decode())
    assert read["gpu_recovery_jobs"].samples == {(("status", "FAILED"),): 3}


def test_other_addresses_are_not_found_and_nothing_can_be_posted(endpoint: Endpoint) -> None:
    for path, method, status in (
        ("/", "GET", 404),
        ("/metrics", "POST", 501),
        ("/../etc/passwd", "GET", 404),
    ):
        request = urllib.request.Request(endpoint.url.replace("/metrics", path), method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == status
        refused.value.close()


def test_a_silent_visitor_does_not_keep_the_scraper_out(endpoint: Endpoint) -> None:
    port = int(endpoint.url.split(":")[2].partition("/")[0])
    with (
        socket.create_connection(("127.0.0.1", port)),
        urllib.request.urlopen(endpoint.url, timeout=60) as reply,
    ):
        assert reply.status == 200


def test_a_port_in_use_is_told_before_anything_starts(endpoint: Endpoint) -> None:
    port = int(endpoint.url.split(":")[2].partition("/")[0])
    with pytest.raises(Refused, match="choose another"):
        Endpoint("127.0.0.1", port)


def test_it_speaks_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Endpoint("::1", 0) as made, urllib.request.urlopen(made.url) as reply:
        assert reply.status == 200
