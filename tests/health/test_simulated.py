"""The same program and rules on a node folder: every fault that can be injected, and its verdict."""

from __future__ import annotations

import pytest

from .conftest import Node, a_gpu

AT = "2026-11-15T02:00:00.000000+00:00"


def xid(code: int, text: str = "", at: str = AT) -> str:
    return f"{at} kernel: NVRM: Xid (PCI:0000:01:00): {code}, pid=123, name=python, {text}\n"


FAULTS = {
    "none": ({}, "", 0),
    "off the bus": (
        {"present": False, "recovery_action": "node_reboot"},
        xid(79, "GPU has fallen off the bus."),
        1,
    ),
    "missing without a word": ({"present": False}, "", 1),
    "double-bit error": ({"ecc_uncorrectable": 1, "recovery_action": "gpu_reset"}, xid(48), 1),
    "permanent": ({"sram_threshold_exceeded": True}, xid(48), 2),
    "remap failed": ({"remap_failure": True}, xid(64), 1),
    "remap pending": ({"remap_pending": True}, xid(63), 1),
    "driver wants a drain": ({"recovery_action": "drain_and_reset"}, "", 1),
    "driver wants peers drained": ({"recovery_action": "drain_p2p"}, "", 1),
    "driver wants a reboot": ({"recovery_action": "node_reboot"}, "", 1),
    "slow": ({"throttled": True}, "", 0),
    "a program's fault": ({}, xid(31), 0),
    "a program was ended": ({}, xid(45), 0),
    "unknown xid": ({}, xid(555), 0),
    "board power": ({}, xid(54), 2),
    "stuck firmware": ({"recovery_action": "gpu_reset"}, xid(119), 1),
    "fault of yesterday": ({}, xid(79, at="2026-11-14T02:00:00+00:00"), 0),
}


@pytest.mark.parametrize(("different", "log", "exit_code"), FAULTS.values(), ids=FAULTS)
def test_a_fault_and_its_verdict(
    quick_node: Node, different: dict[str, object], log: str, exit_code: int
) -> None:
    quick_node.write("gpus.json", {"gpus": [a_gpu(0, **different), a_gpu(1)], "driver_hung": False})
    quick_node.write("kmsg", log)
    ran = quick_node.check("--since", AT, "--expect-gpus", "2")
    assert ran.exit_code == exit_code, ran.out + ran.err
    assert ran.report["exit_code"] == exit_code
    assert ran.report["source"] == "simulated"
    assert ran.err == ""


def test_the_verdict_is_the_exit_code_of_a_real_process(node: Node) -> None:
    for log, exit_code in (("", 0), (xid(79), 1), (xid(54), 2)):
        node.write("kmsg", log)
        assert node.check("--since", AT, "--expect-gpus", "2").exit_code == exit_code


def test_a_programs_fault_is_said_so(node: Node) -> None:
    node.write("kmsg", xid(31))
    assert node.check().report["application_fault"] is True


def test_a_broken_check_tests_nothing_whatever_the_gpus_are_like(node: Node) -> None:
    node.write("kmsg", xid(79))
    node.write("faults.json", {"check_broken": True})
    ran = node.check()
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
    ran = node.check("--deadline", "4")
    assert ran.exit_code == 1
    assert {f["rule"] for f in ran.report["findings"]} == {"xid-firmware", "driver-hang"}


def test_a_hung_driver_where_no_gpu_is_known_proves_nothing(node: Node) -> None:
    node.write("node.json", {"name": "n1", "gpus": 0})
    node.write("gpus.json", {"gpus": [], "driver_hung": True})
    assert node.check("--deadline", "1").exit_code == 3


def test_no_gpu_at_all_and_none_expected_is_inconclusive(node: Node) -> None:
    node.write("gpus.json", {"gpus": []})
    node.write("node.json", {"name": "n1", "gpus": 0})
    assert node.check().exit_code == 3


def test_no_gpu_left_of_those_expected_asks_for_a_reboot(node: Node) -> None:
    node.write("gpus.json", {"gpus": [a_gpu(0, present=False), a_gpu(1, present=False)]})
    assert node.check().exit_code == 1


def test_the_node_itself_knows_how_many_gpus_it_should_have(node: Node) -> None:
    node.write("gpus.json", {"gpus": [a_gpu(0)]})
    ran = node.check()
    assert ran.exit_code == 1
    assert ran.report["expected_gpus"] == 2
    assert node.check("--expect-gpus", "1").exit_code == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"gpus": 3}', '{"gpus": [3, null]}'])
def test_a_damaged_node_folder_is_inconclusive(quick_node: Node, content: str) -> None:
    quick_node.write("gpus.json", content)
    assert quick_node.check("--expect-gpus", "0").exit_code == 3


def test_a_folder_that_is_not_there_is_inconclusive(node: Node) -> None:
    ran = node.bench.check("--json", GPU_HEALTH_SIMULATED=str(node.folder / "elsewhere"))
    assert ran.exit_code == 3


def test_a_fault_that_is_back_after_the_reboot_asks_for_a_replacement(node: Node) -> None:
    node.write("gpus.json", {"gpus": [a_gpu(0, present=False), a_gpu(1)]})
    node.write("agent.json", {"boot_id": "first"})
    earlier = node.folder / "report.json"
    assert node.check("--report", str(earlier)).exit_code == 1
    assert node.check("--previous-report", str(earlier)).exit_code == 1, (
        "the same boot: nothing was rebooted yet"
    )
    node.write("agent.json", {"boot_id": "second"})
    ran = node.check("--previous-report", str(earlier))
    assert ran.exit_code == 2
    assert ran.report["findings"][0]["rule"] == "gpus-missing/again"


def test_the_diagnostic_is_left_out_and_said_so(node: Node) -> None:
    ran = node.check("--level", "2")
    assert ran.exit_code == 0
    assert ("dcgm-diag", "not_tested") in [(c["name"], c["status"]) for c in ran.report["checks"]]
    assert node.check("--level", "2", "--require", "dcgm").exit_code == 3


@pytest.mark.parametrize("used", [{"memory_used_mib": 60_000}, {"utilization": 100}], ids=str)
def test_gpus_in_somebody_s_hands_are_not_called_healthy_where_they_must_be_idle(
    node: Node, used: dict[str, int]
) -> None:
    assert node.check("--require", "idle").exit_code == 0
    node.write("gpus.json", {"gpus": [a_gpu(0), a_gpu(1, **used)]})
    assert node.check().exit_code == 0, "a check that only looks may run beside a training"
    ran = node.check("--require", "idle")
    assert ran.exit_code == 3
    assert "idle is required" in ran.report["why"]
