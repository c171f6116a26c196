"""A fault is seen on a node that no job holds: it is examined, repaired, let back in, and nobody has to ask."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.core.effects import CheckNode, Notify, RebootNode
from ecs_gpu_recovery.core.events import FaultSeen
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from tests.core.machine import AVAILABLE, FAILED, REBOOTING, UNDER_TEST, UNKNOWN, Machine
from tests.core.story import POLICY, T0, like

GATED = replace(POLICY, post_reboot_check=True)
MINUTE = timedelta(minutes=1)


def grave(minute: float = 0, boot_id: str = "") -> FaultSeen:
    return FaultSeen(at=T0 + minute * MINUTE, node="n0", evidence="Xid 79", grave=True, boot_id=boot_id)


def test_a_grave_fault_on_a_free_node_has_it_examined_repaired_gated_and_free_again() -> None:
    node = Machine(GATED).hears(grave())
    assert (node.status, node.orders) == (UNDER_TEST, [like(CheckNode, node="n0")])
    assert node.check_says(Verdict.REBOOT, "Xid 79 on GPU 1").status is REBOOTING
    assert node.orders == [like(RebootNode, node="n0", key="node/n0/reboot/1")]
    assert node.reboots().status is UNDER_TEST, "the gate"
    assert (node.check_says(Verdict.HEALTHY).status, node.orders) == (AVAILABLE, [])
    assert node.node.claimable
    assert [(each.findings, each.outcome) for each in node.node.condemned] == [("Xid 79 on GPU 1", "cured")]


def test_while_it_is_examined_no_job_gets_it() -> None:
    assert not Machine().hears(grave()).node.claimable


def test_a_healthy_node_is_free_again() -> None:
    node = Machine().hears(grave()).check_says(Verdict.HEALTHY)
    assert (node.status, node.orders, node.node.suspected) == (AVAILABLE, [], "")


def test_one_that_needs_new_hardware_is_told_to_people() -> None:
    node = Machine().hears(grave()).check_says(Verdict.REPLACE)
    assert (node.status, node.orders) == (FAILED, [like(Notify, node="n0")])


@pytest.mark.parametrize("verdict", [Verdict.REBOOT, Verdict.REPLACE])
def test_a_gate_that_fails_is_never_followed_by_another_reboot(verdict: Verdict) -> None:
    node = Machine(GATED).hears(grave()).check_says(Verdict.REBOOT).reboots().check_says(verdict)
    assert (node.status, node.orders) == (FAILED, [like(Notify, node="n0")])


def test_told_twice_it_is_examined_once() -> None:
    node = Machine().hears(grave()).check_says(Verdict.HEALTHY)
    before = node.node
    assert node.hears(grave()).node is before


@pytest.mark.parametrize("status", [FAILED, UNKNOWN])
def test_a_node_that_is_out_of_use_is_left_alone(status: NodeStatus) -> None:
    node = Machine(status=status, connected=False).hears(grave())
    assert (node.status, node.orders) == (status, [])


def test_a_node_in_a_person_s_hands_is_examined_when_it_is_released() -> None:
    node = Machine().asked("drain").hears(grave())
    assert (node.status, node.orders) == (AVAILABLE, [])
    assert node.asked("release").status is UNDER_TEST


def test_one_that_is_away_is_given_to_no_job_and_examined_when_it_is_back() -> None:
    node = Machine().seen(connected=False).hears(grave())
    assert (node.status, node.node.refusal) == (AVAILABLE, "is to be examined: Xid 79")
    assert node.seen().status is UNDER_TEST


def test_a_fault_during_a_check_leads_to_another() -> None:
    node = Machine().asked("check").hears(grave()).check_says(Verdict.HEALTHY)
    assert (node.status, node.orders) == (UNDER_TEST, [like(CheckNode, check_try=2)])
    assert node.check_says(Verdict.HEALTHY).status is AVAILABLE


def test_a_job_that_holds_the_node_looks_after_it_itself() -> None:
    held = Machine(job_id="j", status=NodeStatus.IN_PROGRESS).hears(grave())
    assert (held.status, held.orders, held.node.suspected) == (NodeStatus.IN_PROGRESS, [], "")


def rebooted(boot_id: str = "") -> Machine:
    """Ten minutes past the hour, by the clock of the control plane."""
    node = Machine(GATED, boot_id=boot_id).hears(grave()).check_says(Verdict.REBOOT)
    node.now += 10 * MINUTE
    return node.reboots().check_says(Verdict.HEALTHY)


def test_a_fault_from_before_the_last_boot_starts_nothing() -> None:
    node = rebooted().hears(grave(minute=9))
    assert (node.status, node.orders, node.node.suspected) == (AVAILABLE, [], "")
    assert node.node.timeline[-1].why == "fault reported", "it is written down"


def test_one_from_after_it_does() -> None:
    assert rebooted().hears(grave(minute=11)).status is UNDER_TEST


def test_a_fault_of_the_boot_that_is_known_counts_whatever_the_node_s_clock_says() -> None:
    node = rebooted().seen(boot_id="boot-2")
    assert node.hears(grave(minute=-600, boot_id="boot-1")).status is AVAILABLE
    assert node.hears(grave(minute=-500, boot_id="boot-2")).status is UNDER_TEST


def test_a_boot_that_nobody_ordered_settles_older_faults_too() -> None:
    node = Machine(boot_id="boot-1")
    node.now += 10 * MINUTE
    node.seen(boot_id="boot-2").hears(grave(minute=5, boot_id="boot-1"))
    assert (node.status, node.orders) == (AVAILABLE, [])


def test_the_errand_is_dated_by_our_clock_and_not_by_the_node_s() -> None:
    node = Machine().hears(replace(grave(), at=T0 + timedelta(days=365)))
    assert (node.status, node.node.timeline[-1].at, node.node.updated_at) == (UNDER_TEST, T0, T0)


def test_the_third_fault_within_a_week_needs_a_person() -> None:
    node = Machine(GATED)
    for number in range(2):
        node.hears(replace(grave(), at=T0 + timedelta(days=number), evidence=f"Xid 79, {number}"))
        node.now = T0 + timedelta(days=number)
        node.check_says(Verdict.REBOOT).reboots().check_says(Verdict.HEALTHY)
        assert node.status is AVAILABLE
    node.now = T0 + timedelta(days=2)
    node.hears(replace(grave(), at=node.now)).check_says(Verdict.REBOOT)
    assert (node.status, node.orders) == (FAILED, [like(Notify, node="n0")])
