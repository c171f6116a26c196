"""dcgmi's JSON from release 2 to 4, and its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ecs_gpu_recovery.health.policy import Policy
from ecs_gpu_recovery.health.sources import dcgm, dcgm_codes

from .conftest import Explain
from .test_kernel_log import rows

REMAP = "GPU 3 had memory errors and row remappings are pending"


def diag(*tests: dict[str, Any] | None, root: str = "DCGM Diagnostic") -> str:
    return json.dumps({root: {"test_categories": [{"category": "Hardware", "tests": list(tests)}, None]}})


def v2(text: str | None, status: str = "Fail", gpu: str | None = "3", name: str = "GPU Memory") -> str:
    result: dict[str, Any] = {"status": status}
    if gpu is not None:
        result["gpu_ids"] = gpu
    if text is not None:
        result["warnings"] = text
    return diag({"name": name, "results": [{"status": "Pass"}, result]}, root="DCGM GPU Diagnostic")


def v3(
    code: int, text: str, status: str = "Fail", severity: int = 0, key: str = "warning", gpu: object = "3"
) -> str:
    entry = {"error_id": code, "error_category": 1, "error_severity": severity, key: text}
    result = {"gpu_id": gpu, "status": status, "warnings": [None, entry]}
    return diag({"name": "Memory", "results": [None, result]}, None, root="DCGM GPU Diagnostic")


def v4(code: int, text: str = "", status: str = "Fail", severity: int = 0, group: str = "GPU") -> str:
    entry = {"error_id": code, "error_category": 1, "error_severity": severity, "warning": text}
    good = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass"}
    bad = {"entity_group": group, "entity_group_id": 1, "entity_id": 3, "status": status, "warnings": [entry]}
    summary = {"status": status, "warnings": [entry]}
    return diag({"name": "memory", "results": [good, bad], "test_summary": summary})


@pytest.mark.parametrize(
    "text",
    [v2(REMAP), v2(REMAP, gpu=None), v3(85, REMAP), v3(85, REMAP, key="warnings", gpu=3), v4(85, REMAP)],
    ids=["2.x", "2.x deployment", "3.x", "3.x deployment", "4.x"],
)
def test_every_release_tells_the_same_story(explain: Explain, text: str) -> None:
    answer = explain(dcgm_diag=text)
    assert answer["verdict"] == "reboot"
    assert [(f["gpu"], f["code"], f["count"]) for f in answer["findings"]] == [("3", 85, 1)]


def test_release_3_2_has_the_number_beside_the_text(explain: Explain) -> None:
    result = {"gpu_ids": "3", "status": "Fail", "warnings": "words of their own", "error_id": 52}
    answer = explain(dcgm_diag=diag({"name": "Memory", "results": [result]}, root="DCGM GPU Diagnostic"))
    assert answer["verdict"] == "replace"


#: What a number on its own leads to: the verdict and what is done about it.
LEADS_TO = {
    ("reboot", "reboot"): [4, 6, 14, 80, 81, 83, 85, 109, 120, 125, 126, 127, 128, 129],
    ("replace", "replace"): [7, 8, 52, 58, 79, 95, 111, 118],
    ("inconclusive", "not_tested"): [22, 26, 44, 56, 66, 91],
    ("inconclusive", "suspect"): [30, 45, 50, 62, 63, 110],
    ("healthy", "application"): [131],
}


@pytest.mark.parametrize(
    ("code", "verdict", "action"), [(code, *to) for to, codes in LEADS_TO.items() for code in codes]
)
def test_what_an_error_leads_to(explain: Explain, code: int, verdict: str, action: str) -> None:
    answer = explain(dcgm_diag=v4(code))
    assert (answer["verdict"], answer["findings"][0]["action"]) == (verdict, action)
    assert answer["application_fault"] is (action == "application")


@pytest.mark.parametrize("code", [18, 20, 23, 28, 29, 46, 47, 48, 55, 60, 68, 72, 78, 82, 96, 112, 117])
def test_a_wrong_setting_never_reboots(explain: Explain, code: int) -> None:
    answer = explain("--dcgm-exit", "226", dcgm_diag=v4(code, severity=2))
    assert (answer["verdict"], answer["findings"][0]["action"]) == ("healthy", "config")


def test_a_number_newer_than_the_table_is_judged_by_its_severity(explain: Explain) -> None:
    verdicts = {2: "replace", 6: "reboot", 1: "healthy", 5: "healthy"}
    for severity, verdict in (verdicts | dict.fromkeys((0, 3, 4, 99), "inconclusive")).items():
        assert explain(dcgm_diag=v4(999, "new words", severity=severity))["verdict"] == verdict


def test_the_table_counts_before_the_severity_in_the_message(explain: Explain) -> None:
    text = v3(29, "Persistence mode for GPU 3 is disabled.", severity=2)
    assert explain(dcgm_diag=text)["verdict"] == "healthy"


@pytest.mark.parametrize("status", ["Skip", "SKIP", "Skipped", "Not Run", "", "Pass", "PASS"])
def test_only_a_failed_test_counts(explain: Explain, status: str) -> None:
    text = v4(52, "Found 3 faulty memory elements on GPU 3", status=status)
    assert explain(dcgm_diag=text)["verdict"] == "healthy"


def test_a_warning_weighs_less_than_a_failure(explain: Explain) -> None:
    assert explain(dcgm_diag=v4(52, status="Warn"))["verdict"] == "healthy"
    assert explain(dcgm_diag=v4(84, status="Warn"))["verdict"] == "healthy"
    assert explain(dcgm_diag=v4(84, status="Fail"))["verdict"] == "reboot"
    assert explain(dcgm_diag=v4(126, status="WARN"))["verdict"] == "reboot"


@pytest.mark.parametrize(
    ("xid", "verdict"), [(79, "reboot"), (31, "healthy"), (54, "replace"), (777, "healthy")]
)
def test_an_xid_that_dcgm_reports_follows_the_xid_rules(explain: Explain, xid: int, verdict: str) -> None:
    assert explain(dcgm_diag=v4(101, f"Detected XID {xid} for GPU 3"))["verdict"] == verdict


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("Persistence Mode", "healthy"),
        ("Environment Variables", "healthy"),
        ("Permissions and OS Blocks", "healthy"),
        ("CUDA Main Library", "inconclusive"),
        ("GPU Memory", "inconclusive"),
    ],
)
def test_without_text_or_number_the_name_of_the_test_counts(
    explain: Explain, name: str, verdict: str
) -> None:
    assert explain(dcgm_diag=v2(None, gpu=None, name=name))["verdict"] == verdict


def test_a_list_of_gpus_is_told_apart_by_the_texts(explain: Explain) -> None:
    texts = [
        "Detected 1 volatile double-bit ECC error(s) in GPU 0.",
        "Detected 2 volatile double-bit ECC error(s) in GPU 2.",
    ]
    result = {"gpu_ids": "0,1,2,3", "status": "FAIL", "warnings": texts}
    answer = explain(dcgm_diag=diag({"name": "memory", "results": [result]}, root="DCGM GPU Diagnostic"))
    assert [f["gpu"] for f in answer["findings"]] == ["0", "2"]


def test_a_processor_that_fails_is_the_hosts_problem(explain: Explain) -> None:
    answer = explain(dcgm_diag=v4(95, "CPU EUD failed", group="CPU"))
    assert (answer["verdict"], answer["host_ok"]) == ("healthy", False)


def test_noise_around_the_json_does_not_matter(explain: Explain) -> None:
    noisy = f"Successfully ran diagnostic {{for group}}.\r\n[warn] {{\n{v4(85, REMAP)}\nbye }}"
    assert explain(dcgm_diag=noisy)["verdict"] == "reboot"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "not json",
        v4(52)[:200],
        '{"DCGM Diagnostic": []}',
        '{"DCGM Diagnostic": {}}',
        '{"DCGM Diagnostic": null}',
        '{"DCGM GPU Diagnostic": {"test_categories": [null, {"tests": null}, {"tests": [null, 3]}]}}',
        '{"DCGM GPU Diagnostic": {"test_categories": [{"tests": [{"results": 3}, {"results": [7]}]}]}}',
        '{"DCGM Diagnostic": {"runtime_error": "the diagnostic is already running"}}',
        diag({"name": "memory", "results": [{"status": "Skip"}]}),
        '{"body": {"Overall Health": {"value": "Failure"}}}',
        "[" * 100_000,
        '{"a":' * 5_000,
    ],
)
def test_what_is_no_diagnostic_proves_nothing(explain: Explain, text: str) -> None:
    answer = explain(dcgm_diag=text)
    assert (answer["verdict"], answer["findings"]) == ("inconclusive", [])
    assert len(answer["why"]) > 20


@pytest.mark.parametrize(
    ("verdict", "codes"),
    [("reboot", (205, 237, 238)), ("inconclusive", (226, 217, 235, 199, 204, 254, 255, 137, 1))],
)
def test_the_exit_code_alone(explain: Explain, verdict: str, codes: tuple[int, ...]) -> None:
    said = {code: explain("--dcgm-exit", str(code), dcgm_diag="Error: nothing useful") for code in codes}
    assert {code: answer["verdict"] for code, answer in said.items()} == dict.fromkeys(codes, verdict)


def test_no_not_tested_exit_code_is_ever_a_bad_gpu(rules: Policy) -> None:
    for code in [*range(190, 205), 215, 217, 227, 235, 254, 255]:
        assert dcgm.judge_exit(code, source=dcgm.DIAG, policy=rules).action.value == "not_tested"


def health(value: str, *systems: tuple[str, str, list[str]], gpu: str = "3") -> str:
    errors = {name: {"value": state, "overflow": parts} for name, state, parts in systems}
    body: dict[str, Any] = {"Overall Health": {"value": value}}
    if errors:
        body["GPU"] = {"children": {gpu: {"value": value, "children": {"Errors": {"children": errors}}}}}
    return json.dumps({"body": body, "header": ["Health Monitor Report"]})


CUT = ["Detected 1 volatile double-bit", "ECC error(s) in GPU 3."]
TWO = "row remapping failed. A pending retired page was found"
WISH = "GPU 3 fault may have ... Recovery action: 2 (NODE_REBOOT)."


@pytest.mark.parametrize(
    ("value", "system", "said", "verdict", "actions"),
    [
        ("Healthy", "", [], "healthy", []),
        ("Failure", "Memory system", CUT, "reboot", ["reboot"]),
        ("Failure", "Memory system", ["SRAM Threshold Count exceeded on GPU 3: 9"], "replace", ["replace"]),
        ("Warning", "PCIe system", ["more than 8 PCIe replays per minute"], "healthy", ["watch"]),
        ("Failure", "Driver", ["words nobody knows"], "inconclusive", ["suspect"]),
        ("Warning", "Thermal system", ["words nobody knows"], "healthy", ["watch"]),
        ("Failure", "", [], "inconclusive", ["suspect"]),
        ("Failure", "Memory system", [TWO], "reboot", ["reboot", "reboot"]),
        ("Failure", "Driver", [WISH], "reboot", ["reboot"]),
        ("Warning", "Memory", [REMAP], "reboot", ["reboot"]),
    ],
)
def test_health_is_read_from_the_body_and_not_from_the_exit_code(
    explain: Explain, value: str, system: str, said: list[str], verdict: str, actions: list[str]
) -> None:
    answer = explain(dcgm_health=health(value, *([(system, value, said)] if system else [])))
    assert (answer["verdict"], [f["action"] for f in answer["findings"]]) == (verdict, actions)
    assert {f["gpu"] for f in answer["findings"]} <= {"3", None}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"body": {}}',
        '{"body": {"Overall Health": null}}',
        '{"body": {"Overall Health": {"value": "?"}}}',
        "x",
    ],
)
def test_health_without_a_verdict_proves_nothing(explain: Explain, text: str) -> None:
    assert explain(dcgm_health=text)["verdict"] == "inconclusive"


def test_every_number_of_the_table_has_a_rule_or_a_severity(rules: Policy) -> None:
    for code in dcgm_codes.CODES:
        assert rules.exact("dcgm", code) or dcgm_codes.severity(code) in ("TRIAGE", "UNKNOWN")


@pytest.mark.parametrize(
    ("code", "exit_code", "verdict"),
    [(122, 205, "healthy"), (24, 205, "inconclusive"), (52, 205, "replace"), (29, 238, "reboot")],
)
def test_a_rating_that_the_text_explains_is_no_second_proof(
    explain: Explain, code: int, exit_code: int, verdict: str
) -> None:
    """205 says that some error is rated ISOLATE. DCGM rates a missing daemon so, and that is no bad GPU."""
    assert explain("--dcgm-exit", str(exit_code), dcgm_diag=v4(code))["verdict"] == verdict


@pytest.mark.parametrize(("rows", "summary"), [("Pass", "Fail"), ("Warn", "Fail"), ("Pass", "Warn")])
def test_a_table_is_judged_as_the_same_run_in_json(explain: Explain, rows: str, summary: str) -> None:
    said = "Detected 1 ecc_dbe_volatile_total for GPU 0"
    line = "+---------------------------+------------------------------------------------+"
    table = [line, "| Diagnostic                | Result                                         |", line]
    table += [f"| memory | {summary} |", f"| | GPU0: {rows} |", f"| Warning: GPU0 | {said} |", line]
    result = {"entity_group": "GPU", "entity_id": 0, "status": rows, "warnings": [{"warning": said}]}
    test = {
        "name": "memory",
        "results": [result],
        "test_summary": {"status": summary, "warnings": [{"warning": said}]},
    }
    as_table, as_json = explain(dcgm_diag="\n".join(table)), explain(dcgm_diag=diag(test))
    assert as_table["verdict"] == as_json["verdict"] == ("replace" if summary == "Fail" else "healthy")


def test_a_run_that_was_cut_off_beside_a_whole_one_is_not_healthy(explain: Explain) -> None:
    answer = explain(dcgm_diag=v4(29) + "\n" + v4(29)[:150])
    assert (answer["verdict"], "cut off" in answer["why"]) == ("inconclusive", True)


@pytest.mark.parametrize("words", ["{" * 300, '{"level": "info", "x": {"y": 1}}\n' * 400])
def test_the_json_is_found_behind_any_number_of_others(explain: Explain, words: str) -> None:
    assert explain(dcgm_diag=f"{words}\n{v4(52)}")["verdict"] == "replace"


@pytest.mark.parametrize(("number", "words"), rows("dcgm-messages.txt"))
def test_a_message_of_dcgm_is_known_without_its_number(number: str, words: str) -> None:
    assert dcgm_codes.codes_in(words) == [int(number)]
