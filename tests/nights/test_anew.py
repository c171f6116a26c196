"""Nights in which agents come back without their memory. Their machines register anew, and some tasks run on unseen."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.events import NodeSeen
from ecs_gpu_recovery.core.model import NodeStatus
from ecs_gpu_recovery.core.node import rules
from ecs_gpu_recovery.core.node.draft import NodeDraft
from ecs_gpu_recovery.core.node.table import TABLE
from testbed.nights.night import run


def found(violation: str) -> bool:
    """Some night shows it; which one depends on every detail of the order in which things happen."""
    return any(violation in run(seed, sky="anew").violation for seed in range(400))


def test_a_task_that_nobody_reports_must_not_be_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rules.settle

    def trust(d: NodeDraft) -> None:
        if d.node.status is NodeStatus.UNKNOWN and d.node.fit:
            d.set(anew=False, task="")
        real(d)

    monkeypatch.setattr(rules, "settle", trust)
    assert found("are both rank")


def test_a_new_registration_must_not_count_as_a_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rules.node_seen

    def proof(d: NodeDraft, ev: NodeSeen) -> None:
        anew = ev.succeeds(d.node)
        real(d, ev)
        if anew:
            d.drop(d.node.reboot_key)
            d.set(rebooted=True)

    monkeypatch.setitem(TABLE[NodeStatus.REBOOTING], NodeSeen, proof)
    assert found("has not rebooted yet")
