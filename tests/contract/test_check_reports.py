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


@pytest.mark.parametrize(
    ("driver", "findings", "kept"),
    [
        ("580.95.05", [fault("1")], "bad [GPU-b] (driver 580.95.05)"),
        ("580.95.05", [fault(None)], "bad (driver 580.95.05)"),
        ("580.95.05", [fault("1", "watch")], "bad"),
        (None, [fault("1")], "bad [GPU-b]"),
        ("580 <b>", [fault("1")], "bad [GPU-b]"),
    ],
)
def test_a_sentence_names_the_driver_where_a_gpu_is_at_fault(
    driver: object, findings: object, kept: str
) -> None:
    assert sentence({"why": "bad", "gpus": GPUS, "findings": findings, "driver": driver}) == kept


def test_a_long_reason_is_cut_before_the_names_are() -> None:
    kept = sentence({"why": "x" * 2000, "gpus": GPUS, "findings": [fault("1")]})
    assert len(kept) == MOST
    assert kept.endswith("x [GPU-b]")


def test_a_report_without_a_reason_keeps_nothing() -> None:
    assert sentence({}) == sentence({"why": None, "gpus": None}) == ""
