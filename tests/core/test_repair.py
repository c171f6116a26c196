"""What is held against a node: it is repaired twice within a week, remembered, and let back only when it is healthy."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from ecs_gpu_recovery.control.backend import JobRequest
from ecs_gpu_recovery.control.submission import choose_nodes
from ecs_gpu_recovery.core.codec import CODEC
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
from ecs_gpu_recovery.core.model import JobSpec, JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.core.node.replacement import successors
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Condemnation, Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.core.rows import held_node, left_node
from tests.core.story import (
    MINUTE,
    POLICY,
    T0,
    Story,
    a_job_under_test,
    a_new_job,
    a_running_job,
    like,
    some_nodes,
)

DAY = timedelta(days=1)
GATED = replace(POLICY, post_reboot_check=True)


def condemned_before(*ago: timedelta, **about: object) -> Story:
    """A job of one node, which was condemned so long ago, and now is again."""
    story = a_job_under_test(nodes=1, **about)
    past = tuple(Condemnation(at=T0 - each, verdict=Verdict.REBOOT, outcome="cured") for each in ago)
    story.nodes["n0"] = replace(story.node(0), condemned=past)
    return story.check_says(Verdict.REBOOT, findings="Xid 79")


def test_a_hand_over_carries_the_verdict_its_evidence_and_a_task_that_may_still_run() -> None:
    bad = a_job_under_test(nodes=1).check_says(Verdict.REBOOT, findings="Xid 79").node(0)
    assert (bad.verdict, bad.findings, bad.task) == (Verdict.REBOOT, "Xid 79", "")
    story = a_running_job(2).loses(1).stops(0).check_starts(0).check_says(Verdict.HEALTHY, 0)
    lost, job = story.node(1), story.job
    assert (lost.verdict, lost.task, lost.salt) == (Verdict.LOST, job.ranks[1].task_id, job.salt)
    assert story.is_seen(1).node(1).status is NodeStatus.UNKNOWN, "what it was last heard to run may run on"
    assert story.ends(1, 137).node(1).status is not NodeStatus.UNKNOWN
    assert story.status is JobStatus.RESTARTING


def test_a_second_fault_within_a_week_is_repaired() -> None:
    job = condemned_before(6 * DAY)
    assert like(RebootNode, node="n0") in job.orders
    assert [each.repair for each in job.node(0).condemned] == ["", "reboot"]


@pytest.mark.parametrize("days", [(6, 1), (6.9, 6.9)])
def test_the_third_within_a_week_is_not_and_ends_the_job(days: tuple[float, float]) -> None:
    job = condemned_before(*(each * DAY for each in days))
    assert (job.status, job.node(0).status) == (JobStatus.FAILED, NodeStatus.FAILED)
    assert job.orders == [like(Notify, key="j/notify/failed")], "one message for both"
    assert "condemned 3 times within 7 days: Xid 79" in job.job.outcome
    assert job.node(0).condemned[-1].repair == ""


def a_third_fault_before_the_first_start() -> Story:
    past = tuple(
        Condemnation(at=T0 - each, verdict=Verdict.REBOOT, outcome="cured") for each in (6 * DAY, DAY)
    )
    story = a_new_job(nodes=1, check=True, spec=JobSpec(failover="any"), condemned=past)
    return story.check_starts(0).check_says(Verdict.REBOOT, 0, findings="Xid 79")


def test_a_node_that_its_own_record_gave_up_is_not_condemned_again_before_the_first_start() -> None:
    job = a_third_fault_before_the_first_start().sees_the_fleet()
    told = [(entry.before, entry.after) for entry in job.job.timeline if entry.subject == "n0"][-2:]
    assert told == [("PENDING_HEALTHCHECK", "REBOOTING"), ("REBOOTING", "FAILED")]
    assert (job.status, job.node(0).status) == (JobStatus.FAILED, NodeStatus.FAILED)
    assert job.orders == [like(Notify, key="j/notify/failed", node="n0")], "one message for both"
    (message,) = (each for each in job.orders if isinstance(each, Notify))
    assert message.done == "All tasks were stopped; n0 marked failed."


def test_a_node_of_whose_failure_its_job_never_heard_tells_people_itself() -> None:
    job = a_third_fault_before_the_first_start()
    deaf = replace(job.job.ranks[0], node_status=NodeStatus.REBOOTING)
    ended = replace(job.job, ranks=(deaf,), status=JobStatus.FAILED, version=job.job.version + 1)
    free = held_node(job.node(0), ended)
    assert free is not None
    assert [order.effect for order in free.outbox] == [like(Notify, node="n0", key="node/n0/notify/1")]


def test_what_is_older_than_a_week_does_not_count() -> None:
    assert like(RebootNode, node="n0") in condemned_before(8 * DAY, 7 * DAY, 6 * DAY).orders


def test_the_record_remembers_what_became_of_a_repair() -> None:
    cured = condemned_before().reboots(0)
    assert cured.status is JobStatus.RESTARTING
    (entry,) = cured.node(0).condemned
    assert (entry.verdict, entry.findings, entry.repair, entry.outcome) == (
        Verdict.REBOOT,
        "Xid 79",
        "reboot",
        "cured",
    )
    assert CODEC.node("n0", CODEC.text(cured.node(0))) == cured.node(0)
    refused = condemned_before().reboot_fails(0, "not managed")
    assert refused.node(0).condemned[-1].outcome == "the reboot could not be carried out"


def test_it_remembers_the_last_ten() -> None:
    assert len(condemned_before(*(each * DAY for each in range(40, 8, -2))).node(0).condemned) == 10


def test_a_person_who_releases_a_node_clears_its_record() -> None:
    failed = condemned_before(2 * DAY, DAY).node(0)
    asked = NodeAsked(at=T0, node="n0", ask="release", by="ann", why="new board")
    node = decide_node(failed, asked, POLICY).node
    assert (node.status, node.condemned) == (NodeStatus.PENDING_HEALTHCHECK, ())


def test_only_a_healthy_node_is_let_back_from_a_repair() -> None:
    job = condemned_before(policy=GATED).reboots(0)
    assert (job.status, job.node(0).status) == (JobStatus.PENDING_RESTART, NodeStatus.PENDING_HEALTHCHECK)
    assert job.check_says(Verdict.HEALTHY, 0).status is JobStatus.RESTARTING


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (Verdict.REBOOT, "the reboot did not cure it"),
        (Verdict.REPLACE, "the reboot did not cure it"),
        (Verdict.INCONCLUSIVE, "it could not be tested after its reboot"),
    ],
)
def test_any_other_answer_is_for_a_person_and_no_second_reboot(verdict: Verdict, why: str) -> None:
    job = condemned_before(policy=GATED).reboots(0).check_says(verdict, 0, findings="seen")
    if verdict is Verdict.INCONCLUSIVE:
        assert job.status is JobStatus.PENDING_RESTART, "it is asked once more"
        job.check_says(verdict, 0, findings="seen")
    assert (job.status, job.node(0).status) == (JobStatus.FAILED, NodeStatus.FAILED)
    assert f"{why}: seen" in job.job.outcome
    assert not any(isinstance(order, RebootNode) for order in job.outbox)
    assert job.node(0).condemned[-1].outcome == why


def test_a_job_that_takes_any_nodes_gets_those_with_a_clean_record() -> None:
    bad, good = (replace(node, condemned=()) for node in some_nodes(2))
    bad = replace(bad, condemned=(Condemnation(at=T0, verdict=Verdict.REBOOT),))
    request = JobRequest(spec=JobSpec(), any_nodes=1)
    assert choose_nodes(request, [bad, good]) == (good.name,)
    assert choose_nodes(replace(request, any_nodes=2), [bad, good]) == (good.name, bad.name)


@pytest.mark.parametrize(
    ("status", "times"), [(NodeStatus.FAILED, 1), (NodeStatus.AVAILABLE, 3)], ids=["out of use", "in use"]
)
def test_what_a_person_finds_on_a_node_that_is_out_of_use_counts_no_second_time(
    status: NodeStatus, times: int
) -> None:
    """Somebody repairs it by hand, and looks after each step."""
    known = Condemnation(at=T0, verdict=Verdict.REPLACE, outcome="the check says replace")
    node = replace(some_nodes(1)[0], condemned=(known,))
    for _ in range(2):
        ask = NodeAsked(at=T0, node="n0", ask="check", by="ann", why="new board")
        node = heard(replace(node, status=status), ask, policy=GATED)
        about = {"check_id": "c", "check_try": node.check_try, "findings": "Xid 48"}
        found = NodeChecked(at=T0, node="n0", verdict=Verdict.REPLACE, **about)
        node = heard(node, found, policy=GATED)
    assert (node.status, len(node.condemned), node.faults(T0)) == (NodeStatus.FAILED, 3, times)
    often = "condemned 3 times within 7 days" in [entry.why for entry in node.timeline]
    assert often is (times == 3)
    assert CODEC.node("n0", CODEC.text(node)) == node


# -- the rung above ------------------------------------------------------------------------------------------------

RUNGS = replace(GATED, repair_rungs="reboot,replace")
GONE = NodeSeen(at=T0, node="n0", connected=False, gone=True)


def heard(node: Node, *facts: Fact, policy: Policy = RUNGS, now: datetime = T0) -> Node:
    for fact in facts:
        node = decide_node(node, fact, policy, now).node
    return node


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
    gate = condemned_before(policy=RUNGS).reboots(0).check_says(Verdict.REBOOT, 0, findings="Xid 79")
    late = condemned_before(policy=RUNGS).is_seen(0, connected=False).after(RUNGS.reboot_timeout)
    for job in (gate, late):
        assert (job.status, job.node(0).status) == (JobStatus.PENDING_RESTART, NodeStatus.REBOOTING)
        job.sent(job.node(0).reboot_key).is_seen(0, connected=False, gone=True)
        assert (job.status, job.node(0).status) == (JobStatus.PENDING_RESTART, NodeStatus.UNKNOWN)
        job.sweeps_after(RUNGS.replace_timeout)
        assert job.orders == [like(Notify, key="j/notify/failed")], "one message for both"
    assert gate.job.outcome == late.job.outcome
