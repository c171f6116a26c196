"""A task that no stop ends, on a node that answers: a process hangs in the driver, and only a reboot helps."""

from __future__ import annotations

from ecs_gpu_recovery.core.effects import Notify, RebootNode
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from tests.core.story import POLICY, Story, a_running_job, like


def a_gang_that_does_not_stop(*stuck: int, nodes: int = 3) -> Story:
    story = a_running_job(nodes).fails(0)
    others = [r for r in range(1, nodes) if r not in stuck]
    if others:
        story.stops(*others)
    return story.check_starts(0, *others).check_says(Verdict.HEALTHY, 0, *others)


def test_its_node_is_rebooted_and_the_job_goes_on() -> None:
    story = a_gang_that_does_not_stop(1).after(POLICY.stop_timeout)
    assert (story.status, story.job.attempt) == (JobStatus.PENDING_RESTART, 1)
    assert like(RebootNode, node="n1") in story.orders
    said = next(e.why for e in story.job.timeline if e.after == JobStatus.PENDING_RESTART)
    assert said == "the task on n1 could not be stopped"
    story.ends(1, 137, "node restarted while the task ran").reboots(1).starts()
    assert story.status is JobStatus.IN_PROGRESS


def test_what_has_rebooted_has_lost_the_old_task() -> None:
    story = a_gang_that_does_not_stop(1).after(POLICY.stop_timeout)
    assert story.is_seen(1).status is JobStatus.PENDING_RESTART, "it is there, and so is the task"
    assert story.reboots(1).status is JobStatus.RESTARTING


def test_several_at_once_are_a_matter_of_storage_and_nobody_reboots() -> None:
    story = a_gang_that_does_not_stop(1, 2).after(POLICY.stop_timeout)
    assert not [order for order in story.outbox if isinstance(order, RebootNode)]
    assert like(Notify, key="j/notify/stuck") in story.outbox
    assert story.node_statuses[1:] == [NodeStatus.UNKNOWN, NodeStatus.UNKNOWN]
    story.ends(1, 137).ends(2, 137)
    assert story.status is JobStatus.RESTARTING, "the storage answers again"


def test_one_whose_node_is_away_is_lost_and_not_rebooted() -> None:
    story = (
        a_running_job(2).fails(0).is_seen(1, connected=False).check_starts(0).check_says(Verdict.HEALTHY, 0)
    )
    story.after(POLICY.stop_timeout)
    assert not [order for order in story.outbox if isinstance(order, RebootNode)]
    assert story.node_statuses[1] is NodeStatus.UNKNOWN
