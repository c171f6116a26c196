from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.local import gpus
from ecs_gpu_recovery.local.files import Json, read_json, write_json

XID_LINE = re.compile(r"^\S+\+00:00 kernel: NVRM: Xid \(PCI:0000:0[12]:00\): (\d+), pid=\S+, name=\S+, .+$")


@pytest.fixture
def node(tmp_path: Path) -> str:
    write_json(str(tmp_path / "gpus.json"), gpus.simulated("n1", 2))
    (tmp_path / "kmsg").touch()
    return str(tmp_path)


def inject(node: str, fault: str, gpu: int = 0, xid: int | None = None) -> None:
    gpus.inject(node, fault, gpu, xid, 0.25, 4711)


def state(node: str, gpu: int = 0) -> Json:
    found = read_json(f"{node}/gpus.json")
    assert found is not None
    return dict(found["gpus"][gpu])


def logged_xids(node: str) -> list[int]:
    found = [XID_LINE.match(line) for line in Path(node, "kmsg").read_text().splitlines() if "Xid" in line]
    return [int(match[1]) for match in found if match]


def blow(node: str, **spec: Any) -> gpus.Blow | None:
    spec = {"kind": "train", "rank": 3, "hit_seq": 0, **spec}
    return gpus.blow_on_task(read_json(f"{node}/gpus.json"), read_json(f"{node}/faults.json"), spec)


@pytest.mark.parametrize(
    ("fault", "xid", "expected"),
    [
        ("ecc", 48, {"recovery_action": "gpu_reset", "ecc_uncorrectable": 1, "present": True}),
        ("off-bus", 79, {"recovery_action": "node_reboot", "present": False}),
        ("permanent", 48, {"sram_threshold_exceeded": True}),
        ("hang", 119, {"recovery_action": "gpu_reset"}),
        ("xid", 79, {"recovery_action": "node_reboot", "present": True}),
        ("app-xid", 31, {"recovery_action": "none", "present": True, "fault": None}),
    ],
)
def test_a_fault_shows_in_the_gpu_and_in_the_kernel_log(
    node: str, fault: str, xid: int, expected: Json
) -> None:
    inject(node, fault)
    assert {key: state(node)[key] for key in expected} == expected
    assert logged_xids(node) == [xid]
    assert state(node, 1)["recovery_action"] == "none"


def test_every_fault_says_what_it_does() -> None:
    assert all(sentence and not sentence.endswith(".") for sentence in gpus.FAULTS.values())
    assert set(gpus.STANDING) < set(gpus.FAULTS)


def test_a_slow_gpu_is_throttled_and_logs_nothing(node: str) -> None:
    inject(node, "slow")
    assert state(node)["throttled"]
    assert logged_xids(node) == []
    assert blow(node) == gpus.Blow("slow", speed=0.25)


@pytest.mark.parametrize(
    ("fault", "xid", "words"),
    [
        ("ecc", None, "uncorrectable ECC error encountered"),
        ("off-bus", None, "unspecified launch failure"),
        ("xid", 74, "uncorrectable NVLink error detected during the execution"),
        ("app-xid", None, "an illegal memory access was encountered"),
        ("xid", 13, "an illegal memory access was encountered"),
        ("xid", 999, "unspecified launch failure"),
    ],
)
def test_a_fatal_fault_ends_the_training_with_the_words_of_cuda(
    node: str, fault: str, xid: int | None, words: str
) -> None:
    inject(node, fault, xid=xid)
    assert blow(node) == gpus.Blow("fatal", f"[rank3]: RuntimeError: CUDA error: {words}")


def test_a_fault_hits_only_training(node: str) -> None:
    inject(node, "ecc", gpu=1)
    assert blow(node, kind="check") is None
    assert blow(node) is not None


def test_a_hit_spares_tasks_that_were_ordered_after_it(node: str) -> None:
    inject(node, "app-xid")
    assert gpus.hit_seq(node) == 1
    assert blow(node, hit_seq=1) is None
    inject(node, "oom")
    assert blow(node, hit_seq=1) == gpus.Blow("oom")


def test_an_xid_that_is_only_a_note_harms_nobody(node: str) -> None:
    inject(node, "xid", xid=63)
    assert blow(node) is None
    assert logged_xids(node) == [63]
    assert state(node)["remap_pending"]


def test_a_boot_cures_the_gpu_and_starts_a_new_kernel_log(node: str) -> None:
    inject(node, "off-bus")
    gpus.boot(node, "old", "new")
    assert state(node)["present"]
    assert blow(node) is None
    assert logged_xids(node) == []
    assert "Xid" in Path(node, "kmsg.old").read_text()
    gpus.boot(node, "old", "newer")
    assert "Xid" in Path(node, "kmsg.old").read_text(), "repeated after a crash it loses no evidence"


def test_without_cure_the_fault_is_back_after_the_boot_with_new_evidence(node: str) -> None:
    inject(node, "off-bus")
    inject(node, "no-cure")
    gpus.boot(node, "old", "new")
    assert gpus.count_present(node) == 1
    assert logged_xids(node) == [79]
    assert blow(node) is not None
    inject(node, "off-bus", gpu=1)
    gpus.boot(node, "new", "newer")
    assert blow(node) == gpus.Blow("fatal", "[rank3]: RuntimeError: No CUDA GPUs are available")


def test_no_boot_cures_a_permanent_fault(node: str) -> None:
    inject(node, "permanent")
    gpus.boot(node, "old", "new")
    assert state(node)["sram_threshold_exceeded"]
    assert blow(node) is not None


def test_clearing_takes_every_fault_back(node: str) -> None:
    for fault in ("permanent", "no-cure", "no-return", "check-broken", "app-xid", "driver-hang"):
        inject(node, fault)
    gpus.clear(node)
    assert state(node) == gpus.simulated("n1", 2)["gpus"][0] | {"uuid": state(node)["uuid"]}
    assert set(read_json(f"{node}/faults.json") or {}) == {"hits"}
    assert gpus.hit_seq(node) == 1
    assert not (read_json(f"{node}/gpus.json") or {})["driver_hung"]


def test_a_gpu_that_is_not_there_or_is_real_cannot_break(node: str) -> None:
    with pytest.raises(ValueError, match="no GPU 7"):
        inject(node, "ecc", gpu=7)
    Path(node, "gpus.json").unlink()
    with pytest.raises(ValueError, match="needs simulated GPUs"):
        inject(node, "ecc")


def test_missing_nvml_is_said_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_nvml(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pynvml":
            raise ImportError(name)
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_nvml)
    with pytest.raises(gpus.NvmlUnavailable, match="nvidia-ml-py"):
        gpus.count_real()
