"""A free node, searched the same way: its errands end, a reboot is real, and somebody hears of a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.events import NodeSeen, Tick
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from ecs_gpu_recovery.core.node import repair, rules
from ecs_gpu_recovery.core.node.draft import NodeDraft
from ecs_gpu_recovery.core.node.table import TABLE
from testbed.model.bounds import quick_policy
from testbed.model.errands import Errands
from testbed.model.monitors import Violation

ASKED, BROKEN, NEW = {"asks": 1}, {"asks": 0, "faults": 1}, {"asks": 0, "fresh": True}


@pytest.mark.parametrize(
    ("check_after", "cause"),
    [
        pytest.param(False, ASKED, id="asked"),
        pytest.param(False, BROKEN, id="broken"),
        pytest.param(True, ASKED, id="asked, then a gate", marks=pytest.mark.slow),
        pytest.param(True, BROKEN, id="broken, then a gate", marks=pytest.mark.slow),
        pytest.param(True, NEW, id="new, then a gate", marks=pytest.mark.slow),
    ],
)
def test_every_errand_of_a_node(check_after: bool, cause: dict[str, int]) -> None:
    assert Errands(quick_policy(post_reboot_check=check_after), **cause, flaps=0).run() > 300


#: A machine may be replaced, and what a check says is one of the two that a rung follows from.
RUNGS = quick_policy(post_reboot_check=True, repair_rungs="reboot,replace")
ILL = {"asks": 0, "faults": 1, "flaps": 0, "verdicts": (Verdict.HEALTHY, Verdict.REBOOT)}


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"crashes": 0}, id="no other"),
        pytest.param({"crashes": 1}, id="a process dies, or it waits for a permit", marks=pytest.mark.slow),
    ],
)
def test_every_errand_of_a_node_whose_machine_may_be_replaced(trouble: dict[str, int]) -> None:
    assert Errands(RUNGS, **ILL, **trouble).run() > 2000


@pytest.mark.slow
@pytest.mark.parametrize(
    "causes",
    [{"asks": 2, "flaps": 0}, {"asks": 1}, {"asks": 0, "faults": 1}, {"asks": 1, "faults": 1, "flaps": 0}],
    ids=str,
)
def test_one_errand_after_the_other(causes: dict[str, int]) -> None:
    assert Errands(quick_policy(), **causes).run() > 5000


@pytest.mark.slow
def test_a_fault_of_an_earlier_boot_that_starts_an_errand_is_found(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)
    monkeypatch.setattr(rules, "_before_the_boot", lambda d, ev: False)
    with pytest.raises(Violation, match="a fault of an earlier boot"):
        Errands(quick_policy(), asks=1, faults=1, flaps=0, crashes=0).run()


def test_a_new_node_that_is_let_in_unseen_is_found(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)
    settle = rules.settle

    def unseen(d: NodeDraft) -> None:
        d.set(fresh=False)
        settle(d)

    monkeypatch.setattr(rules, "settle", unseen)
    with pytest.raises(Violation, match="no check has answered"):
        Errands(quick_policy(), asks=0, fresh=True).run()


def test_a_gate_that_fails_and_goes_round_is_found(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)
    examined = rules._examined

    def round_again(d: NodeDraft, verdict: Verdict) -> None:
        if d.node.rebooted and verdict is Verdict.REBOOT:
            d.set(rebooted=False)
            repair.begin(d)
        else:
            examined(d, verdict)

    monkeypatch.setattr(rules, "_examined", round_again)
    with pytest.raises(Violation, match="nothing asked for it since the last time"):
        Errands(quick_policy(post_reboot_check=True), asks=0, faults=1, flaps=0).run()


def gives_up_what_does_not_come_back(d: NodeDraft, *, sent: bool) -> None:
    d.fail(d.node.absence)


def replaces_at_once(d: NodeDraft, key: str, verdict: Verdict, findings: str, **about: bool) -> None:
    CONDEMN(d, key, Verdict.REPLACE, findings, **about)


CONDEMN = repair.condemn


@pytest.mark.parametrize(
    ("rule", "bug", "said"),
    [
        ("not_back", gives_up_what_does_not_come_back, "given up after its reboot, and may be replaced"),
        ("condemn", replaces_at_once, "replaced, and no check asks for it"),
    ],
)
def test_a_wrong_rung_is_found(
    rule: str,
    bug: Callable[..., None],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("mutants", 1)
    monkeypatch.setattr(repair, rule, bug)
    with pytest.raises(Violation, match=said):
        Errands(RUNGS, **ILL, crashes=0).run()


def test_a_reboot_sent_after_its_time_is_found(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)

    def tick(d: NodeDraft, ev: Tick) -> None:
        pending = d.pending(d.node.reboot_key)
        rules.tick(d, ev)
        if d.node.status is NodeStatus.FAILED and pending is not None:
            d.order(pending.effect)

    for row in TABLE.values():
        monkeypatch.setitem(row, Tick, tick)
    impatient = replace(quick_policy(), alarm_tries=1)  # else it would be sent before its time is over
    with pytest.raises(Violation, match="rebooted while FAILED"):
        Errands(impatient).run()


def test_a_disconnect_taken_for_a_reboot_is_found(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)

    def node_seen(d: NodeDraft, ev: NodeSeen) -> None:
        rules.node_seen(d, ev)
        if not ev.connected:
            d.set(rebooted=True)

    for row in TABLE.values():
        monkeypatch.setitem(row, NodeSeen, node_seen)
    with pytest.raises(Violation, match="never happened"):
        Errands(quick_policy()).run()


def test_an_errand_that_never_ends_is_found(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)
    for row in TABLE.values():
        monkeypatch.setitem(row, Tick, lambda d, ev: None)
    with pytest.raises(Violation, match="for ever"):
        Errands(quick_policy()).run()
