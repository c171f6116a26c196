"""Recorded output from public sources, when it lies beside the repository: each file and its verdict."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.aws.parse import Kind, parse_event
from ecs_gpu_recovery.health import main
from ecs_gpu_recovery.health.judge import training_log

from .conftest import ROOT

SAMPLES = ROOT.parent / "shared" / "samples"

pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no recorded samples beside the repository")

# kind, file, verdict, codes that must be among the findings, and why this is the right verdict
TABLE: list[tuple[str, str, str, set[object], str]] = [
    ("dcgm-diag", "dcgm/derived_2.4.7_r2_fail.json", "reboot", {85, 4}, "remap pending, double-bit error"),
    ("dcgm-diag", "dcgm/derived_3.3.9_r2_fail.json", "reboot", {85, 4}, "the same in the 3.3 shape"),
    ("dcgm-diag", "dcgm/derived_4.x_r1_row_remap_reset.json", "reboot", {85}, "severity RESET only"),
    ("dcgm-diag", "dcgm/derived_4.x_r2_pass.json", "healthy", set(), "all tests pass"),
    ("dcgm-diag", "dcgm/derived_4.x_runtime_error.json", "inconclusive", set(), "it was running already"),
    (
        "dcgm-diag",
        "dcgm/diag_incorrect_virtualclient.json",
        "inconclusive",
        set(),
        "a shape DCGM never writes",
    ),
    ("dcgm-diag", "dcgm/diag_r1_gcm_0.json", "healthy", set(), "all pass, old names"),
    ("dcgm-diag", "dcgm/diag_r1_gcm_2.json", "healthy", {"Persistence Mode"}, "a setting warns"),
    ("dcgm-diag", "dcgm/diag_r1_virtualclient.json", "healthy", set(), "all pass"),
    ("dcgm-diag", "dcgm/diag_r2_virtualclient.json", "healthy", set(), "all pass"),
    ("dcgm-diag", "dcgm/diag_r3_virtualclient.json", "healthy", set(), "pass and one skip"),
    ("dcgm-diag", "dcgm/diag_schema_4.6.json", "inconclusive", set(), "a schema is no result"),
    ("dcgm-diag", "dcgm/error_codes.csv", "inconclusive", set(), "no JSON at all"),
    ("dcgm-diag", "dcgm/exit_codes.csv", "inconclusive", set(), "no JSON at all"),
    ("dcgm-diag", "dcgm/nvlink_e_fail_gcm.txt", "inconclusive", set(), "output of another command"),
    *(
        (
            "dcgm-diag",
            f"dcgm/diag_teststr_{name}_json.json",
            "inconclusive",
            {50},
            "stress below target, no witness",
        )
        for name in (
            "v2.1.4_nvvs_1_3",
            "v2.1.4_per_gpu",
            "v2.4.7_nvvs_1_3",
            "v2.4.7_per_gpu",
            "v3.3.9_per_gpu",
            "v4.6.0_per_gpu",
        )
    ),
    (
        "dcgm-health",
        "dcgm/derived_health_c_j_failure.json",
        "reboot",
        {4},
        "double-bit error, although dcgmi exits 0",
    ),
    ("dcgm-health", "dcgm/derived_health_c_j_warning.json", "healthy", {3}, "PCIe replays as a warning"),
    ("dcgm-health", "dcgm/health_check_virtualclient.json", "healthy", set(), "overall healthy"),
    ("nvidia-smi", "nvsmi/a100-sxm4-v12.xml", "healthy", set(), "remapped_rows is a bare N/A"),
    ("nvidia-smi", "nvsmi/a10g.xml", "healthy", {"pcie-width"}, "x8 of x16 is how this machine is built"),
    ("nvidia-smi", "nvsmi/h200-driver580-v13.xml", "healthy", set(), "recovery action None"),
    ("nvidia-smi", "nvsmi/rtx-3080-v13.xml", "healthy", set(), "no ECC at all"),
    ("nvidia-smi", "nvsmi/rtx-4000-sff-ada-v13.xml", "healthy", set(), "PCIe generation 1 while idle"),
    ("nvidia-smi", "nvsmi/tesla-t4.xml", "healthy", {"pcie-width"}, "x8 of x16, no retirement pending"),
    (
        "nvidia-smi",
        "nvsmi/query-gpu-1xH100.csv",
        "reboot",
        {"ecc-volatile"},
        "14 uncorrected errors since load",
    ),
    ("nvidia-smi", "nvsmi/query-gpu-8xH100.csv", "healthy", set(), "all counters zero"),
    ("kernel-log", "xid/h200_real.txt", "healthy", {31, 43}, "programs' faults on a sound H200"),
    (
        "kernel-log",
        "xid/curated_formats.txt",
        "reboot",
        {79, 154, 74, 140, 119, 120, 62, 95},
        "many faults, none for ever",
    ),
    ("kernel-log", "xid/lines_xid.txt", "reboot", {79, 48, 64, 119}, "many faults, none for ever"),
    ("kernel-log", "xid/lines_sxid.txt", "reboot", {20034, 24007}, "fatal switch errors"),
]


def explained(kind: str, file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main.run(["explain", f"--{kind}", str(file), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize(("kind", "name", "verdict", "codes", "why"), TABLE, ids=[row[1] for row in TABLE])
def test_a_sample_leads_to_its_verdict(
    kind: str, name: str, verdict: str, codes: set[object], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = SAMPLES / name
    if not file.exists():
        pytest.skip(f"{name} is not among the samples")
    answer = explained(kind, file, capsys)
    assert answer["verdict"] == verdict, why
    assert codes <= {f["code"] for f in answer["findings"]}


TABLES = {"xid/catalog.csv", "xid/resolution_buckets.csv", "xid/xid144_150_decode.csv", "log_signatures.csv"}
"""Lists of what there is, against which the rules themselves are tried, below."""


def test_no_sample_is_left_out() -> None:
    there = {str(file.relative_to(SAMPLES)) for file in SAMPLES.rglob("*") if file.is_file()}
    listed = {row[1] for row in TABLE} | TABLES | {name for name in there if name.endswith("INDEX.md")}
    assert {name for name in there - listed if not name.startswith("events/")} == set()
    assert [name for name in there if name.startswith("events/")]


@pytest.mark.parametrize(
    "file", sorted((SAMPLES / "events").glob("*.*json")), ids=lambda file: str(file.name)
)
def test_every_recorded_event_is_understood(file: Path) -> None:
    """What each means to a job is tried in tests/aws; here, that none is left over."""
    if file.name.startswith("api_"):
        assert parse_event(json.loads(file.read_text())).kind is Kind.MALFORMED, "an answer is no event"
        return
    text = file.read_text()
    events = list(map(json.loads, text.splitlines())) if file.suffix == ".ndjson" else [json.loads(text)]
    for event in events:
        seen = parse_event(event)
        assert seen.kind is not Kind.MALFORMED, seen.why
        assert seen.why


#: What each class of recorded words may lead to; none of them acts.
CLASSES = {
    "hardware-suspect": {"suspect", "watch"},
    "network-suspect": {"host", "watch"},
    "cascade": {"none", "watch"},
    "application": {"application", "config", "host"},
    "OOM": {"application", "watch"},
}


def test_every_recorded_word_of_a_training_log_is_understood(rules: Any) -> None:
    import csv

    with open(SAMPLES / "log_signatures.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found = training_log.judge([row["example"]], rules, datetime.now(UTC))
            actions = {f.action.value for f in found if f.source == training_log.TRAINING_LOG}
            kernel = {f.action.value for f in found if f.source != training_log.TRAINING_LOG}
            assert actions | kernel, row["example"]
            assert actions <= CLASSES[row["class"]], (row["example"], actions)
            assert not kernel or "Xid" in row["example"]


def test_only_programs_are_blamed_for_the_real_h200_lines(capsys: pytest.CaptureFixture[str]) -> None:
    answer = explained("kernel-log", SAMPLES / "xid" / "h200_real.txt", capsys)
    assert answer["application_fault"] is True
    assert {f["action"] for f in answer["findings"]} == {"application"}


@pytest.mark.parametrize("name", ["xid/lines_xid.txt", "xid/curated_formats.txt"])
def test_every_line_with_a_number_is_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    for line in (SAMPLES / name).read_text().splitlines():
        found = re.search(r"Xid \([^)]*\): ([0-9]+)(?:,|$| )", line)
        if found:
            (tmp_path / "line").write_text(line)
            answer = explained("kernel-log", tmp_path / "line", capsys)
            assert next(f["code"] for f in answer["findings"]) == int(found[1]), line


def test_the_classes_of_nvidias_catalogue_are_kept(rules: Any) -> None:
    """RESTART_APP and IGNORE never act by themselves, RESET_GPU and RESTART_BM do."""
    import csv

    with open(SAMPLES / "xid" / "catalog.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            action = rules.rule("xid", row["xid"]).action.value
            if row["action_class"] in ("RESET_GPU", "RESTART_BM", "WORKFLOW_XID_48", "RESTART_VM"):
                assert action == "reboot", row["xid"]
            elif row["action_class"] in ("RESTART_APP", "IGNORE", "WORKFLOW_XID_45"):
                assert action in ("application", "watch", "none"), row["xid"]


def test_nvlink_decoding_agrees_with_nvidias_table() -> None:
    import csv

    from ecs_gpu_recovery.health.judge import nvlink

    meaning = {"RESET_GPU": "reset", "IGNORE": "ignore", "XID_154_EVAL": "application"}
    with open(SAMPLES / "xid" / "xid144_150_decode.csv", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert len(rows) == 95
    for row in rows:
        name = row[1].partition("/")[0].split()[0]
        status = row[4].partition("/")[0] or "0x00000000"
        for patterns, bucket in ((row[2:4], row[5]), (row[6:8], row[8])):
            for pattern in filter(None, patterns):
                word = int(pattern.replace("-", "0"), 2)
                text = f"{name} Fatal XC0 i0 Link 00 (0x{word:08x} {status} 0x0)"
                assert nvlink.decode(int(row[0]), text) == meaning[bucket], (row[:6], text)
