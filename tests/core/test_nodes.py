"""A node that no job holds: drained, released, checked, rebooted, lost and found."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.core.draft import STRANGER
from ecs_gpu_recovery.core.effects import Archive, CheckNode, Effect, Notify, RebootNode, StopTask
from ecs_gpu_recovery.core.errors import Bug, Refused
from ecs_gpu_recovery.core.events import (
    CheckRefused,
    CheckStarted,
    FaultSeen,
    NodeChecked,
    OrderFailed,
    OrdersClaimed,
    OrderSent,
    RebootFailed,
    RebootProven,
    TaskEnded,
)
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from tests.core.machine import AVAILABLE, FAILED, REBOOTING, UNDER_TEST, UNKNOWN, Machine
from tests.core.story import POLICY, T0, like

# -- drain and release ---------------------------------------------------------------------------------------------


def test_a_drained_node_is_given_to_no_job_and_says_who_drained_it_and_why() -> None:
    node = Machine().asked("drain", "fan noise").node
    assert not node.claimable
    assert node.refusal == "drained by ann: fan noise"


def test_a_released_node_is_examined_and_can_be_claimed_again() -> None:
    node = Machine(passed_at=T0).asked("drain").asked("release")
    assert (node.status, node.node.claimable) == (UNDER_TEST, False)
    assert node.check_says(Verdict.HEALTHY).node.claimable


def test_where_new_nodes_are_not_examined_a_released_one_can_be_claimed_at_once() -> None:
    policy = replace(POLICY, admission_check=False)
    assert Machine(policy).asked("drain").asked("release").node.claimable


def test_one_that_is_released_while_it_is_away_is_examined_when_it_is_back() -> None:
    node = Machine(connected=False, away_since=T0).asked("drain").asked("release")
    assert node.status is AVAILABLE
    assert node.seen().status is UNDER_TEST


def test_a_node_can_be_drained_while_a_job_runs_on_it_and_the_job_is_left_alone() -> None:
    held = Machine(job_id="j", status=NodeStatus.IN_PROGRESS).asked("drain")
    assert (held.status, held.orders) == (NodeStatus.IN_PROGRESS, [])
    assert held.asked("release").node.hold is None


def test_there_is_nothing_to_release_on_a_node_in_use() -> None:
    with pytest.raises(Refused, match="in use by job j"):
        Machine(job_id="j", status=NodeStatus.IN_PROGRESS).asked("release")


@pytest.mark.parametrize("status", [FAILED, UNKNOWN])
def test_an_operator_releases_a_node_with_a_reason(status: NodeStatus) -> None:
    node = Machine(status=status, verdict=Verdict.REPLACE, findings="bad", connected=False).asked(
        "release", "GPU replaced"
    )
    assert (node.status, node.node.verdict, node.node.findings) == (AVAILABLE, None, "")
    assert node.node.timeline[-1].evidence == "GPU replaced"


def test_an_unknown_wish_is_refused() -> None:
    with pytest.raises(Refused, match="drain, move, release, check, reboot"):
        Machine().asked("paint")


# -- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [AVAILABLE, FAILED])
def test_a_person_can_have_a_free_node_checked(status: NodeStatus) -> None:
    node = Machine(status=status).asked("check")
    assert (node.status, node.orders) == (UNDER_TEST, [like(CheckNode, node="n0", rank=-1, check_try=1)])
    assert node.node.deadline == T0 + POLICY.check_timeout


def test_a_failed_node_whose_check_gives_no_answer_stays_failed() -> None:
    node = Machine(status=FAILED).asked("check")
    for _ in range(POLICY.check_tries):
        node.check_says(Verdict.INCONCLUSIVE)
    assert (node.status, node.node.claimable) == (FAILED, False)


def test_a_lost_node_can_be_asked_for_a_check() -> None:
    assert Machine(status=UNKNOWN, connected=False).asked("check").status is UNDER_TEST


@pytest.mark.parametrize("ask", ["check", "reboot"])
def test_a_node_in_use_is_neither_checked_nor_rebooted(ask: str) -> None:
    with pytest.raises(Refused, match="stop the job before"):
        Machine(job_id="j", status=NodeStatus.IN_PROGRESS).asked(ask)


@pytest.mark.parametrize("ask", ["check", "reboot"])
@pytest.mark.parametrize("busy", ["check", "reboot"])
def test_one_errand_at_a_time(ask: str, busy: str) -> None:
    with pytest.raises(Refused, match="wait until it has finished"):
        Machine().asked(busy).asked(ask)


def test_a_healthy_node_is_available_again() -> None:
    node = Machine().asked("check").check_says(Verdict.HEALTHY)
    assert (node.status, node.orders, node.node.deadline) == (AVAILABLE, [], None)


def test_a_fault_that_a_reboot_may_cure_is_repaired() -> None:
    node = Machine().asked("check").check_says(Verdict.REBOOT, "Xid 79")
    assert (node.status, node.orders) == (REBOOTING, [like(RebootNode, node="n0")])
    assert node.node.condemned[-1].findings == "Xid 79"
    assert node.reboots().status is AVAILABLE


def test_one_that_it_will_not_cure_is_told_to_people() -> None:
    node = Machine().asked("check").check_says(Verdict.REPLACE, "Xid 79")
    assert (node.status, node.orders) == (FAILED, [like(Notify, node="n0")])
    assert node.node.refusal == "is FAILED (Xid 79)"


def test_an_inconclusive_check_is_tried_once_more_and_then_proves_nothing() -> None:
    node = Machine().asked("check").check_says(Verdict.INCONCLUSIVE)
    assert (node.status, node.orders) == (UNDER_TEST, [like(CheckNode, check_try=2)])
    assert node.check_says(Verdict.INCONCLUSIVE).status is AVAILABLE


def test_a_check_that_never_answers_is_stopped_and_tried_once_more() -> None:
    node = (
        Machine()
        .asked("check")
        .hears(CheckStarted(at=T0, node="n0", check_id="c1", check_try=1))
        .after(POLICY.check_timeout)
    )
    assert node.orders == [like(StopTask, task_id="c1"), like(CheckNode, check_try=2)]
    assert node.after(POLICY.check_timeout).status is AVAILABLE


def test_a_refused_check_waits_if_that_passes_and_counts_as_no_answer_if_not() -> None:
    node = Machine().asked("check").hears(CheckRefused(at=T0, node="n0", check_try=1, reason="AGENT"))
    assert (node.status, node.orders, node.node.outbox[0].tries) == (UNDER_TEST, [], 1)
    node.hears(CheckRefused(at=T0, node="n0", check_try=1, reason="MISSING"))
    assert node.orders == [like(CheckNode, check_try=2)]


def test_the_verdict_of_an_earlier_check_is_ignored() -> None:
    node = Machine().asked("check").check_says(Verdict.HEALTHY).asked("check")
    before = node.node
    stale = NodeChecked(at=T0, node="n0", check_id="", check_try=1, verdict=Verdict.REPLACE)
    assert node.hears(stale).node is before


def test_the_verdict_of_a_check_that_a_job_ordered_is_none_of_the_nodes_business() -> None:
    held = Machine(job_id="j", status=UNDER_TEST, check_try=1)
    before = held.node
    verdict = NodeChecked(at=T0, node="n0", check_id="c", check_try=1, verdict=Verdict.REPLACE)
    assert held.hears(verdict).node is before
    free = Machine().asked("check").hears(CheckStarted(at=T0, node="n0", check_id="mine", check_try=1))
    free.hears(verdict)
    assert (free.status, free.node.verdict, free.node.check_id) == (UNDER_TEST, None, "mine")
    assert (free.node.timeline[-1].why, free.node.timeline[-1].evidence) == (STRANGER, "task c")


# -- reboots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [AVAILABLE, FAILED, UNKNOWN])
def test_a_person_can_have_a_free_node_rebooted(status: NodeStatus) -> None:
    node = Machine(status=status, connected=status is not UNKNOWN).asked("reboot")
    assert (node.status, node.orders) == (REBOOTING, [like(RebootNode, node="n0", key="node/n0/reboot/1")])
    node.reboots().seen()
    assert (node.status, node.node.deadline) == (AVAILABLE, None)


def test_every_reboot_has_its_own_key() -> None:
    node = Machine().asked("reboot").reboots().asked("reboot")
    assert node.orders == [like(RebootNode, key="node/n0/reboot/2")]


def test_a_rebooted_node_is_used_only_when_connected_with_all_its_gpus() -> None:
    node = Machine().asked("reboot").seen(connected=False).reboots()
    assert node.status is REBOOTING
    assert node.seen(gpus=7).status is REBOOTING
    assert node.seen(gpus=8).status is AVAILABLE


def test_a_disconnect_and_a_connect_prove_no_reboot() -> None:
    assert Machine().asked("reboot").seen(connected=False).seen().status is REBOOTING


def test_a_reboot_that_does_not_return_fails_the_node_and_tells_somebody() -> None:
    node = Machine().asked("reboot").after(POLICY.reboot_timeout)
    assert (node.status, node.orders) == (FAILED, [like(Notify, node="n0")])


def test_a_reboot_that_could_not_be_ordered_in_all_its_tries_is_never_ordered() -> None:
    node = Machine().asked("reboot")
    for _ in range(POLICY.alarm_tries):
        node.hears(OrderFailed(at=T0, key="node/n0/reboot/1", error="no answer"))
    node.sweeps_after(POLICY.reboot_timeout)
    assert like(RebootNode) not in node.outbox, "the node may be in use again when it would arrive"


def test_a_refused_reboot_fails_the_node() -> None:
    node = Machine().asked("reboot")
    node.hears(RebootFailed(at=T0, node="n0", key=node.node.reboot_key, reason="not managed"))
    assert (node.status, node.node.findings) == (FAILED, "not managed")


def test_a_proof_for_another_order_is_no_proof() -> None:
    node = Machine().asked("reboot")
    before = node.node
    assert node.hears(RebootProven(at=T0, node="n0", key="node/n0/reboot/9")).node is before


def test_with_a_check_after_the_reboot_the_node_is_examined_once_more() -> None:
    node = Machine(replace(POLICY, post_reboot_check=True)).asked("reboot").reboots()
    assert (node.status, node.orders) == (UNDER_TEST, [like(CheckNode)])
    assert node.check_says(Verdict.HEALTHY).status is AVAILABLE


# -- orders --------------------------------------------------------------------------------------------------------


def test_a_sent_order_leaves_the_outbox_but_a_check_stays_until_it_is_known() -> None:
    node = Machine().asked("reboot")
    assert node.hears(OrderSent(at=T0, key="node/n0/reboot/1")).outbox == []
    node = Machine().asked("check")
    assert node.hears(OrderSent(at=T0, key="node/n0/check/1")).outbox == [like(CheckNode)]
    assert node.hears(CheckStarted(at=T0, node="n0", check_id="c", check_try=1)).outbox == []


def test_an_order_that_keeps_failing_is_told_to_a_person_once() -> None:
    node = Machine().asked("reboot")
    told: list[Effect] = []
    for _ in range(3 * POLICY.alarm_tries):
        told += node.hears(OrderFailed(at=T0, key="node/n0/reboot/1", error="no answer")).orders
    assert told == [like(Notify, key="node/n0/reboot/1/stuck")]


def test_a_claimed_order_of_a_node_has_a_lease_too() -> None:
    node = Machine().asked("check")
    (order,) = node.node.outbox
    seen = order.due + timedelta(hours=1)
    node.hears(OrdersClaimed(at=seen, keys=(order.key, "no such order")))
    assert [(o.due, o.tries) for o in node.node.outbox] == [(seen + POLICY.lease, 1)]


def test_a_message_that_cannot_be_sent_orders_no_message_about_itself() -> None:
    node = Machine().asked("reboot").after(POLICY.reboot_timeout)
    (message,) = [o for o in node.node.outbox if isinstance(o.effect, Notify)]
    for _ in range(2 * POLICY.alarm_tries):
        node.hears(OrderFailed(at=T0, key=message.key, error="no answer"))
    assert node.outbox == [like(Notify, key=message.key)]


def test_reported_faults_are_evidence_and_nothing_else() -> None:
    node = Machine().hears(FaultSeen(at=T0, node="n0", evidence="Xid 79"))
    assert (node.status, node.orders) == (AVAILABLE, [])
    before = node.node
    assert node.hears(FaultSeen(at=T0, node="n0", evidence="Xid 79")).node is before, (
        "told twice is told once"
    )


def test_a_node_whose_clock_is_ahead_does_not_take_its_record_s_clock_along() -> None:
    ahead = T0 + timedelta(days=365)
    node = Machine().hears(FaultSeen(at=ahead, node="n0", evidence="Xid 79")).node
    assert (node.timeline[-1].at, node.updated_at) == (ahead, T0)


def test_what_leaves_a_long_timeline_goes_to_the_archive() -> None:
    """A card that logs a fault a minute must not push a node's repairs out of memory for good."""
    node = Machine(replace(POLICY, admission_check=False)).asked("drain").asked("release")
    gone: list[str] = []
    for minute in range(60):
        fault = FaultSeen(at=T0 + timedelta(minutes=minute), node="n0", evidence=f"Xid 63, line {minute}")
        for order in node.hears(fault).orders:
            assert isinstance(order, Archive)
            gone += order.lines
            node.hears(OrderSent(at=T0, key=order.key))
    kept = [
        f"{e.at.isoformat()} {e.subject} {e.before}->{e.after} {e.why} {e.evidence}"
        for e in node.node.timeline
    ]
    assert len(kept) <= 50
    assert len(gone) + len(kept) == 62
    assert "drained by" in gone[0]
    assert not node.node.outbox


def test_an_event_of_a_job_is_not_for_a_node() -> None:
    with pytest.raises(Bug, match="not an event of a node"):
        Machine().hears(TaskEnded(at=T0, task_id="t", attempt=0, rank=0, exit_code=1))


def test_the_next_moment_to_look_is_the_earliest_deadline_or_due_order() -> None:
    assert Machine().node.wake_at(POLICY.node_lost_after) is None
    assert Machine().seen(connected=False).node.wake_at(POLICY.node_lost_after) == T0 + POLICY.node_lost_after
    checked = Machine().asked("check").hears(CheckStarted(at=T0, node="n0", check_id="c", check_try=1))
    assert checked.node.wake_at(POLICY.node_lost_after) == T0 + POLICY.check_timeout
