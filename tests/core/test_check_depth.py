"""How deep a node is examined: before a job, after a failure, at the gate; and how long that may take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.core.effects import CheckNode
from ecs_gpu_recovery.core.events import FaultSeen, NodeAsked
from ecs_gpu_recovery.core.model import JobSpec, Verdict
from ecs_gpu_recovery.core.policy import Policy
from tests.core.machine import Machine
from tests.core.story import T0, Story

LEVELS = replace(
    Policy(), check_level_before="1", check_level_after="2", check_level_gate="3", post_reboot_check=True
)


def depth(orders: Iterable[object]) -> set[str]:
    return {order.level for order in orders if isinstance(order, CheckNode)}


@pytest.mark.parametrize(
    ("asked", "before", "after", "gate"),
    [("", "1", "2", "3"), ("quick", "quick", "quick", "3"), ("4", "4", "4", "4")],
)
def test_a_job_s_nodes_are_examined_as_deep_as_the_moment_or_the_job_asks(
    asked: str, before: str, after: str, gate: str
) -> None:
    job = Story(nodes=2, check=True, policy=LEVELS, spec=JobSpec(check_level=asked))
    assert depth(job.orders) == {before}
    job.check_says(Verdict.HEALTHY, 0, 1).starts(0, 1).fails(0).stops(1)
    assert depth(job.outbox) == {after}
    job.check_says(Verdict.REBOOT, 0).check_says(Verdict.HEALTHY, 1).reboots(0)
    assert depth(order.effect for order in job.node(0).outbox) == {gate}


def test_a_free_node_with_a_fault_is_examined_as_after_a_failure_and_its_gate_is_deeper() -> None:
    machine = Machine(LEVELS).hears(FaultSeen(at=T0, node="n0", evidence="Xid 79", grave=True))
    assert depth(machine.orders) == {"2"}
    machine.check_says(Verdict.REBOOT, "Xid 79").reboots()
    assert depth(machine.outbox) == {"3"}


def test_a_check_that_is_tried_again_is_as_deep_as_the_first() -> None:
    machine = Machine(LEVELS).hears(NodeAsked(at=T0, node="n0", ask="check", by="ann", why="", level="4"))
    machine.check_says(Verdict.INCONCLUSIVE)
    assert (depth(machine.orders), machine.node.check_try) == ({"4"}, 2)


@pytest.mark.parametrize(("level", "minutes"), [("quick", 30), ("1", 30), ("2", 30), ("3", 65), ("4", 245)])
def test_a_check_has_the_time_that_its_tests_take(level: str, minutes: int) -> None:
    machine = Machine(LEVELS).hears(NodeAsked(at=T0, node="n0", ask="check", by="ann", why="", level=level))
    assert machine.node.deadline == T0 + timedelta(minutes=minutes)
    assert machine.after(timedelta(0)).node.deadline == T0 + timedelta(minutes=minutes)


def test_simulated_nodes_have_no_dcgm_to_ask() -> None:
    embedded = Policy.embedded()
    assert {embedded.check_level_before, embedded.check_level_after, embedded.check_level_gate} == {"quick"}
