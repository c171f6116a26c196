"""Permits by command: freeze, thaw, what waits, yes and no; the same through a console."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.model import NodeStatus
from tests.cli.conftest import Command
from tests.embedded.helpers import LiveController, eventually

pytestmark = pytest.mark.usefixtures("free_nodes")


def test_a_fleet_is_frozen_and_thawed_with_a_reason(here: Command) -> None:
    assert "not frozen; nodes are repaired without asking" in here("fleet").out
    assert here("fleet", "freeze").code == 2, "a reason is needed"
    assert "frozen since" in here("fleet", "freeze", "--why", "a new driver").out
    here("fleet", "freeze", "--why", "once more").refused("frozen already")
    assert here("fleet", "--json").data["frozen"]["why"] == "a new driver"
    assert "not frozen" in here("fleet", "thaw", "--why", "it is good").out
    assert here("fleet", "--json").data["thawed"]["why"] == "it is good"
    assert here("fleet", "thaw", "--why", "once more").code == 4


def test_a_frozen_fleet_reboots_no_node_until_it_is_thawed(here: Command, live: LiveController) -> None:
    here("fleet", "freeze", "--why", "a new driver")
    assert here("node", "reboot", "node-1", "--why", "it is slow").code == 0
    live.node_is("node-1", NodeStatus.PENDING_HEALTHCHECK)
    boots = live.side.node("node-1").boot_id
    eventually(lambda: here("permits", "--json").data["waiting"] != [], "it waits")
    here("permits").tells("node-1", "waits for a thaw (frozen by")
    assert "its reboot waits for a permit" in here("nodes").out
    here("fleet", "thaw", "--why", "it is good")
    live.node_is("node-1", NodeStatus.AVAILABLE)
    assert live.side.node("node-1").boot_id != boots
    assert "no repair waits for a permit" in here("permits").out


@pytest.mark.parametrize(("answer", "end"), [("allow", "AVAILABLE"), ("refuse", "FAILED")])
def test_a_person_answers_for_one_node(here: Command, live: LiveController, answer: str, end: str) -> None:
    here("fleet", "freeze", "--why", "a new driver")
    here("node", "reboot", "node-2", "--why", "it is slow")
    eventually(lambda: here("permits", "--json").data["waiting"] != [], "it waits")
    assert here(answer, "node-2", "--why", "its owner knows").code == 0
    live.node_is("node-2", NodeStatus(end))
    assert here(answer, "node-2", "--why", "once more").code == 3
    here("fleet", "thaw", "--why", "the test is over")
    here("node", "release", "node-2", "--why", "the test is over")
