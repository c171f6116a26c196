"""What a record keeps of a report, on both sides: the reason, and the GPUs by the name that stays theirs."""

from __future__ import annotations

from typing import Any

import pytest

from ecs_gpu_recovery.check_report import MOST, sentence

GPUS = [
    {"index": 0, "uuid": "GPU-a", "bus_id": "0000:01:00"},
    {"index": 1, "uuid": "GPU-b", "bus_id": "0000:02:00"},
    {"index": 2, "bus_id": "0000:03:00"},
]


def fault(gpu: str | None, action: str = "reboot") -> dict[str, Any]:
    return {"gpu": gpu, "action": action}


@pytest.mark.parametrize(
    ("findings", "kept"),
    [
        ([fault("0000:02:00")], "bad [GPU-b]"),
        ([fault("1", "replace")], "bad [GPU-b]"),
        ([fault("0000:01:00"), fault("GPU-b"), fault("0000:01:00")], "bad [GPU-a, GPU-b]"),
        ([fault("0000:01:00", "watch"), fault(None)], "bad"),
        ([fault("0000:03:00")], "bad"),
        ("nonsense", "bad"),
        ([7, {}], "bad"),
    ],
)
def test_a_sentence_names_the_gpus_at_fault_by_their_uuids(findings: object, kept: str) -> None:
    assert sentence({"why": "bad", "gpus": GPUS, "findings": findings}) == kept


def test_a_long_reason_is_cut_before_the_names_are() -> None:
    kept = sentence({"why": "x" * 2000, "gpus": GPUS, "findings": [fault("1")]})
    assert len(kept) == MOST
    assert kept.endswith("x [GPU-b]")


def test_a_report_without_a_reason_keeps_nothing() -> None:
    assert sentence({}) == sentence({"why": None, "gpus": None}) == ""
