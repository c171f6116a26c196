"""The orders that steer the world say what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed.aws.cloud import Cloud
from testbed.aws.control import ControlRefused
from tests.testbed.helpers import CLUSTER, start, task


@pytest.mark.parametrize(
    ("order", "arguments", "why"),
    [
        ("dance", {}, "no order 'dance'"),
        ("_node", {"reference": "n0"}, "no order '_node'"),
        ("do", {"order": "nodes", "arguments": {}}, "no order 'do'"),
        ("reboot", {}, "missing a required argument"),
        ("reboot", {"node": "n9"}, "no node 'n9'"),
        ("exit_task", {"task": "x", "exit_code": 1}, "no task 'x'"),
        ("script", {"accident": "flood"}, "no such accident: flood"),
        ("script", {"colour": "red"}, "unknown: colour"),
        ("next_reboot", {"node": "n0", "colour": "red"}, "colour"),
        ("knobs", {"reboot": 1}, "unknown: reboot"),
    ],
)
def test_a_wrong_order_is_refused_with_the_reason(
    cloud: Cloud, order: str, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ControlRefused, match=why):
        cloud.control.do(order, arguments)


def test_every_look_at_the_world_travels_as_json(cloud: Cloud) -> None:
    start(cloud)
    for order in ("nodes", "tasks", "calls", "events", "knobs", "weather"):
        assert json.loads(json.dumps(cloud.control.do(order, {}))) is not None


def test_a_node_is_found_by_each_of_its_names(cloud: Cloud) -> None:
    node = cloud.control.node("n0")
    for name in (node["arn"], node["host_id"], node["arn"].rpartition("/")[2]):
        assert cloud.control.node(name)["name"] == "n0"


def test_a_reset_leaves_nothing(cloud: Cloud) -> None:
    start(cloud)
    cloud.control.knobs(reboot_s=9.0)
    cloud.control.weather(drop=1.0)
    cloud.control.reset(seed=3)
    assert (cloud.control.nodes(), cloud.control.tasks(), cloud.control.events()) == ([], [], [])
    assert cloud.control.knobs()["reboot_s"] == 0.5
    assert cloud.control.weather()["drop"] == 0.0


def test_out_of_memory_is_a_reason_and_a_code(cloud: Cloud) -> None:
    arn = start(cloud)
    assert cloud.control.kill_for_memory(arn, exit_code=1)
    main = task(cloud, arn)["containers"][0]
    assert (main["exitCode"], main["reason"]) == (1, "OutOfMemoryError: Container killed due to memory usage")
    assert not cloud.control.exit_task(arn, 1), "it is dead already"


def test_tags_are_kept_until_the_task_is_stopped(cloud: Cloud) -> None:
    ecs, arn = cloud.client("ecs"), start(cloud, tags=[{"key": "team", "value": "a"}])
    ecs.tag_resource(resourceArn=arn, tags=[{"key": "run", "value": "7"}])
    ecs.untag_resource(resourceArn=arn, tagKeys=["team"])
    assert ecs.list_tags_for_resource(resourceArn=arn)["tags"] == [{"key": "run", "value": "7"}]
    ecs.stop_task(cluster=CLUSTER, task=arn)
    assert ecs.list_tags_for_resource(resourceArn=arn)["tags"] == []
