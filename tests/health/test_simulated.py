"""The same program and rules on a node folder. docs/health.md is true: each fault leads to the verdict there."""

from __future__ import annotations

import re

import pytest

from ecs_gpu_recovery.local import gpus
from ecs_gpu_recovery.local.files import write_json

from .conftest import ROOT, Node, Ran, a_gpu, patiently

AT = "2026-11-15T02:00:00.000000+00:00"


def xid(code: int, text: str = "", at: str = AT) -> str:
    return f"{at} kernel: NVRM: Xid (PCI:0000:01:00): {code}, pid=123, name=python, {text}\n"


PAGE = (ROOT / "docs" / "health.md").read_text()
TABLE = PAGE.partition("<!-- faults -->")[2].partition("<!-- /faults -->")[0]
CELLS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE.strip().splitlines()[2:]]
VERDICTS = {fault: cells[1] for cells in CELLS for fault in cells[0].split(", ")}
EXIT_CODES = {"healthy": 0, "reboot": 1, "replace": 2, "inconclusive": 3}
AROUND = {"leaving", "no-cure", "no-return", "lost", "xid"}
"""Faults that change what comes after, or that no check on the node itself could find."""


def test_every_fault_that_can_be_injected_has_its_row_in_the_docs() -> None:
    assert {fault for fault in VERDICTS if not fault.startswith("xid ")} == set(gpus.FAULTS) - AROUND


def inject(node: Node, fault: str, xid: int | None = None) -> None:
    write_json(str(node.folder / "gpus.json"), gpus.simulated("n1", 2))
    gpus.inject(str(node.folder), fault, 0, xid, 0.2, 4711)


@pytest.mark.parametrize(("fault", "verdict"), VERDICTS.items(), ids=VERDICTS)
def test_a_fault_leads_to_the_verdict_written_in_the_docs(
    fault: str, verdict: str, request: pytest.FixtureRequest
) -> None:
    name, _, xid = fault.partition(" ")
    hangs = name == "driver-hang"
    node: Node = request.getfixturevalue("node" if hangs else "quick_node")
    inject(node, name, int(xid) if xid else None)
    ran = node.check("--expect-gpus", "2", "--deadline", "2" if hangs else "20")
    word = verdict.partition(",")[0]
    assert (EXIT_CODES[word], ran.err) == (ran.exit_code, ""), ran.out
    assert (ran.report["exit_code"], ran.report["source"]) == (ran.exit_code, "simulated")
    assert ran.report["verdict"] == word
    assert ran.report["application_fault"] is ("program" in verdict)


def test_the_reason_is_a_sentence_for_people(quick_node: Node) -> None:
    inject(quick_node, "off-bus")
    why = quick_node.check("--expect-gpus", "2").report["why"]
    assert why == "1 of 2 GPUs found; Xid 79 on GPU 0000:01:00 (fallen off the bus)"
    assert not re.search(r"[a-z]+-[a-z]+\)", why), "no rule ids"


OTHERS = {
    "none": ({}, "", 0),
    "missing without a word": ({"present": False}, "", 1),
    "remap failed": ({"remap_failure": True}, "", 1),
    "driver wants a drain": ({"recovery_action": "drain_and_reset"}, "", 1),
    "driver wants peers drained": ({"recovery_action": "drain_p2p"}, "", 1),
    "driver wants a reboot": ({"recovery_action": "node_reboot"}, "", 1),
    "unknown xid": ({}, xid(555), 0),
    "board power": ({}, xid(54), 2),
    "fault of yesterday": ({}, xid(79, at="2026-11-14T02:00:00+00:00"), 0),
}


@pytest.mark.parametrize(("different", "log", "exit_code"), OTHERS.values(), ids=OTHERS)
def test_what_else_a_node_can_be_like(
    quick_node: Node, different: dict[str, object], log: str, exit_code: int
) -> None:
    quick_node.write("gpus.json", {"gpus": [a_gpu(0, **different), a_gpu(1)], "driver_hung": False})
    quick_node.write("kmsg", log)
    assert quick_node.check("--since", AT, "--expect-gpus", "2").exit_code == exit_code


def test_the_verdict_is_the_exit_code_of_a_real_process(node: Node) -> None:
    for log, exit_code in (("", 0), (xid(79), 1), (xid(54), 2)):
        node.write("kmsg", log)
        assert node.check("--since", AT, "--expect-gpus", "2").exit_code == exit_code


def test_a_broken_check_tests_nothing_whatever_the_gpus_are_like(quick_node: Node) -> None:
    quick_node.write("kmsg", xid(79))
    quick_node.write("faults.json", {"check_broken": True})
    ran = quick_node.check()
    assert ran.exit_code == 3
    assert "broken" in ran.report["why"]


def test_a_hung_driver_is_found_by_the_deadline_and_asked_twice(node: Node) -> None:
    node.write("gpus.json", {"gpus": [a_gpu(0), a_gpu(1)], "driver_hung": True})
    ran = node.check("--deadline", "1")
    assert ran.exit_code == 1
    assert [f["rule"] for f in ran.report["findings"]] == ["driver-hang-confirmed"]
    assert ran.report["checks"][0]["status"] == "hung"


def test_a_hung_driver_with_its_xid_is_not_asked_twice(node: Node) -> None:
    node.write("gpus.json", {"gpus": [a_gpu(0), a_gpu(1)], "driver_hung": True})
    node.write("kmsg", xid(119))

    def ask(deadline: float) -> Ran:
        return node.check("--deadline", str(deadline))

    ran = patiently(ask, lambda ran: "119" in ran.report["why"], 2, 20, 60)
    assert ran.exit_code == 1
    assert {f["rule"] for f in ran.report["findings"]} == {"xid-firmware", "driver-hang"}


def test_a_hung_driver_where_no_gpu_is_known_proves_nothing(node: Node) -> None:
    node.write("node.json", {"name": "n1", "gpus": 0})
    node.write("gpus.json", {"gpus": [], "driver_hung": True})
    assert node.check("--deadline", "1").exit_code == 3


def test_the_node_itself_knows_how_many_gpus_it_should_have(quick_node: Node) -> None:
    quick_node.write("gpus.json", {"gpus": [a_gpu(0, present=False), a_gpu(1, present=False)]})
    assert quick_node.check().exit_code == 1, "none is left"
    quick_node.write("gpus.json", {"gpus": [a_gpu(0)]})
    ran = quick_node.check()
    assert (ran.exit_code, ran.report["expected_gpus"]) == (1, 2)
    assert quick_node.check("--expect-gpus", "1").exit_code == 0
    quick_node.write("gpus.json", {"gpus": []})
    quick_node.write("node.json", {"name": "n1", "gpus": 0})
    assert quick_node.check().exit_code == 3, "none is there, and none is expected"


def test_a_node_folder_that_is_damaged_or_not_there_is_inconclusive(quick_node: Node) -> None:
    for content in ("", "{", "[]", '{"gpus": 3}', '{"gpus": [3, null]}'):
        quick_node.write("gpus.json", content)
        assert quick_node.check("--expect-gpus", "0").exit_code == 3, content
    quick_node.folder /= "elsewhere"
    assert quick_node.check().exit_code == 3


def test_a_fault_that_is_back_after_the_reboot_asks_for_a_replacement(quick_node: Node) -> None:
    quick_node.write("gpus.json", {"gpus": [a_gpu(0, present=False), a_gpu(1)]})
    quick_node.write("agent.json", {"boot_id": "first"})
    earlier = str(quick_node.folder / "report.json")
    assert quick_node.check("--report", earlier).exit_code == 1
    assert quick_node.check("--previous-report", earlier).exit_code == 1, "nothing was rebooted yet"
    quick_node.write("agent.json", {"boot_id": "second"})
    ran = quick_node.check("--previous-report", earlier)
    assert ran.exit_code == 2
    assert ran.report["findings"][0]["rule"] == "gpus-missing/again"


def test_the_diagnostic_is_left_out_and_said_so(quick_node: Node) -> None:
    ran = quick_node.check("--level", "2")
    assert ran.exit_code == 0
    assert ("dcgm-diag", "not_tested") in [(c["name"], c["status"]) for c in ran.report["checks"]]
    assert quick_node.check("--level", "2", "--require", "dcgm").exit_code == 3


@pytest.mark.parametrize("used", [{"memory_used_mib": 60_000}, {"utilization": 100}], ids=str)
def test_gpus_in_somebody_s_hands_are_not_called_healthy_where_they_must_be_idle(
    quick_node: Node, used: dict[str, int]
) -> None:
    assert quick_node.check("--require", "idle").exit_code == 0
    quick_node.write("gpus.json", {"gpus": [a_gpu(0), a_gpu(1, **used)]})
    assert quick_node.check().exit_code == 0, "a check that only looks may run beside a training"
    ran = quick_node.check("--require", "idle")
    assert ran.exit_code == 3
    assert "idle is required" in ran.report["why"]
