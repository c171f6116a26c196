"""Faults that are seen on a node of a job that waits: it is suspect, and examined before the gang starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ecs_gpu_recovery.core import handover
from ecs_gpu_recovery.core.effects import CheckNode, RebootNode
from ecs_gpu_recovery.core.events import FaultSeen, NodeGivenUp, NodeSeen
from ecs_gpu_recovery.core.job.table import decide
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from tests.core.story import MINUTE, POLICY, T0, Story, like


def a_job_that_waits_for_n1() -> Story:
    job = Story(nodes=2).starts().fails(1).stops()
    return job.check_says(Verdict.HEALTHY, 0).check_says(Verdict.REBOOT, 1, findings="Xid 79")


def test_a_fault_on_a_node_of_a_waiting_job_hands_that_one_over_too() -> None:
    job = a_job_that_waits_for_n1()
    job.hears(FaultSeen(at=job.now, node="n0", evidence="Xid 48", grave=True, boot_id="boot-1"))
    assert like(CheckNode, node="n0", rank=0) in job.outbox
    assert (job.status, job.rank(0).node_status) == (JobStatus.PENDING_RESTART, NodeStatus.ASSIGNED)
    job.reboots(1)
    assert job.status is JobStatus.PENDING_RESTART, "the gang does not start on a node that is suspected"
    job.check_says(Verdict.REBOOT, 0, findings="Xid 48")
    assert (job.rank(0).node_status, bool(job.rank(0).handed)) == (NodeStatus.REBOOTING, True)
    job.reboots(0)
    assert (job.status, job.job.attempt, job.job.spent.charged) == (JobStatus.RESTARTING, 1, 1), (
        "charged once"
    )


def test_the_story_of_a_job_that_waits_goes_on_when_the_fault_is_heard() -> None:
    job = a_job_that_waits_for_n1()
    night = job.now + timedelta(hours=3)
    fault = FaultSeen(at=night, node="n0", evidence="Xid 48", grave=True, boot_id="boot-1")
    for clock, told in ((night + MINUTE, night), (night - MINUTE, night - MINUTE)):  # or the node's is wrong
        step = decide(job.job, fault, POLICY, clock).job
        assert [entry.at for entry in step.timeline[-2:]] == [night, told]


@pytest.mark.parametrize(
    "fault",
    [{"grave": False}, {"boot_id": "boot-0", "at": T0 - MINUTE}, {"node": "n1"}],
    ids=["harmless", "of an earlier boot", "on the node that is repaired"],
)
def test_no_other_fault_holds_a_waiting_job_up(fault: dict[str, Any]) -> None:
    job = a_job_that_waits_for_n1()
    about = {"at": job.now, "node": "n0", "evidence": "Xid 48", "grave": True, "boot_id": "boot-1"} | fault
    job.hears(FaultSeen(**about))
    assert like(CheckNode, node="n0", rank=0) not in job.outbox
    assert job.reboots(1).status is JobStatus.RESTARTING


@pytest.mark.parametrize(
    "fault",
    [{"boot_id": ""}, {"boot_id": "boot-2"}],
    ids=["where nobody tells of boots", "of a boot that nobody has seen yet"],
)
def test_a_fault_counts_though_its_node_was_away(fault: dict[str, Any]) -> None:
    job = a_job_that_waits_for_n1().is_seen(0, connected=False)
    job.now += MINUTE
    job.is_seen(0, boot_id="" if fault["boot_id"] else "boot-1")
    job.hears(FaultSeen(at=job.now, node="n0", evidence="Xid 48", grave=True, **fault))
    assert like(CheckNode, node="n0", level=POLICY.check_level_after) in job.outbox


def test_a_fault_on_a_node_that_was_examined_before_the_others_is_looked_at() -> None:
    job = Story(nodes=2).starts().fails(1).stops().check_says(Verdict.HEALTHY, 0)
    job.hears(FaultSeen(at=job.now, node="n0", evidence="Xid 48", grave=True, boot_id="boot-1"))
    job.check_says(Verdict.REBOOT, 1)
    assert (job.status, job.rank(0).node_status) == (JobStatus.PENDING_RESTART, NodeStatus.ASSIGNED)


def test_a_lost_node_on_which_a_fault_is_seen_is_examined_before_its_job_has_it_back() -> None:
    job = Story(nodes=2).starts().loses(1).stops(0).check_says(Verdict.HEALTHY, 0)
    fault = FaultSeen(at=job.now, node="n1", evidence="Xid 79", grave=True)
    job.nodes["n1"] = decide_node(job.node(1), fault, POLICY).node
    job.is_seen(1, boot_id="boot-1").stops(1)
    assert (job.status, job.node(1).status) == (JobStatus.PENDING_RESTART, NodeStatus.PENDING_HEALTHCHECK)


def test_a_suspected_node_whose_job_is_stopped_is_examined_for_itself() -> None:
    job = a_job_that_waits_for_n1()
    job.hears(FaultSeen(at=job.now, node="n0", evidence="Xid 48", grave=True, boot_id="boot-1"))
    job.person_stops_it()
    node = job.node(0)
    assert (job.status, node.job_id, node.suspected) == (JobStatus.USER_STOPPED, "", "Xid 48")
    seen = decide_node(node, NodeSeen(at=job.now, node="n0", connected=True, boot_id="boot-1"), POLICY).node
    assert seen.status is NodeStatus.PENDING_HEALTHCHECK


def test_a_suspected_node_that_is_lost_before_its_check_answers_is_examined_when_it_is_back() -> None:
    job = a_job_that_waits_for_n1()
    job.hears(FaultSeen(at=job.now, node="n0", evidence="Xid 48", grave=True, boot_id="boot-1"))
    job.check_starts(0).loses(0)
    assert job.rank(0).node_status is NodeStatus.UNKNOWN
    job.is_seen(0, boot_id="boot-1").reboots(1)
    assert (job.status, job.rank(0).node_status) == (JobStatus.PENDING_RESTART, NodeStatus.ASSIGNED)
    assert job.check_says(Verdict.HEALTHY, 0).status is JobStatus.RESTARTING


def test_a_suspected_node_that_is_back_when_its_job_ends_is_not_examined_for_it() -> None:
    """The job only waits for the end of a task that it has lost."""
    job = Story(nodes=2).starts().loses(1).stops(0).check_starts(0).check_says(Verdict.HEALTHY, 0)
    job.hears(FaultSeen(at=job.now, node="n0", evidence="Xid 48", grave=True, boot_id="boot-1"))
    job.loses(0).hears(NodeGivenUp(at=job.now, node="n1", key="j/1/1/reboot", reason="did not come back"))
    assert (job.status, job.job.ending is not None) == (JobStatus.PENDING_RESTART, True)
    job.is_seen(0, boot_id="boot-1")
    assert (job.rank(0).node_status, job.rank(0).handed) == (NodeStatus.AVAILABLE, "")
    assert like(CheckNode) not in job.outbox


def test_a_node_that_is_handed_over_in_the_step_that_ends_its_job_is_repaired_all_the_same() -> None:
    job = a_job_that_waits_for_n1()
    job.hears(FaultSeen(at=job.now, node="n0", evidence="Xid 48", grave=True, boot_id="boot-1"))
    before, told = job.job, {"at": job.now, "node": "n1", "key": "j/1/1/reboot"}
    handed = decide(before, job.checked(0, Verdict.REBOOT, "Xid 48"), POLICY).job
    ended = decide(handed, NodeGivenUp(**told, reason="it did not come back"), POLICY).job
    assert ended.status is JobStatus.FAILED
    [node] = handover.taken(before, ended, job.nodes.__getitem__, POLICY)
    assert (node.name, node.status, node.job_id) == ("n0", NodeStatus.REBOOTING, "")
    assert like(RebootNode, node="n0") in [order.effect for order in node.outbox]
    assert node.deadline is not None, "or it would be waited for for ever"
