"""A node that no job holds: drained, released, checked, rebooted, lost and found."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.events import NODE_EVENTS, CheckStarted, NodeAsked, NodeChecked, NodeSeen, RebootFailed, RebootProven, Tick
from ecs_gpu_recovery.core.model import Node, NodeStatus, Verdict
from ecs_gpu_recovery.core.nodes import NODE_TABLE, NodeStep, decide_node
from ecs_gpu_recovery.core.policy import Policy
from tests.decisions.story import T0, a_node

POLICY = Policy()
N = NodeStatus


def tell(node: Node, *facts: Any, policy: Policy = POLICY) -> NodeStep:
    step = NodeStep(node)
    for fact in facts:
        step = decide_node(step.node, fact, policy)
    return step


def asked(ask: str, why: str = "because") -> NodeAsked:
    return NodeAsked(at=T0, node="n0", ask=ask, by="ann", why=why)


def checked(verdict: Verdict, number: int = 1) -> NodeChecked:
    return NodeChecked(at=T0, node="n0", check_id="c", check_try=number, verdict=verdict, findings="Xid 48")


def orders(step: NodeStep) -> list[str]:
    return [type(order.effect).__name__ for order in step.orders]


def test_every_event_of_a_node_has_its_rule() -> None:
    assert set(NODE_TABLE) == set(NODE_EVENTS)


def test_a_drained_node_is_refused_to_jobs_until_a_person_releases_it() -> None:
    drained = tell(a_node(0), asked("drain", "fan is loud")).node
    assert drained.refusal == "drained by ann: fan is loud"
    assert tell(drained, asked("release")).node.claimable


def test_a_failed_node_is_available_again_when_an_operator_releases_it_with_a_reason() -> None:
    step = tell(a_node(0, status=N.FAILED, findings="Xid 48"), asked("release", "new card"))
    assert (step.node.status, step.node.findings) == (N.AVAILABLE, "")
    assert step.node.timeline[-1].evidence == "new card"


def test_a_node_in_use_can_be_drained_but_not_rebooted_or_checked() -> None:
    held = a_node(0, job_id="j9", status=N.IN_PROGRESS)
    assert tell(held, asked("drain")).node.hold is not None
    for ask in ("reboot", "check"):
        with pytest.raises(Refused, match="j9"):
            tell(held, asked(ask))


def test_an_unknown_wish_is_refused() -> None:
    with pytest.raises(Refused, match="drain, release, check, reboot"):
        tell(a_node(0), asked("polish"))


def test_a_check_that_finds_nothing_gives_the_node_back() -> None:
    step = tell(a_node(0), asked("check"))
    assert (step.node.status, orders(step)) == (N.PENDING_HEALTHCHECK, ["CheckNode"])
    step = tell(step.node, CheckStarted(at=T0, node="n0", check_id="c", check_try=1), checked(Verdict.HEALTHY))
    assert step.node.status is N.AVAILABLE


@pytest.mark.parametrize("verdict", [Verdict.REBOOT, Verdict.REPLACE])
def test_a_check_that_finds_a_fault_sets_the_node_aside_and_tells_someone(verdict: Verdict) -> None:
    step = tell(a_node(0), asked("check"), checked(verdict))
    assert (step.node.status, orders(step)) == (N.FAILED, ["Notify"])
    assert "Xid 48" in step.node.refusal


def test_a_check_that_cannot_run_twice_proves_nothing() -> None:
    step = tell(a_node(0), asked("check"), checked(Verdict.INCONCLUSIVE, 1), checked(Verdict.INCONCLUSIVE, 2))
    assert step.node.status is N.AVAILABLE


def test_a_check_that_never_answers_is_stopped_and_tried_once_more() -> None:
    step = tell(a_node(0), asked("check"), Tick(at=T0 + timedelta(minutes=31)))
    assert sorted(orders(step)) == ["CheckNode", "StopTask"]


def test_a_reboot_needs_its_proof_and_the_agent() -> None:
    step = tell(a_node(0), asked("reboot"))
    assert (step.node.status, orders(step)) == (N.REBOOTING, ["RebootNode"])
    key = step.node.reboot_key
    assert tell(step.node, NodeSeen(at=T0, node="n0", connected=True, gpus=8)).node.status is N.REBOOTING
    assert tell(step.node, RebootProven(at=T0, node="n0", key="another")).node.status is N.REBOOTING
    assert tell(step.node, RebootProven(at=T0, node="n0", key=key)).node.status is N.AVAILABLE


def test_a_reboot_that_fails_or_never_returns_sets_the_node_aside() -> None:
    step = tell(a_node(0), asked("reboot"))
    failed = tell(step.node, RebootFailed(at=T0, node="n0", key=step.node.reboot_key, reason="undeliverable"))
    late = tell(step.node, Tick(at=T0 + timedelta(minutes=31)))
    assert [failed.node.status, late.node.status] == [N.FAILED, N.FAILED]
    assert orders(failed) == orders(late) == ["Notify"]


def test_with_a_check_after_the_reboot_the_node_is_examined_first() -> None:
    policy = replace(POLICY, post_reboot_check=True)
    step = tell(a_node(0), asked("reboot"), policy=policy)
    step = tell(step.node, RebootProven(at=T0, node="n0", key=step.node.reboot_key), policy=policy)
    assert (step.node.status, orders(step)) == (N.PENDING_HEALTHCHECK, ["CheckNode"])


def test_a_silent_node_becomes_unknown_after_a_while_and_available_when_it_is_heard_from() -> None:
    away = tell(a_node(0), NodeSeen(at=T0, node="n0", connected=False)).node
    assert away.status is N.AVAILABLE
    lost = tell(away, Tick(at=T0 + timedelta(minutes=10))).node
    assert lost.status is N.UNKNOWN
    assert tell(lost, NodeSeen(at=T0, node="n0", connected=True)).node.status is N.AVAILABLE


def test_a_sighting_without_news_changes_nothing() -> None:
    node = tell(a_node(0), NodeSeen(at=T0, node="n0", connected=True, gpus=8, version=3)).node
    assert not tell(node, NodeSeen(at=T0, node="n0", connected=True, gpus=8, version=4)).changed
