"""The rung above a reboot: an instance that none cures, or that is not back from one, is replaced by another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.effects import Notify, RebootNode, ReplaceNode
from ecs_gpu_recovery.core.events import (
    CheckStarted,
    Fact,
    NodeAsked,
    NodeChecked,
    NodeReplaced,
    NodeSeen,
    OrderFailed,
    OrderSent,
    PermitWithheld,
    RebootFailed,
    RebootProven,
    Tick,
)
from ecs_gpu_recovery.core.guard import Answer, for_reboot
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.core.node.replacement import successors
from ecs_gpu_recovery.core.node_record import Condemnation, Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.core.rows import left_node
from tests.core.story import (
    GATED,
    MINUTE,
    RUNGS,
    T0,
    Story,
    a_job_under_test,
    a_running_job,
    heard,
    like,
    some_nodes,
)

GONE = NodeSeen(at=T0, node="n0", connected=False, gone=True)


def a_bad_node(verdict: Verdict = Verdict.REPLACE, policy: Policy = RUNGS) -> Node:
    """Free, and its check has just answered."""
    (node,) = some_nodes(1)
    ask = NodeAsked(at=T0, node="n0", ask="check", by="ann", why="x")
    about_it = {"kind": "EC2 p5", "instance": "arn/1", "host": "i-1", "registered_at": T0}
    node = heard(replace(node, status=NodeStatus.AVAILABLE, **about_it), ask, policy=policy)
    about = {"node": "n0", "check_id": "c", "check_try": node.check_try}
    return heard(
        node, CheckStarted(at=T0, **about), NodeChecked(at=T0, **about, verdict=verdict), policy=policy
    )


def being_replaced() -> Node:
    node = a_bad_node()
    return heard(node, OrderSent(at=T0, key=node.reboot_key))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("no GPU fault found", ""),
        ("no GPU fault found; noted: Xid 13", "noted: Xid 13"),
        ("no GPU here", "no GPU here"),
    ],
)
def test_a_sound_node_is_told_of_once(found: str, told: str) -> None:
    (node,) = some_nodes(1)
    ask = NodeAsked(at=T0, node="n0", ask="check", by="ann", why="x")
    node = heard(replace(node, status=NodeStatus.AVAILABLE), ask)
    answer = NodeChecked(
        at=T0,
        node="n0",
        check_id="c",
        check_try=node.check_try,
        verdict=Verdict.HEALTHY,
        findings=found,
    )
    last = heard(node, answer).timeline[-1]
    assert (last.why, last.evidence) == ("the check found no GPU fault", told)


@pytest.mark.parametrize(
    ("verdict", "policy", "order"),
    [
        (Verdict.REBOOT, RUNGS, RebootNode),
        (Verdict.REPLACE, RUNGS, ReplaceNode),
        (Verdict.REPLACE, GATED, Notify),
    ],
)
def test_each_verdict_begins_on_its_rung_where_there_is_one(
    verdict: Verdict, policy: Policy, order: type[object]
) -> None:
    node = a_bad_node(verdict, policy)
    assert order in [type(each.effect) for each in node.outbox]
    assert node.status is (NodeStatus.FAILED if order is Notify else NodeStatus.REBOOTING)


def test_a_machine_that_is_only_away_is_not_gone() -> None:
    assert heard(being_replaced(), replace(GONE, gone=False)).status is NodeStatus.REBOOTING


def test_the_old_record_waits_for_the_new_machine_and_learns_its_name() -> None:
    node = heard(being_replaced(), GONE)
    assert (node.status, node.deadline) == (NodeStatus.UNKNOWN, T0 + RUNGS.replace_timeout)
    new = replace(some_nodes(1, kind="EC2 p5")[0], name="i-2", created_at=T0 + MINUTE)
    other = replace(new, name="i-1", kind="EC2 p4d")
    older = replace(new, name="i-0", created_at=T0 - MINUTE)
    assert successors([node, older, other, new]) == [(node, new)]
    assert successors([node, older, other]) == [(node, other)], "the next best: it may be in another zone"
    assert successors([node, replace(other, gpus=1)]) == []
    twin = replace(node, name="m0", kind="EC2 p4d")
    assert successors([twin, node, other]) == [(twin, other)], "each its own first"
    assert successors([twin, node, other, new]) == [(twin, other), (node, new)]
    after = heard(node, NodeReplaced(at=T0, node="n0", by="i-2"))
    assert (after.condemned[-1].outcome, after.deadline) == ("replaced by i-2", None)
    assert successors([after, new]) == [], "and is not told again"
    assert heard(after, NodeReplaced(at=T0, node="n0", by="i-2")) == after


def test_a_machine_that_comes_under_the_same_name_is_examined() -> None:
    node = heard(being_replaced(), GONE)
    seen = {"connected": True, "gpus": 8, "instance": "arn/2", "host": "i-2", "called": "n0"}
    node = heard(node, NodeSeen(at=T0, node="n0", registered=T0 + MINUTE, **seen))
    assert (node.status, node.host, node.verdict) == (NodeStatus.PENDING_HEALTHCHECK, "i-2", None)
    told = [order.effect.subject for order in node.outbox if isinstance(order.effect, Notify)]
    assert told == ["Node n0 was replaced by another machine of the same name"]


def test_whose_job_is_over_or_has_moved_on_tells_people_itself_that_it_was_replaced() -> None:
    job = a_running_job(nodes=1).job
    node = replace(heard(being_replaced(), GONE), job_id=job.id, handed="j/1/0/reboot")
    node = heard(node, NodeReplaced(at=T0, node="n0", by="i-2"))
    assert (node.status, node.findings) == (NodeStatus.FAILED, "replaced by i-2")
    left = left_node(node, job, "rank 0 of job j moved to n1")
    told = [order.effect.subject for order in left.outbox if isinstance(order.effect, Notify)]
    assert told == ["Node n0 was replaced by i-2"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_later_machine_of_the_same_name_that_is_given_up_was_replaced_by_nobody(gone: bool) -> None:
    job = a_running_job(nodes=1).job
    past = Condemnation(at=T0, verdict=Verdict.REPLACE, repair="replace", outcome="replaced by i-2")
    (node,) = some_nodes(1, condemned=(past,), gone=gone, findings="did not come back in time")
    node = replace(node, status=NodeStatus.FAILED, job_id=job.id, handed="j/1/0/wait")
    left = left_node(node, job, "rank 0 of job j moved to n1")
    told = [order.effect.subject for order in left.outbox if isinstance(order.effect, Notify)]
    assert told == ["Node n0 failed: did not come back in time"]
    assert gone or not node.replaced_by


@pytest.mark.parametrize("job", ["", "j"])
def test_the_fault_of_a_machine_goes_with_it(job: str) -> None:
    """What the next one under its name has is a new fault: a reboot is tried first, and needs a permit of its own."""
    node = replace(heard(being_replaced(), GONE), job_id=job, handed="j/1/0/reboot" if job else "")
    seen = {"connected": True, "gpus": 8, "instance": "arn/2", "host": "i-2", "called": "n0"}
    node = heard(node, NodeSeen(at=T0, node="n0", registered=T0 + MINUTE, **seen))
    about = {"node": "n0", "check_id": "d", "check_try": node.check_try, "verdict": Verdict.REBOOT}
    after = heard(node, NodeChecked(at=T0, **about))
    assert [(fault.repair, fault.outcome) for fault in after.condemned] == [
        ("replace", "another machine has its name"),
        ("reboot", ""),
    ]
    assert after.reboot_key != node.reboot_key


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ((), "its machine was not taken away in time"),
        ((GONE,), "its machine was taken away, and no other has come in its place"),
    ],
)
def test_every_wait_of_a_replacement_has_an_end_and_a_message(facts: tuple[Fact, ...], why: str) -> None:
    later = T0 + 2 * RUNGS.replace_timeout
    node = heard(heard(being_replaced(), *facts), Tick(at=later), now=later)
    assert (node.status, node.findings) == (NodeStatus.FAILED, why)
    assert like(Notify, node="n0") in [order.effect for order in node.outbox]


# -- a machine that does not come back from its reboot -------------------------------------------------------------

LATER = T0 + RUNGS.reboot_timeout
AWAY = NodeSeen(at=T0, node="n0", connected=False)


def rebooting(policy: Policy = RUNGS) -> Node:
    node = a_bad_node(Verdict.REBOOT, policy)
    return heard(node, OrderSent(at=T0, key=node.reboot_key), policy=policy)


def overdue(*facts: Fact, policy: Policy = RUNGS, **about: object) -> Node:
    node = replace(heard(rebooting(policy), *facts, policy=policy), **about)
    return heard(node, Tick(at=LATER), policy=policy, now=LATER)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ((AWAY,), "did not come back in time"),
        ((), "did not come back in time"),
        ((NodeSeen(at=T0, node="n0", connected=True, gpus=7),), "came back with 7 of 8 GPUs"),
    ],
    ids=["silent", "never seen to boot", "without a GPU"],
)
def test_a_machine_that_does_not_come_back_goes_one_rung_up(facts: tuple[Fact, ...], why: str) -> None:
    node = overdue(*facts)
    assert [order.effect for order in node.outbox] == [like(ReplaceNode, node="n0")], "and nobody is called"
    assert (node.status, node.deadline) == (NodeStatus.REBOOTING, LATER + RUNGS.replace_timeout)
    assert node.timeline[-1].why == f"{why}; its machine is replaced"
    assert [(fault.repair, fault.outcome) for fault in node.condemned] == [("replace", "")], "counted once"


@pytest.mark.parametrize(
    ("policy", "about"),
    [
        (GATED, {}),
        (RUNGS, {"kind": "EXTERNAL H100 here"}),
        (RUNGS, {"kind": "", "host": "mi-0123"}),
        (RUNGS, {"gone": True, "connected": False}),
        (RUNGS, {"condemned": ()}),
    ],
    ids=["no such rung", "ECS Anywhere", "of no kind yet", "gone already", "a person asked for the reboot"],
)
def test_where_no_other_machine_is_to_come_it_is_left_to_a_person(
    policy: Policy, about: dict[str, object]
) -> None:
    node = overdue(AWAY, policy=policy, **about)
    assert (node.status, node.findings) == (NodeStatus.FAILED, "did not come back in time")


def test_a_machine_whose_reboot_was_never_sent_is_not_replaced_for_it() -> None:
    """Nobody knows whether the reboot would have cured it."""
    node = a_bad_node(Verdict.REBOOT)
    for _ in range(RUNGS.alarm_tries):
        node = heard(node, OrderFailed(at=T0, key=node.reboot_key, error="no answer"))
    assert heard(node, Tick(at=LATER), now=LATER).status is NodeStatus.FAILED


def test_after_the_last_rung_a_person_is_told_and_also_that_it_did_not_come_back() -> None:
    node = overdue(AWAY)
    refused = RebootFailed(at=LATER, node="n0", key=node.reboot_key, reason="it is in no group")
    node = heard(node, refused, now=LATER)
    assert (node.status, node.findings) == (
        NodeStatus.FAILED,
        "did not come back in time; it is in no group",
    )
    assert like(Notify, node="n0") in [order.effect for order in node.outbox]


def held_back() -> Node:
    node = overdue(AWAY)
    held = PermitWithheld(at=LATER, key=node.reboot_key, answer=Answer.HELD, why="frozen")
    return heard(node, held, now=LATER)


def test_a_machine_that_goes_while_its_replacement_waits_needs_no_permit() -> None:
    node = heard(held_back(), replace(GONE, at=LATER), now=LATER)
    assert (node.status, node.outbox) == (NodeStatus.UNKNOWN, ())
    later = LATER + RUNGS.replace_timeout
    assert node.deadline == later
    assert heard(node, Tick(at=later), now=later).status is NodeStatus.FAILED, "nobody waits for ever"
    new = replace(some_nodes(1, kind="EC2 p5")[0], name="i-2", created_at=LATER)
    assert successors([node, new]) == [(node, new)]


def test_a_machine_that_is_back_while_its_replacement_waits_is_replaced_all_the_same() -> None:
    """Its reboot was not proven in time: it may yet begin, under the next task."""
    old, node = rebooting().reboot_key, held_back()
    back = NodeSeen(at=LATER, node="n0", connected=True, gpus=8)
    node = heard(node, back, RebootProven(at=LATER, node="n0", key=old), now=LATER)
    assert (node.held, node.connected) == (True, True)
    node = heard(node, OrderSent(at=LATER, key=node.reboot_key), now=LATER)
    assert (node.status, node.being_replaced) == (NodeStatus.REBOOTING, True)


def test_a_machine_that_nobody_can_examine_again_waits_and_its_evidence_is_new() -> None:
    """That it was not back in time is all that is held against it; no check can tell more."""
    node, later = held_back(), LATER + 2 * MINUTE
    asked = PermitWithheld(at=later, key=node.reboot_key, answer=Answer.EXAMINE, why="old")
    node = heard(node, asked, now=later)
    assert (node.held, len(node.condemned)) == (True, 1)
    request = for_reboot(node, node.reboot_key, later)
    assert (request.since, request.why.partition("; ")[0]) == (later, "did not come back in time")
    assert [order.effect for order in node.outbox] == [like(ReplaceNode)]
    gone = heard(node, replace(GONE, at=later), now=later)
    came = replace(some_nodes(1, kind="EC2 p5")[0], name="i-2", created_at=LATER + MINUTE)
    assert successors([gone, came]) == [(gone, came)], "it may have come while the fleet was frozen"


def test_a_job_that_waits_for_such_a_node_sees_what_it_sees_after_a_gate_that_failed() -> None:
    def judged() -> Story:
        return a_job_under_test(nodes=1, policy=RUNGS).check_says(Verdict.REBOOT, findings="Xid 79")

    gate = judged().reboots(0).check_says(Verdict.REBOOT, 0, findings="Xid 79")
    late = judged().is_seen(0, connected=False).after(RUNGS.reboot_timeout)
    for job in (gate, late):
        assert (job.status, job.node(0).status) == (JobStatus.PENDING_RESTART, NodeStatus.REBOOTING)
        job.sent(job.node(0).reboot_key).is_seen(0, connected=False, gone=True)
        assert (job.status, job.node(0).status) == (JobStatus.PENDING_RESTART, NodeStatus.UNKNOWN)
        job.sweeps_after(RUNGS.replace_timeout)
        assert job.orders == [like(Notify, key="j/notify/failed")], "one message for both"
    assert gate.job.outcome == late.job.outcome
