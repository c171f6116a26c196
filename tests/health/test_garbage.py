"""Whatever is put in: nothing raises, and without evidence nothing is rebooted or replaced."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecs_gpu_recovery.health import main
from ecs_gpu_recovery.health.judge import nvlink
from ecs_gpu_recovery.health.sources import kernel_log, nvsmi, recovery

from .conftest import ROOT, Explain
from .test_dcgm import v2, v3, v4
from .test_nvidia_smi import TEXT, xml

KINDS = ("kernel-log", "dcgm-diag", "dcgm-health", "nvidia-smi")
ON_DISK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

WORDS = st.sampled_from(
    [
        *("NVRM:", " Xid ", "(PCI:", "0000:01:00", "): ", "SXid", "154, ", "{", "}", "[", "]", ":", "[ 1.0]"),
        *('"DCGM Diagnostic"', '"status"', '"Fail"', "null", "<nvidia_smi_log>", "<gpu>", "</gpu>", "Yes"),
        *("GPU 00000000:01:00.0", " : ", "changed from 0x0 (None) to ", "0x", "Fatal", "index, pci.bus_id\n"),
        *("\n", "\x00", "\ufffd", "\r\n"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("kind", main._RECORDINGS)
@ON_DISK
@given(data=st.binary(max_size=400))
def test_any_bytes_prove_nothing(kind: str, data: bytes, explain: Explain) -> None:
    assert explain(**{kind: data})["verdict"] in ("healthy", "inconclusive")


@pytest.mark.parametrize("kind", KINDS)
@ON_DISK
@given(words=st.lists(WORDS | st.text(max_size=6), max_size=30))
def test_words_of_the_trade_in_any_order_never_act_without_evidence(
    kind: str, words: list[str], explain: Explain
) -> None:
    answer = explain(**{kind: "".join(words).encode(errors="replace")})
    if answer["verdict"] in ("reboot", "replace"):
        assert any(
            f["action"] == answer["verdict"] and f["evidence"] and f["rule"] for f in answer["findings"]
        )


@pytest.mark.parametrize("kind", ["dcgm-diag", "dcgm-health"])
@ON_DISK
@given(body=JSON)
def test_any_json_under_the_right_root_is_survived(kind: str, body: object, explain: Explain) -> None:
    document = {"DCGM Diagnostic": {"test_categories": body}, "body": {"Overall Health": body, "GPU": body}}
    assert explain(**{kind: json.dumps(document)})["verdict"] in ("healthy", "inconclusive")


@ON_DISK
@given(
    result=st.dictionaries(
        st.sampled_from(["gpu_id", "gpu_ids", "entity_id", "entity_group", "warnings", "error_id"]), JSON
    )
)
def test_any_value_in_a_failed_result_is_survived(result: dict[str, Any], explain: Explain) -> None:
    tests = [{"name": "memory", "results": [{**result, "status": "Fail"}]}]
    document = {"DCGM Diagnostic": {"test_categories": [{"tests": tests}]}}
    assert explain(dcgm_diag=json.dumps(document))["findings"] != []


GOOD = {
    "dcgm-diag": [v2("row remappings are pending"), v3(85, "x"), v4(52)],
    "nvidia-smi": [xml(volatile="1"), TEXT],
    "kernel-log": ["[1.0] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"],
}


@pytest.mark.parametrize("kind", GOOD)
@ON_DISK
@given(data=st.data())
def test_real_output_cut_anywhere_is_survived(kind: str, data: st.DataObject, explain: Explain) -> None:
    text = data.draw(st.sampled_from(GOOD[kind]))
    cut = data.draw(st.integers(0, len(text)))
    explain(**{kind: text[:cut]})


@given(line=st.text(max_size=200))
def test_any_line_is_survived(line: str) -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)
    kernel_log.parse_line(f"NVRM {line}", now)
    kernel_log.parse_line(f"{line} NVRM: Xid (PCI:0000:01:00): 79, {line}", now)
    kernel_log.parse_line(f'{{"MESSAGE":[{line}]}}', now)
    kernel_log.parse([f"{line}NVRM:{line}\\nNVRM: Xid {line}SXid"], now)
    kernel_log.parse(
        ["{", line, "}", f"__CURSOR={line}", f"MESSAGE={line}NVRM: Xid 79", f"[+1.0] {line}"], now
    )
    kernel_log.looks_like_kernel_log(line)
    kernel_log.bus_id(line)
    kernel_log.parse_time(line)
    recovery.from_xid_text(f"changed from {line} to {line}")
    nvsmi.parse(line)


@given(
    xid=st.integers(144, 150),
    word=st.integers(0, 0xFFFFFFFF),
    status=st.integers(0, 0xFFFFFFFF),
    name=st.text(max_size=10),
)
def test_any_nvlink_number_has_a_meaning(xid: int, word: int, status: int, name: str) -> None:
    text = f"{name} Fatal XC0 i0 Link 0 (0x{word:08x} 0x{status:08x})"
    assert nvlink.decode(xid, text) in ("reset", "ignore", "application", "undecoded")


SIZE = 2_000_000
DEADLINE_S = 120.0
PIECES = {
    "one word": "a",
    "blanks behind a table's edge": " ",
    "braces": "{",
    "open objects": '{"a":',
    "openings of XML": "<nvidia_smi_log>",
    "roots": '"DCGM Diagnostic": {',
    "messages in one line": "NVRM: Xid (PCI:0000:cb:00): 154, changed from ",
    "rows": "0, 00000000:10:00.0, 0\n",
    "training": "INFO step 100 loss: 2.31 lr 0.0003 tokens/s 12345\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "training-log"])
@pytest.mark.parametrize("piece", PIECES)
def test_it_ends(kind: str, piece: str, tmp_path: Path) -> None:
    """The deadline is some fifty times what it takes; a reader that looks back at every step needs hours."""
    head = "|0 a" if piece.startswith("blanks") else "index, pci.bus_id, remapped_rows.pending\n"
    file = tmp_path / "input"
    file.write_text(head + PIECES[piece] * (SIZE // len(PIECES[piece])))
    argv = [sys.executable, "-m", "ecs_gpu_recovery.health", "explain", f"--{kind}", str(file), "--json"]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False, timeout=DEADLINE_S)
    assert (ran.returncode, ran.stderr) == (0, b"")
