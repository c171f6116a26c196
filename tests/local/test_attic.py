"""What a node forgets: it must not grow with every reboot, and must not forget what an order still needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ecs_gpu_recovery.local import attic
from ecs_gpu_recovery.local.files import write_json


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attic, "KEEP_BOOTS", 5)


def make(path: Path, age: float) -> str:
    write_json(str(path), {"key": path.stem})
    os.utime(path, (1_794_700_000 + age,) * 2)
    return str(path)


def test_the_oldest_kernel_logs_go_and_the_present_one_stays(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text("now\n")
    for number in range(9):
        make(tmp_path / f"kmsg.boot-{number}", age=number)
        attic.tidy_logs(str(tmp_path))
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["kmsg", *(f"kmsg.boot-{number}" for number in range(4, 9))]


def test_reboots_are_counted_beyond_the_markers_that_are_kept(tmp_path: Path) -> None:
    (tmp_path / "reboots").mkdir()
    for number in range(12):
        marker = make(tmp_path / "reboots" / f"j%2F{number}.json", age=number)
        attic.tidy_reboots(marker)
        assert attic.reboots_ordered(str(tmp_path)) == number + 1
    kept = {path.name for path in (tmp_path / "reboots").glob("*.json")}
    assert kept == {f"j%2F{number}.json" for number in range(7, 12)}


def test_the_newest_order_is_kept_even_if_the_clock_was_set_back(tmp_path: Path) -> None:
    (tmp_path / "reboots").mkdir()
    for number in range(9):
        marker = make(tmp_path / "reboots" / f"{number}.json", age=-number)
        attic.tidy_reboots(marker)
        assert os.path.exists(marker)
