"""A node that no job holds is missed, gone, and heard from again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ecs_gpu_recovery.core.effects import Order, RebootNode
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from ecs_gpu_recovery.core.node.rules import forgotten_at
from ecs_gpu_recovery.core.node_record import Condemnation, Hold
from tests.core.machine import AVAILABLE, FAILED, UNKNOWN, Machine
from tests.core.story import POLICY, T0


def test_a_free_node_that_stays_away_is_unknown_and_not_given_to_a_job() -> None:
    node = Machine().seen(connected=False)
    assert node.after(POLICY.node_lost_after - timedelta(seconds=1)).status is AVAILABLE
    assert node.after(timedelta(seconds=1)).status is UNKNOWN
    assert not node.node.claimable


def test_a_terminated_node_is_unknown_at_once() -> None:
    assert Machine().seen(connected=False, gone=True, why="terminated").status is UNKNOWN


def test_a_machine_that_is_terminated_while_it_is_repaired_calls_nobody() -> None:
    node = Machine().asked("reboot").seen(connected=False, gone=True).after(POLICY.reboot_timeout)
    assert (node.status, node.outbox) == (FAILED, [])


@pytest.mark.parametrize(
    ("about", "forgotten"),
    [
        ({}, True),
        ({"status": FAILED}, True),
        ({"hold": Hold(by="ann", why="to be removed", at=T0)}, True),
        ({"gone": False}, False),
        ({"job_id": "j"}, False),
        ({"status": NodeStatus.REBOOTING}, False),
        ({"condemned": (Condemnation(at=T0, verdict=Verdict.REPLACE, repair="replace"),)}, False),
        ({"outbox": (Order(effect=RebootNode(key="k", node="n0"), due=T0),)}, False),
    ],
)
def test_a_machine_that_is_gone_is_forgotten_after_a_week(about: dict[str, Any], forgotten: bool) -> None:
    gone = {"status": UNKNOWN, "gone": True, "connected": False, "away_since": T0}
    node = Machine(**{**gone, **about}).node
    assert forgotten_at(node) == (T0 + timedelta(days=7) if forgotten else None)


def test_a_node_heard_from_again_is_available() -> None:
    assert Machine(status=UNKNOWN, connected=False).seen().status is AVAILABLE


def test_a_new_node_is_not_said_to_be_heard_from_again() -> None:
    node = Machine(replace(POLICY, admission_check=False), status=UNKNOWN, connected=False, fresh=True).seen()
    assert [line.why for line in node.node.timeline] == ["heard from for the first time"]
    node.seen(connected=False).after(POLICY.node_lost_after)
    assert node.seen().node.timeline[-1].why == "heard from again"


def test_a_node_that_comes_back_with_a_gpu_missing_stays_unknown() -> None:
    assert Machine(status=UNKNOWN, connected=False).seen(gpus=7).status is UNKNOWN


def test_a_new_node_learns_how_many_gpus_it_has() -> None:
    assert Machine(gpus=0, gpus_seen=None, status=UNKNOWN, connected=False).seen(gpus=4).node.gpus == 4


def test_while_a_job_holds_it_only_sightings_are_kept() -> None:
    held = (
        Machine(job_id="j", status=NodeStatus.IN_PROGRESS)
        .seen(connected=False)
        .after(10 * POLICY.node_lost_after)
    )
    assert (held.status, held.node.connected) == (NodeStatus.IN_PROGRESS, False)


def test_a_sighting_that_changes_nothing_costs_no_write() -> None:
    node = Machine()
    before = node.node
    assert node.seen(gpus=8, boot_id="boot-1", version=3).node is before


def test_an_older_sighting_does_not_undo_a_newer_one() -> None:
    node = Machine().seen(connected=False, version=5)
    before = node.node
    assert node.seen(version=4).node is before


def test_an_older_return_does_not_undo_an_absence_that_was_seen_twice() -> None:
    node = Machine().seen(connected=False, version=5).seen(connected=False, version=7)
    before = node.node
    assert node.seen(version=6).node is before
