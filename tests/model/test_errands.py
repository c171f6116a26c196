"""A free node, searched the same way: its errands end, a reboot is real, and somebody hears of a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ecs_gpu_recovery.core.events import NodeSeen, Tick
from ecs_gpu_recovery.core.model import NodeStatus
from ecs_gpu_recovery.core.node import life as nodes
from ecs_gpu_recovery.core.node.life import NODE_TABLE, NodeDraft
from testbed.model.bounds import quick_policy
from testbed.model.errands import Errands
from testbed.model.monitors import Violation


@pytest.mark.parametrize("check_after", [False, True])
def test_every_errand_of_a_node(check_after: bool) -> None:
    assert Errands(quick_policy(post_reboot_check=check_after)).run() > 1000


@pytest.mark.slow
def test_one_errand_after_the_other() -> None:
    assert Errands(quick_policy(), asks=2, flaps=0).run() > 5000


def test_a_reboot_sent_after_its_time_is_found(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)

    def tick(d: NodeDraft, ev: Tick) -> None:
        pending = [o for o in d.node.outbox if o.key == d.node.reboot_key]
        nodes.tick(d, ev)
        if d.node.status is NodeStatus.FAILED:
            d.set(outbox=(*d.node.outbox, *pending))

    monkeypatch.setitem(NODE_TABLE, Tick, tick)
    with pytest.raises(Violation, match="rebooted while FAILED"):
        Errands(quick_policy()).run()


def test_a_disconnect_taken_for_a_reboot_is_found(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)

    def node_seen(d: NodeDraft, ev: NodeSeen) -> None:
        nodes.node_seen(d, ev)
        if not ev.connected:
            d.set(rebooted=True)

    monkeypatch.setitem(NODE_TABLE, NodeSeen, node_seen)
    with pytest.raises(Violation, match="never happened"):
        Errands(quick_policy()).run()


def test_an_errand_that_never_ends_is_found(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)
    monkeypatch.setitem(NODE_TABLE, Tick, lambda d, ev: None)
    with pytest.raises(Violation, match="for ever"):
        Errands(quick_policy()).run()
