"""News that is minutes old when it comes, while other senders are at work: two bugs it once showed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.events import NodeSeen
from ecs_gpu_recovery.core.job import sightings
from ecs_gpu_recovery.core.job import table as machine
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import JobStatus
from testbed.nights.cluster import SimulatedCluster
from testbed.nights.night import run


def test_the_common_sky_has_such_nights_too() -> None:
    from testbed.nights.night import Night

    found = [
        seed
        for seed in range(100)
        if (w := Night(seed).weather).late_s == 600 and w.stall_s == 115 and w.roomy
    ]
    assert found


@pytest.mark.parametrize("seed", [624, 4302])
def test_a_start_sent_again_must_look_among_what_has_ended(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not run(seed, sky="late-news").violation
    monkeypatch.setattr(SimulatedCluster, "_find_any", SimulatedCluster._find)
    assert "rebooted under" in run(seed, sky="late-news").violation


def test_an_absence_must_not_be_undone_by_older_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a note of it, the sighting that told of it is not the newest any more."""

    def forgetful(draft: Draft, ev: NodeSeen) -> None:
        before = list(draft.ranks)
        sightings.node_seen(draft, ev)
        for old, new in zip(before, list(draft.ranks), strict=True):
            if replace(new, seen_version=old.seen_version) == old:
                draft.ranks[old.index] = old

    assert not run(3906, sky="late-news").violation
    for status in (
        JobStatus.IN_PROGRESS,
        JobStatus.PENDING_HEALTHCHECK,
        JobStatus.PENDING_RESTART,
        JobStatus.RESTARTING,
    ):
        monkeypatch.setitem(machine.TABLE[status], NodeSeen, forgetful)
    assert "has not been back" in run(3906, sky="late-news").violation
