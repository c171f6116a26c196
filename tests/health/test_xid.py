"""What Xid and SXid messages lead to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ecs_gpu_recovery.health.judge import nvlink
from ecs_gpu_recovery.health.policy import Policy
from ecs_gpu_recovery.health.sources import recovery

from .conftest import Explain

GPU = "0000:01:00"


def xid(code: int, text: str = "", gpu: str = GPU, at: str = "") -> str:
    return f"{at} NVRM: Xid (PCI:{gpu}): {code}, pid=7, name=python3, {text}\n"


def by_code(answer: dict[str, Any], code: int) -> dict[str, Any]:
    found: dict[str, Any] = next(f for f in answer["findings"] if f["code"] == code)
    return found


#: What a number on its own leads to: the verdict and what is done about it.
LEADS_TO = {
    ("healthy", "application"): [
        *(8, 11, 13, 25, 31, 32, 39, 43, 45, 60, 68, 69, 72, 76, 80, 85, 89, 94, 99, 105, 126, 135, 137, 139)
    ],
    ("healthy", "watch"): [
        *(37, 38, 44, 63, 66, 67, 92, 93, 121, 123, 141, 152, 153, 157, 159, 160, 161, 162, 165)
    ],
    ("reboot", "reboot"): [
        *(46, 48, 61, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158)
    ],
    ("replace", "replace"): [54, 142],
    ("healthy", "warn"): [1, 42, 167, 172, 173, 177, 500, 99999],  # unknown: it does not act
}
HARMLESS = ("application", "watch", "none")


@pytest.mark.parametrize(
    ("code", "verdict", "action"), [(code, *to) for to, codes in LEADS_TO.items() for code in codes]
)
def test_what_a_number_leads_to(explain: Explain, code: int, verdict: str, action: str) -> None:
    answer = explain(kernel_log=xid(code))
    assert (answer["verdict"], answer["application_fault"]) == (verdict, action == "application")
    found = by_code(answer, code)
    assert (found["action"], found["gpu"]) == (action, GPU)
    assert str(code) in found["evidence"]


#: Numbers that NVIDIA's catalogue answers with "restart the program" or "ignore", and with a reset or a restart.
NO_REPAIR = [
    *(8, 11, 13, 14, 25, 31, 32, *range(37, 42), 43, 44, 45, 60, 63, 66, 67, *range(68, 73), 75, 76, 77, 80),
    *(*range(82, 87), 88, 89, 92, 93, 94, *range(96, 109), 121, *range(126, 136), 137, 139, 141, 152, 153),
    *(157, 160, 161),
]
REPAIR = [46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158]


def test_the_classes_of_nvidias_catalogue_are_kept(rules: Policy) -> None:
    assert {str(rules.rule("xid", code).action.value) for code in REPAIR} == {"reboot"}
    acts = {code for code in NO_REPAIR if rules.rule("xid", code).action.value not in HARMLESS}
    assert acts == set()


def test_an_unknown_number_acts_with_a_second_witness(explain: Explain) -> None:
    result = {"entity_group": "GPU", "entity_id": 0, "status": "Fail"}
    tests = [{"name": "pulse_test", "results": [result]}]
    failed = json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": tests}]}})
    assert explain(dcgm_diag=failed)["verdict"] == "inconclusive"
    smi = (
        "<nvidia_smi_log><gpu id='00000000:01:00.0'><minor_number>0</minor_number>"
        "<fabric><state>In Progress</state></fabric></gpu></nvidia_smi_log>"
    )
    answer = explain(kernel_log=xid(500), nvidia_smi=smi)
    assert answer["verdict"] == "reboot"
    assert all(f["rule"].endswith("/second-witness") for f in answer["findings"])


def wish(for_what: str, gpu: str = GPU) -> str:
    """The driver's own word on what a GPU needs."""
    return xid(154, f"GPU recovery action changed from 0x1 (GPU Reset Required) to {for_what}", gpu)


def test_the_last_word_of_the_driver_counts_for_each_gpu(explain: Explain) -> None:
    other = "0000:02:00"
    log = wish("0x1 (GPU Reset Required)") + wish("0x0 (None)") + wish("0x0 (None)", other)
    assert explain(kernel_log=log)["verdict"] == "healthy"
    log += wish("0x2 (Node Reboot Required)", other)
    answer = explain(kernel_log=log)
    assert answer["verdict"] == "reboot"
    assert answer["findings"][0]["gpu"] == other


def test_a_fault_the_driver_took_back_is_only_watched(explain: Explain) -> None:
    back = wish("0x0 (None)")
    assert explain(kernel_log=xid(119) + back)["verdict"] == "healthy"
    assert explain(kernel_log=back + xid(119))["verdict"] == "reboot"
    assert explain(kernel_log=xid(119, gpu="0000:02:00") + back)["verdict"] == "reboot"
    assert explain(kernel_log=xid(54) + back)["verdict"] == "replace"


def test_the_driver_may_ask_for_a_reset_after_a_programs_fault(explain: Explain) -> None:
    answer = explain(kernel_log=xid(31) + wish("0x4 (Drain and Reset)"))
    assert (answer["verdict"], answer["application_fault"]) == ("reboot", False)


def test_clean_up_after_another_fault_is_a_symptom(explain: Explain) -> None:
    answer = explain(kernel_log=xid(79) + xid(45, "Ch 00000008"))
    assert by_code(answer, 45)["action"] == "none"
    assert answer["application_fault"] is False


def test_clean_up_that_names_its_cause_follows_the_cause(explain: Explain) -> None:
    assert explain(kernel_log=xid(45, "Ch 00000001 caused by previous Xid 119"))["verdict"] == "reboot"
    answer = explain(kernel_log=xid(45, "Ch 00000001 caused by previous Xid 149"))
    assert (answer["verdict"], answer["findings"][0]["action"]) == ("healthy", "warn")
    with_cause = xid(31) + xid(45, "Ch 00000001 caused by previous Xid 31")
    assert explain(kernel_log=with_cause)["verdict"] == "healthy"


def test_one_fault_of_many_lines_is_one_finding(explain: Explain) -> None:
    answer = explain(kernel_log=xid(119) * 40)
    assert len(answer["findings"]) == 1
    assert answer["findings"][0]["count"] == 40
    assert answer["verdict"] == "reboot"


def test_a_stuck_gpu_that_repeats_itself_is_still_one_incident(explain: Explain) -> None:
    lines = "".join(
        xid(119, at=f"2026-11-14T{h:02d}:{m:02d}:00+00:00") for h in range(20) for m in range(0, 60, 5)
    )
    assert explain(kernel_log=lines)["verdict"] == "reboot"


def test_separate_incidents_within_a_day_ask_for_a_replacement(explain: Explain) -> None:
    lines = [xid(79, at=f"2026-11-14T{hour:02d}:00:00+00:00") for hour in (1, 7, 13)]
    assert explain(kernel_log="".join(lines[:2]))["verdict"] == "reboot"
    answer = explain(kernel_log="".join(lines))
    assert (answer["verdict"], answer["findings"][0]["rule"]) == ("replace", "xid-off-bus/repeat")


def test_two_links_failing_are_not_one_link_failing_twice(explain: Explain) -> None:
    def lines(links: list[int]) -> str:
        text = "NVLink: fatal error detected on link {}(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
        return "".join(
            xid(74, text.format(link), at=f"2026-11-14T{hour:02d}:00:00+00:00")
            for link, hour in zip(links, (1, 7, 13), strict=True)
        )

    assert explain(kernel_log=lines([3, 4, 5]))["verdict"] == "reboot"
    assert explain(kernel_log=lines([3, 3, 3]))["verdict"] == "replace"


def test_a_program_failing_on_one_gpu_all_day_is_noted_beside_its_fault(explain: Explain) -> None:
    lines = "".join(xid(31, at=f"2026-11-14T{hour:02d}:00:00+00:00") for hour in range(1, 7))
    answer = explain(kernel_log=lines)
    assert (answer["verdict"], answer["application_fault"]) == ("healthy", True)
    assert {f["action"] for f in answer["findings"]} == {"application", "warn"}


def test_an_nvlink_error_to_work_on_with_is_only_watched(explain: Explain) -> None:
    text = "NVLink: fatal error detected on link 2(0x800001, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)"
    assert explain(kernel_log=xid(74, text))["findings"][0]["action"] == "watch"
    assert not nvlink.is_benign_74("(0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")


@pytest.mark.parametrize(
    ("code", "text", "meaning"),
    [
        (144, "SAW_MVB Fatal XC0 i0 Link 0 (0x00000001 0x00000010 0x0 0x0 0x0 0x0)", "reset"),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000021 0x00000004 0x0)", "ignore"),
        (145, "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040 0x0)", "reset"),
        (145, "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000008 0x0)", "application"),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x1)", "ignore"),
        (145, "RLW_RXPIPE Fatal XC0 i0 Link 13 (0x00000086 0x00000001 0x0)", "reset"),
        (145, "RLW_RXPIPE Fatal XC0 i0 Link 13 (0x000004c2 0x00000001 0x0)", "reset"),
        (145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008 0x0)", "application"),
        (146, "TLW_RX_PIPE1 Fatal XC0 i0 Link 00 (0x0000000b 0x00000004 0x0)", "reset"),
        (147, "TREX Nonfatal XC0 i0 Link 00 (0x0000000e 0x00000001 0x0)", "ignore"),
        (148, "NVLPW Nonfatal XC0 i0 Link 00 (0x0000000f 0x80000000 0x0)", "ignore"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x0)", "reset"),
        (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 08 (0x02600011 0x00000000 0x0)", "ignore"),
        (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 08 (0x03f00011 0x00000000 0x0)", "undecoded"),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x0)", "reset"),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001 0x0)", "ignore"),
        (149, "NETIR_MFDE_EVENT Nonfatal XC0 i0 Link 01 (0x00000014 0x00000003 0x0)", "ignore"),
        (149, "NETIR_MFDE_EVENT Fatal XC0 i0 Link 01 (0x00000014 0x00000005 0x0)", "reset"),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000 0x0)", "reset"),
        (145, "RLW_REMAP Nonfatal XC1 i0 Link 10", "undecoded"),
        (145, "NEW_UNIT Fatal XC1 i0 Link 10 (0x00000044 0x00000001)", "undecoded"),
        (144, "SAW_MVB Fatal XC0 i0 Link 0 (0x00000001 0x00000003 0x0)", "reset"),
    ],
)
def test_nvlink_numbers_are_decoded(explain: Explain, code: int, text: str, meaning: str) -> None:
    actions = {"reset": "reboot", "ignore": "watch", "application": "application", "undecoded": "warn"}
    assert nvlink.decode(code, text) == meaning
    assert explain(kernel_log=xid(code, text))["findings"][0]["action"] == actions[meaning]


SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): "


def test_a_fatal_switch_error_reboots_and_its_companion_lines_count_once(explain: Explain) -> None:
    log = (
        f"[1.0] {SWITCH}20034, Fatal, Link 63 LTSSM Fault Up\n"
        f"[1.1] {SWITCH}20034, Severity 1 Engine instance 63 Sub-engine instance 00\n"
        f"[1.2] {SWITCH}20034, Data {{0x10000000, 0x10000000}}\n"
    )
    answer = explain(kernel_log=log)
    assert answer["verdict"] == "reboot"
    assert [(f["code"], f["count"], f["gpu"]) for f in answer["findings"]] == [(20034, 1, None)]


def test_other_switch_errors_do_not_act(explain: Explain) -> None:
    for line, action in (
        ("12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", "watch"),
        ("20123, Unknown error", "warn"),
        ("12033, Severity 1 Engine instance 00", "warn"),
    ):
        answer = explain(kernel_log=f"{SWITCH}{line}")
        assert (answer["verdict"], answer["findings"][0]["action"]) == ("healthy", action), line


def test_a_gpu_that_could_not_be_started_is_suspicious(explain: Explain) -> None:
    line = "[9.0] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0xffff:1290)\n"
    answer = explain(kernel_log=line * 3)
    assert (answer["verdict"], len(answer["findings"])) == ("inconclusive", 1)


def test_the_line_without_a_number_and_xid_79_are_one_finding(explain: Explain) -> None:
    log = "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n" + xid(79)
    answer = explain(kernel_log=log)
    assert [(f["code"], f["count"]) for f in answer["findings"]] == [(79, 2)]


#: The words of drivers and programs, by the action that they mean.
WISHES = {
    "none": ["None"],
    "gpu_reset": ["Reset", "GPU Reset Required"],
    "node_reboot": ["Reboot", "Node Reboot Required"],
    "drain_p2p": ["Drain P2P"],
    "drain_and_reset": ["Drain and Reset", "drain_and_reset"],
    "system_reboot": ["System Reboot"],
    "bus_reset": ["Bus Reset"],
    "recover_imex_domain": ["Recover IMEX Domain"],
    "unknown": ["", "Sing"],
}


def test_the_words_for_a_recovery_action() -> None:
    for action, texts in WISHES.items():
        assert {recovery.from_words(text) for text in texts} == {action}


def test_what_a_lost_gpu_goes_on_to_say_for_days_is_one_fault(explain: Explain) -> None:
    """Each question to it is answered so until the reboot that may cure it; that is no proof of broken hardware."""
    words = "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)"
    lines = [f"2026-11-15T{hour:02d}:00:00+00:00 kernel: {words}" for hour in range(0, 24, 4)]
    answer = explain(kernel_log="\n".join(lines))
    assert (answer["verdict"], answer["findings"][0]["rule"]) == ("reboot", "kernel-driver-asks")
