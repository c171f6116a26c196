"""What is held against a node: it is repaired twice within a week, remembered, and let back only when it is healthy."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.control.backend import JobRequest
from ecs_gpu_recovery.control.submission import choose_nodes
from ecs_gpu_recovery.core.codec import CODEC
from ecs_gpu_recovery.core.effects import Notify, RebootNode
from ecs_gpu_recovery.core.events import (
    NodeAsked,
    NodeChecked,
)
from ecs_gpu_recovery.core.model import JobSpec, JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Condemnation
from ecs_gpu_recovery.core.rows import held_node
from tests.core.story import (
    GATED,
    POLICY,
    T0,
    Story,
    a_job_under_test,
    a_new_job,
    a_running_job,
    heard,
    like,
    some_nodes,
)

DAY = timedelta(days=1)


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
