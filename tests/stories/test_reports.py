"""Why a check says what it says: the record, the timeline and the message tell it, not just an exit code."""

from __future__ import annotations

import json

import pytest

from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from tests.stories.world import CHECK, World, container

WHY = "Xid 79 on 0000:3b:00: the GPU has fallen off the bus"
GET = ("logs", "get_log_events")


def test_the_message_about_a_bad_node_names_the_fault_and_the_gpu(world: World) -> None:
    world.begin(2)
    world.cloud.control.health("n1", 2)
    world.fail_rank(0)
    world.run()
    (message,) = world.messages()
    (uuid, *_) = [n["gpus"][0] for n in world.cloud.control.nodes() if n["name"] == "n1"]
    assert f"n1: verdict replace ({WHY} [{uuid}])" in message
    assert world.account.rows("node_table")["n1"]["node_status"] == "FAILED"
    assert world.side.store.node("n1").findings == f"{WHY} [{uuid}]"


def test_a_reboot_has_its_reason_in_the_timeline(world: World) -> None:
    world.begin(2)
    world.finish_attempt(1)
    world.cloud.control.health("n1", 1)
    world.fail_rank(0)
    job = world.run()
    (ordered,) = [entry for entry in job.timeline if entry.after == "REBOOTING"]
    assert WHY in ordered.evidence


def test_the_log_is_read_once_for_each_node_that_is_not_healthy(world: World) -> None:
    world.begin(8)
    world.finish_attempt(1)
    for node in ("n1", "n5"):
        world.cloud.control.health(node, 1)
    world.fail_rank(0)
    world.run()
    assert world.wire.calls.count(GET) == 2


def test_the_check_of_a_free_node_tells_its_reason_too(world: World) -> None:
    world.add_nodes(1)
    world.cloud.control.health("n0", 2)
    ask = NodeAsked(at=world.now(), node="n0", ask="check", by="ann", why="noise")
    world.side.runtime.handle_node("n0", [ask])
    world.until(lambda: world.side.store.node("n0").status is NodeStatus.FAILED)
    assert WHY in world.side.store.node("n0").findings


@pytest.mark.parametrize(
    "code", ["AccessDeniedException", "ResourceNotFoundException", "ThrottlingException"]
)
def test_a_report_that_cannot_be_read_holds_up_nothing(world: World, code: str) -> None:
    world.begin(2)
    world.finish_attempt(1)
    world.wire.fail_all[GET] = code
    world.cloud.control.health("n1", 1)
    world.fail_rank(0)
    job = world.run()
    (ordered,) = [entry for entry in job.timeline if entry.after == "REBOOTING"]
    assert "exit code 1" in ordered.evidence


@pytest.mark.parametrize(
    "line",
    [
        "Segmentation fault",
        "{",
        "[1]",
        json.dumps({"schema": "something-else/1", "verdict": "reboot", "why": "believe me"}),
        json.dumps({"schema": "gpu-health-report/1", "verdict": "replace", "why": "believe me"}),
        json.dumps({"schema": "gpu-health-report/1", "verdict": "reboot", "why": None, "findings": 3}),
    ],
)
def test_a_log_that_is_no_report_of_this_verdict_is_not_believed(world: World, line: str) -> None:
    world.begin(2)
    world.finish_attempt(1)
    world.cloud.control.script(family=CHECK, node="n1", exit_code=1, after_s=1.0, lines=(line,))
    world.fail_rank(0)
    job = world.run()
    (ordered,) = [entry for entry in job.timeline if entry.after == "REBOOTING"]
    assert "exit code 1" in ordered.evidence
    assert "believe me" not in ordered.evidence


def test_a_check_of_ones_own_that_logs_elsewhere_speaks_by_its_exit_code(world: World) -> None:
    world.begin(2)
    ecs = world.cloud.client("ecs")
    ecs.register_task_definition(family=CHECK, containerDefinitions=[container("check", 8)])
    world.cloud.control.health("n1", 2)
    world.fail_rank(0)
    job = world.run()
    assert job.ranks[1].verdict is Verdict.REPLACE
    assert GET not in world.wire.calls
