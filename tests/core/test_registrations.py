"""A machine that registers anew: what is told of which registration, and what becomes of the rank on it."""

from __future__ import annotations

from typing import Any

import pytest

from ecs_gpu_recovery.core.effects import CheckNode, RebootNode, StartTask
from ecs_gpu_recovery.core.events import NodeSeen, RebootProven
from ecs_gpu_recovery.core.model import Exit, JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.core.rows import claimed_node, held_node
from tests.core.story import (
    MINUTE,
    T0,
    Story,
    a_job_awaiting_reboot,
    a_job_under_test,
    a_running_job,
    like,
    some_nodes,
)

OLD, NEW, NEWER = (f"arn:aws:ecs:us-east-1:123456789012:container-instance/c/{i}" for i in ("a1", "b2", "c3"))
AS_REGISTERED = {
    "instance": OLD,
    "host": "i-0123",
    "registered_at": T0 - MINUTE,
    "boot_id": "",
    "seen_version": 7,
}


def seen(instance: str = NEW, minutes: float | None = 1, **about: Any) -> NodeSeen:
    """Node n1 as this registration, made so many minutes from the start on."""
    told: dict[str, Any] = {
        "at": T0,
        "node": "n1",
        "connected": True,
        "gpus": 8,
        "host": "i-0123",
        "version": 2,
    }
    registered = None if minutes is None else T0 + minutes * MINUTE
    return NodeSeen(**(told | {"instance": instance, "registered": registered} | about))


def running() -> Story:
    return a_running_job(nodes=2, **AS_REGISTERED)


def test_a_running_rank_is_lost_at_once_and_the_rest_is_examined() -> None:
    job = running().hears(seen())
    assert (job.rank(1).instance, job.rank(1).seen_version, job.rank(1).connected) == (NEW, 2, True)
    assert (job.rank(1).exit, job.rank(1).verdict) == (Exit.LOST, Verdict.LOST)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert not job.rank(1).ended, "it may run on, where nobody sees it"


def awaited() -> Story:
    job = running().hears(seen()).stops(0).check_says(Verdict.HEALTHY, 0)
    assert job.status is JobStatus.PENDING_RESTART
    return job


def test_the_machine_is_examined_before_it_is_used_again() -> None:
    job = awaited()
    assert job.orders == [like(CheckNode, node="n1", idle=True)]
    assert job.node_statuses[1] is NodeStatus.PENDING_HEALTHCHECK
    job.check_says(Verdict.HEALTHY, 1)
    assert job.status is JobStatus.RESTARTING
    assert [like(StartTask, rank=r) for r in range(2)] == job.orders
    assert not job.rank(1).anew


def test_a_fault_found_there_is_repaired() -> None:
    job = awaited().check_says(Verdict.REBOOT, 1)
    assert job.status is JobStatus.PENDING_RESTART
    assert job.orders == [like(RebootNode, node="n1")]
    assert job.reboots(1).status is JobStatus.RESTARTING


def test_one_that_no_reboot_cures_ends_the_job() -> None:
    job = awaited().check_says(Verdict.REPLACE, 1)
    assert (job.status, job.node_statuses[1]) == (JobStatus.FAILED, NodeStatus.FAILED)
    assert not any(isinstance(order, RebootNode) for order in job.outbox)


def test_a_check_that_could_not_tell_lets_nothing_start() -> None:
    """The old task may still hold the GPUs: a second one beside it is worse than a failed job."""
    job = awaited().check_says(Verdict.INCONCLUSIVE, 1)
    assert job.orders == [like(CheckNode, node="n1", check_try=2, idle=True)], "it is asked once more"
    job.check_says(Verdict.INCONCLUSIVE, 1)
    assert (job.status, job.node_statuses[1]) == (JobStatus.FAILED, NodeStatus.FAILED)


def test_a_rebooting_node_still_has_to_prove_its_reboot() -> None:
    job = a_job_awaiting_reboot(nodes=2, bad=(1,), **AS_REGISTERED).hears(seen())
    assert (job.status, job.node_statuses[1]) == (JobStatus.PENDING_RESTART, NodeStatus.REBOOTING)
    job.hears(RebootProven(at=job.now, node="n1", key="j/1/1/reboot"))
    assert job.status is JobStatus.RESTARTING
    assert job.rank(1).instance == NEW


def test_a_check_that_ran_under_the_old_registration_is_made_again_under_the_new_one() -> None:
    job = a_job_under_test(nodes=2, **AS_REGISTERED).hears(seen())
    assert like(CheckNode, node="n1", check_try=2) in job.orders
    job.check_says(Verdict.HEALTHY, 0).check_says(Verdict.REBOOT, 1)
    assert job.status is JobStatus.PENDING_RESTART


@pytest.mark.parametrize(
    "told",
    [
        seen(connected=False),
        seen(gone=True),
        seen(host="i-9999"),
        seen(host=""),
        seen(minutes=-2),
        seen(minutes=-1),
        seen(minutes=None),
    ],
    ids=["not connected", "gone", "another host", "no host", "older", "as old", "nobody knows when"],
)
def test_what_is_no_later_registration_of_the_same_machine_changes_nothing(told: NodeSeen) -> None:
    job = running()
    before = job.job
    assert job.hears(told).job is before


def test_where_the_times_are_not_known_the_old_registration_must_be_away() -> None:
    away = seen(OLD, None, connected=False, version=8)
    job = running().hears(away, seen(minutes=None))
    assert (job.rank(1).instance, job.rank(1).exit) == (NEW, Exit.LOST)


def test_late_words_about_the_old_registration_change_nothing() -> None:
    job = awaited().check_says(Verdict.HEALTHY, 1).starts()
    before = job.job
    for late in (
        seen(OLD, -1, version=99),
        seen(OLD, -1, connected=False, version=99),
        seen(OLD, None, gone=True),
    ):
        assert job.hears(late).job is before
    job.hears(seen(NEWER, 5))
    assert job.rank(1).instance == NEWER


def test_the_same_registration_told_twice_is_told_once() -> None:
    job = running().hears(seen())
    before = job.job
    assert job.hears(seen()).job is before


def test_the_node_s_record_follows_the_job_s() -> None:
    job = running()
    held = claimed_node(some_nodes(2, **AS_REGISTERED)[1], job.job)
    job.hears(seen())
    follows = held_node(held, job.job)
    assert follows is not None
    assert (follows.instance, follows.registered_at, follows.seen_version) == (NEW, T0 + MINUTE, 2)
