"""Free nodes are examined in turn, when they are due, and only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.core.model import Entry, NodeStatus, Verdict
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.idle_checks import BY, IdleChecks, due
from ecs_gpu_recovery.local.controller import Controller, NodeWish
from tests.contract import worlds
from tests.contract.worlds import T0
from tests.programs import eventually

HOUR = timedelta(hours=1)


def a_node(name: str, checked: datetime = T0, **about: Any) -> Node:
    entry = Entry(at=checked, subject=name, before="AVAILABLE", after="PENDING_HEALTHCHECK", why="")
    return worlds.a_node(name, timeline=(entry,), **about)


def test_the_node_that_waited_longest_is_due_first() -> None:
    nodes = [a_node("a", T0 + timedelta(minutes=5)), a_node("b"), a_node("c", T0 + timedelta(minutes=9))]
    found = due(nodes, T0 + 2 * HOUR, HOUR)
    assert found is not None
    assert found.name == "b"


def test_a_node_that_was_just_set_up_is_due_at_once_and_before_all_others() -> None:
    new = replace(a_node("z"), timeline=(), created_at=T0 + 2 * HOUR)
    found = due([a_node("a"), new], T0 + 2 * HOUR, HOUR)
    assert found is new


def test_nobody_is_due_too_early() -> None:
    assert due([a_node("a")], T0 + HOUR - timedelta(seconds=1), HOUR) is None


def test_busy_absent_and_failed_nodes_are_left_alone() -> None:
    nodes = [
        a_node("a", job_id="j", status=NodeStatus.IN_PROGRESS),
        a_node("b", connected=False),
        a_node("c", status=NodeStatus.FAILED),
        a_node("d", status=NodeStatus.REBOOTING),
    ]
    assert due(nodes, T0 + 2 * HOUR, HOUR) is None


def test_one_node_at_a_time() -> None:
    nodes = [a_node("a"), a_node("b", status=NodeStatus.PENDING_HEALTHCHECK)]
    assert due(nodes, T0 + 2 * HOUR, HOUR) is None


def test_free_nodes_are_examined_and_a_broken_one_is_repaired_before_a_job_finds_it(tmp_path: Path) -> None:
    wishes = [NodeWish(name=f"n{i}", boot_seconds=0.1) for i in (1, 2)]
    idle = IdleChecks(timedelta(seconds=0.5))
    with Controller(tmp_path, nodes=wishes, idle_checks=idle) as controller:
        parts = controller.parts

        def wait_until(holds: Callable[[], bool]) -> None:
            def stepped() -> bool:
                controller.step()
                return holds()

            eventually(stepped, "after enough steps")

        try:
            wait_until(lambda: all(n.connected for n in parts.store.nodes()))
            parts.cluster.inject("n2", "off-bus")
            wait_until(lambda: [e.outcome for e in parts.store.node("n2").condemned] == ["cured"])
            wait_until(lambda: parts.store.node("n1").verdict is Verdict.HEALTHY)
        finally:
            parts.cluster.shutdown()
        (found,) = parts.store.node("n2").condemned
        assert "1 of 2 GPUs found" in found.findings
        assert any(BY in entry.why for entry in parts.store.node("n1").timeline)
