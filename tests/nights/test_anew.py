"""Nights in which agents come back without their memory. Their machines register anew, and some tasks run on unseen."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.events import NodeSeen
from ecs_gpu_recovery.core.job import joint, sightings
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import NodeStatus, Rank, TaskStatus
from testbed.nights.night import run


def test_such_nights_end_well_and_the_same_way_every_time() -> None:
    nights = [run(seed, sky="anew") for seed in range(40)]
    assert not [str(night) for night in nights if night.violation]
    assert sum(night.struck["forgets"] for night in nights) > 20
    assert [run(seed, sky="anew").digest for seed in range(5)] == [night.digest for night in nights[:5]]


def found(violation: str) -> bool:
    """Some night shows it; which one depends on every detail of the order in which things happen."""
    return any(violation in run(seed, sky="anew").violation for seed in range(400))


def test_a_task_that_nobody_reports_must_not_be_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def trust(draft: Draft, rank: Rank) -> None:
        draft.set(rank.index, task_status=TaskStatus.TERMINATED, deadline=None)
        draft.node(rank.index, NodeStatus.AVAILABLE, "registered again")

    monkeypatch.setattr(joint, "_examine_anew", trust)
    assert found("are both rank")


def test_a_new_registration_must_not_count_as_a_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sightings._registered_anew

    def proof(draft: Draft, rank: Rank, ev: NodeSeen) -> None:
        real(draft, rank, ev)
        if rank.node_status is NodeStatus.REBOOTING:
            draft.drop(draft.reboot_key(rank.index))
            draft.set(rank.index, rebooted=True)

    monkeypatch.setattr(sightings, "_registered_anew", proof)
    assert found("has not rebooted yet")
