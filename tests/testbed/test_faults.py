"""Events that travel badly, and calls that are refused; all of it by seed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError

from testbed.aws.cloud import Cloud
from testbed.aws.control import ControlRefused
from tests.testbed.helpers import CLUSTER, TRAIN, start, statuses, task

STORM: dict[str, Any] = {"drop": 0.2, "duplicate": 0.3, "late": 0.2, "delay": 0.3, "reorder_s": 2.0}


def a_bad_night(seed: int) -> Cloud:
    """A few tasks that come and go, and a reboot, in a storm."""
    cloud = Cloud(seed=seed)
    cloud.control.weather(**STORM)
    cloud.control.add_node(name="n0", cluster=CLUSTER)
    cloud.client("ecs").register_task_definition(**TRAIN)
    for code in (1, 0, 139):
        arn = start(cloud)
        cloud.control.exit_task(arn, code)
        cloud.advance(3)
    cloud.control.reboot("n0")
    cloud.advance(120)
    return cloud


def test_on_a_good_day_every_event_arrives_once_and_in_order(cloud: Cloud) -> None:
    cloud.control.exit_task(start(cloud), 1)
    cloud.advance(1)
    assert cloud.control.events() == cloud.control.events(delivered=True)


def test_a_storm_drops_doubles_and_reorders(cloud: Cloud) -> None:
    sent, arrived = [], []
    for seed in range(5):
        night = a_bad_night(seed)
        sent += [event["id"] for event in night.control.events()]
        arrived += [event["id"] for event in night.control.events(delivered=True)]
    times = Counter(Counter(arrived)[one] for one in sent)
    assert times[0], "none was lost"
    assert times[2], "none came twice"
    firsts = list(dict.fromkeys(arrived))
    assert firsts != sorted(firsts, key=sent.index), "all in order"


def test_a_copy_is_the_same_event(cloud: Cloud) -> None:
    cloud.control.weather(duplicate=1.0, late=1.0)
    arn = start(cloud)
    cloud.advance(60)
    told = [e for e in cloud.control.events(delivered=True) if e["detail"].get("taskArn") == arn]
    assert len(told) == 6
    for event in cloud.control.events():
        assert all(copy == event for copy in told if copy["id"] == event["id"])


def test_a_seed_is_the_same_night_again() -> None:
    assert a_bad_night(7).control.events(delivered=True) == a_bad_night(7).control.events(delivered=True)
    assert a_bad_night(7).control.events(delivered=True) != a_bad_night(8).control.events(delivered=True)


def test_with_every_event_lost_the_truth_can_still_be_asked_for(cloud: Cloud) -> None:
    cloud.control.weather(drop=1.0)
    arn = start(cloud)
    cloud.control.exit_task(arn, 1)
    cloud.advance(1)
    assert statuses(cloud, arn) == []
    assert task(cloud, arn)["lastStatus"] == "STOPPED"


def test_a_weather_that_cannot_be_is_refused(cloud: Cloud) -> None:
    with pytest.raises(ControlRefused, match="drop must be 0 to 1; delay_s must not be negative"):
        cloud.control.weather(drop=2, delay_s=-1)
    with pytest.raises(ControlRefused, match="unknown: hail"):
        cloud.control.weather(hail=1)


def test_calls_are_counted(cloud: Cloud) -> None:
    start(cloud)
    cloud.control.forget_calls()
    for _ in range(3):
        cloud.client("ecs").list_tasks(cluster=CLUSTER)
    assert cloud.control.calls() == {"calls": {"ListTasks": 3}, "refused": {}}


def test_reads_and_writes_are_throttled_apart(cloud: Cloud) -> None:
    cloud.control.knobs(throttle=True)
    ecs = cloud.client("ecs")
    for _ in range(100):
        ecs.list_tasks(cluster=CLUSTER)
    with pytest.raises(ClientError) as error:
        ecs.list_tasks(cluster=CLUSTER)
    assert error.value.response["Error"] == {"Code": "ThrottlingException", "Message": "Rate exceeded"}
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    arn = cloud.control.node("n0")["arn"]
    ecs.put_attributes(cluster=CLUSTER, attributes=[{"name": "a", "targetId": arn}])
    cloud.advance(1)
    for _ in range(20):
        ecs.describe_container_instances(cluster=CLUSTER, containerInstances=[arn])
    with pytest.raises(ClientError, match="Rate exceeded"):
        ecs.list_tasks(cluster=CLUSTER)


def test_a_call_can_be_told_to_fail(cloud: Cloud) -> None:
    cloud.control.fail_call("StartTask", times=2)
    for _ in range(2):
        with pytest.raises(ClientError, match="ServerException"):
            start(cloud)
    assert task(cloud, start(cloud))["lastStatus"] == "RUNNING"
    assert cloud.control.calls()["refused"] == {"StartTask": 2}
