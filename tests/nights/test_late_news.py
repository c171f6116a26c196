"""News that is minutes old when it comes, while other senders are at work: two bugs it once showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.events import NodeSeen
from ecs_gpu_recovery.core.job import sightings
from ecs_gpu_recovery.core.job import table as machine
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.core.node import rules
from ecs_gpu_recovery.core.node.draft import NodeDraft
from ecs_gpu_recovery.core.node.table import TABLE
from testbed.nights.cluster import SimulatedCluster
from testbed.nights.night import run

#: Seeds of nights in which it matters.
ENDED, AWAY = (2430,), (2567,)


def test_the_common_sky_has_such_nights_too() -> None:
    from testbed.nights.night import Night

    found = [
        seed
        for seed in range(100)
        if (w := Night(seed).weather).late_s == 600 and w.stall_s == 115 and w.roomy
    ]
    assert found


def shown(violation: str, seeds: Sequence[int]) -> bool:
    """Which nights show it depends on every detail of the order in which things happen: about one in a thousand."""
    return any(violation in run(seed, sky="late-news").violation for seed in seeds)


def test_what_is_sent_again_must_be_looked_for_among_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shown("all jobs are over", ENDED)
    monkeypatch.setattr(SimulatedCluster, "_find_any", SimulatedCluster._find)
    assert shown("all jobs are over, and", ENDED)


def test_an_absence_must_not_be_undone_by_older_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a note of it, the sighting that told of it is not the newest any more."""

    def forgetful(draft: Draft, ev: NodeSeen) -> None:
        before = list(draft.ranks)
        sightings.node_seen(draft, ev)
        for old, new in zip(before, list(draft.ranks), strict=True):
            if replace(new, seen_version=old.seen_version) == old:
                draft.ranks[old.index] = old

    def forgetful_node(d: NodeDraft, ev: NodeSeen) -> None:
        before = d.node
        rules.node_seen(d, ev)
        if replace(d.node, seen_version=before.seen_version) == before:
            d.node = before

    assert not shown("has not been back", AWAY)
    for status in (
        JobStatus.IN_PROGRESS,
        JobStatus.PENDING_HEALTHCHECK,
        JobStatus.PENDING_RESTART,
        JobStatus.RESTARTING,
    ):
        monkeypatch.setitem(machine.TABLE[status], NodeSeen, forgetful)
    for row in TABLE.values():
        monkeypatch.setitem(row, NodeSeen, forgetful_node)
    assert shown("has not been back", AWAY)
