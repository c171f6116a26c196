"""Nights in which news waits in a queue, and a function takes what has gathered: one commit for each record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ecs_gpu_recovery.core.effects import Archive
from ecs_gpu_recovery.core.events import Fact
from ecs_gpu_recovery.core.model import Job
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.records import Records
from testbed.nights.night import run


def told(record: Job | Node) -> dict[str, Any]:
    """What a record says, but for how often it was written; archived lines are named after that."""
    orders = [o.effect for o in record.outbox if not isinstance(o.effect, Archive)]
    kept = {name: getattr(record, name) for name in record.__dataclass_fields__}
    return {**kept, "outbox": orders, "version": 0, "timeline": len(record.timeline)}


def test_a_group_decides_as_its_facts_do_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    decided, groups = Records._decided, list[int]()

    def compared(records: Any, record: Any, version: int, facts: Sequence[Fact]) -> Any:
        together = decided(records, record, version, facts)
        alone = record
        for fact in facts:
            alone, _ = records.decide(alone, fact)
        assert told(together[0]) == told(alone)
        groups.append(len(facts))
        return together

    monkeypatch.setattr(Records, "_decided", compared)
    assert not [str(n) for n in (run(seed, sky="together") for seed in range(40)) if n.violation]
    assert sum(size > 3 for size in groups) > 50
