"""Events as AWS sends them, compared field by field with what real ones have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.aws import events
from testbed.aws.cloud import Cloud
from tests.testbed import event_fields
from tests.testbed.helpers import CLUSTER, order_reboot, overrides, start

KNOWN = {
    events.TASK: event_fields.TASK,
    events.INSTANCE: event_fields.INSTANCE,
    events.HEALTH: event_fields.HEALTH,
}


def fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every path in a JSON value with the sort of thing it leads to."""
    if isinstance(value, dict):
        yield path, "object"
        for name, inner in value.items():
            yield from fields(inner, f"{path}.{name}")
    elif isinstance(value, list):
        yield path, "list"
        for inner in value:
            yield from fields(inner, f"{path}[]")
    elif isinstance(value, tuple):
        yield from ((path, one.__name__) for one in value)
    else:
        yield path, (value if isinstance(value, type) else type(value)).__name__


def known(detail_type: str) -> set[tuple[str, str]]:
    return set(fields({**event_fields.ENVELOPE, "detail": KNOWN[detail_type]}))


def told(cloud: Cloud, detail_type: str) -> list[dict[str, Any]]:
    return [event for event in cloud.control.events() if event["detail-type"] == detail_type]


@pytest.fixture
def lived(cloud: Cloud) -> Cloud:
    """A world in which everything that is told has happened once."""
    cloud.control.exit_task(start(cloud, startedBy="gr-1", overrides=overrides(JOB_ID="j1")), 1)
    stopped = start(cloud, startedBy="gr-2")
    cloud.client("ecs").stop_task(cluster=CLUSTER, task=stopped, reason="gpu-recovery j1/0: peer")
    cloud.control.script(accident="oom")
    start(cloud, "n1")
    cloud.advance(1)
    cloud.control.script(accident="cannot pull")
    start(cloud)
    order_reboot(cloud)
    cloud.control.impair("n1")
    cloud.control.heal("n1")
    cloud.advance(2)
    return cloud


@pytest.mark.parametrize("detail_type", KNOWN)
def test_no_field_is_invented_and_none_has_another_type(lived: Cloud, detail_type: str) -> None:
    assert told(lived, detail_type)
    for event in told(lived, detail_type):
        assert set(fields(event)) <= known(detail_type)


@pytest.mark.parametrize(
    ("detail_type", "chosen"),
    [
        (events.TASK, {"launchType": "EC2", "lastStatus": "STOPPED", "stopCode": "EssentialContainerExited"}),
        (events.TASK, {"launchType": "EC2", "lastStatus": "STOPPED", "stopCode": "UserInitiated"}),
        (events.INSTANCE, {"agentConnected": False}),
        (events.HEALTH, {"overallStatus": "IMPAIRED"}),
    ],
)
def test_what_every_real_event_has_is_there(lived: Cloud, detail_type: str, chosen: dict[str, Any]) -> None:
    always = {path for path, _ in known(detail_type) if not path.startswith(tuple(event_fields.SOMETIMES))}
    ours = [event for event in told(lived, detail_type) if chosen.items() <= event["detail"].items()]
    assert ours
    for event in ours:
        assert always <= {path for path, _ in fields(event)}


def test_times_are_written_as_aws_writes_them(lived: Cloud) -> None:
    second, moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    for event in lived.control.events():
        assert re.fullmatch(second, event["time"])
        for name, value in event["detail"].items():
            if name.endswith(("At", "-date-time")):
                assert re.fullmatch(moment, value), name


def test_versions_count_up_without_a_gap(lived: Cloud) -> None:
    versions: dict[str, list[int]] = {}
    for event in lived.control.events():
        if "version" in event["detail"]:
            versions.setdefault(event["resources"][0], []).append(event["detail"]["version"])
    for arn, numbers in versions.items():
        first = 1 if ":task/" in arn else 2
        assert numbers == list(range(first, first + len(numbers)))


def test_an_event_has_no_tags_and_no_health(cloud: Cloud) -> None:
    start(cloud, tags=[{"key": "team", "value": "a"}])
    for event in cloud.control.events():
        assert not {"tags", "healthStatus", "runningTasksCount"} & set(event["detail"])


def test_our_parser_understands_every_event(lived: Cloud) -> None:
    from ecs_gpu_recovery.aws.parse import parse_event
    from ecs_gpu_recovery.aws.parsed import Kind

    kinds = [parse_event(event, cluster=CLUSTER).kind for event in lived.control.events()]
    assert set(kinds) == {Kind.TASK, Kind.INSTANCE, Kind.INSTANCE_HEALTH, Kind.REBOOT_COMMAND}
