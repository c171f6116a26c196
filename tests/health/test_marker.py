"""How far a training has come, as its folder tells."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ecs_gpu_recovery.health.sources import marker
from ecs_gpu_recovery.health.sources.marker import Marker, MarkerReader, newest_checkpoint

T0 = datetime(2026, 3, 1, tzinfo=UTC)


def line(step: object, attempt: object = 0) -> str:
    return json.dumps({"at": T0.isoformat(), "attempt": attempt, "step": step, "loss": 0.5}) + "\n"


def write(folder: Path, *lines: str, mode: str = "a") -> None:
    with open(folder / "progress.jsonl", mode) as file:
        file.writelines(lines)


def test_the_furthest_step_counts_with_the_attempt_that_reached_it_first(tmp_path: Path) -> None:
    reader = MarkerReader(str(tmp_path))
    assert reader.look() is None
    write(tmp_path, line(1), line(2), line(3), line(2, 1), line(3, 1))
    assert reader.look() == Marker(step=3, attempt=0, reached=T0)
    write(tmp_path, line(4, 1))
    assert reader.look() == Marker(step=4, attempt=1, reached=T0)


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    reader = MarkerReader(str(tmp_path))
    write(tmp_path, line(1), line(2)[:20])
    assert reader.look() == Marker(step=1, attempt=0, reached=T0)
    write(tmp_path, line(2)[20:])
    assert reader.look() == Marker(step=2, attempt=0, reached=T0)


def test_a_file_that_was_put_in_place_of_it_is_read_anew(tmp_path: Path) -> None:
    reader = MarkerReader(str(tmp_path))
    write(tmp_path, line(1), line(7))
    reader.look()
    write(tmp_path, line(2), mode="w")
    assert reader.look() == Marker(step=2, attempt=0, reached=T0)


def test_of_a_long_file_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker, "_MOST", 500)
    write(tmp_path, *(line(step) for step in range(1, 1000)))
    assert MarkerReader(str(tmp_path)).look() == Marker(step=999, attempt=0, reached=T0)


@pytest.mark.parametrize(
    "text",
    [
        *("\n", "{}\n", "[1]\n", "nonsense\n", '{"at": 5, "step": 1, "attempt": 0}\n', "\0\xff\n"),
        *(line(-4), line("x"), line(0), line(1 << 60), line(1, None), "[" * 100_000 + "\n"),
    ],
)
def test_what_makes_no_sense_is_passed_over(tmp_path: Path, text: str) -> None:
    write(tmp_path, text, line(5))
    assert MarkerReader(str(tmp_path)).look() == Marker(step=5, attempt=0, reached=T0)


def test_neither_a_link_nor_a_pipe_is_opened(tmp_path: Path) -> None:
    inside = tmp_path / "job"
    inside.mkdir()
    write(tmp_path, line(5))
    (inside / "progress.jsonl").symlink_to(tmp_path / "progress.jsonl")
    assert MarkerReader(str(inside)).look() is None
    (inside / "progress.jsonl").unlink()
    os.mkfifo(inside / "progress.jsonl")
    assert MarkerReader(str(inside)).look() is None


def a_checkpoint(folder: Path, name: str, age_s: float, *, inside: str = "") -> None:
    path = folder / name / inside if inside else folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("weights")
    when = T0.timestamp() - age_s
    os.utime(path, (when, when))
    os.utime(folder / name, (when, when))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"step-900": 100, "step-1000": 90}, "step-1000"),
        ({"step-900": 90, "step-1000": 10}, "step-900"),
        ({"step-900": 90, "step-1000.tmp": 90, ".step-2000": 90, "tmp-checkpoint-3000": 90}, "step-900"),
        ({"latest": 90, "README": 90}, ""),
        ({}, ""),
    ],
)
def test_the_greatest_name_of_a_complete_checkpoint_counts(
    tmp_path: Path, names: dict[str, float], found: str
) -> None:
    for name, age_s in names.items():
        a_checkpoint(tmp_path, name, age_s)
    told = newest_checkpoint(str(tmp_path), T0.timestamp())
    assert (told.checkpoint if told else "") == found


def test_a_folder_is_complete_when_nothing_in_it_changes_any_more(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, "global_step5", 90, inside="rank0.pt")
    assert newest_checkpoint(str(tmp_path), T0.timestamp()) is not None
    a_checkpoint(tmp_path, "global_step6", 90, inside="rank0.pt")
    os.utime(tmp_path / "global_step6" / "rank0.pt", (T0.timestamp(), T0.timestamp()))
    told = newest_checkpoint(str(tmp_path), T0.timestamp())
    assert told is not None
    assert told.checkpoint == "global_step5"


def test_steps_count_before_names(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, "step-900", 90)
    reader = MarkerReader(str(tmp_path))
    told = reader.look_everywhere()
    assert told is not None
    assert told.checkpoint == "step-900"
    write(tmp_path, line(5))
    assert reader.look_everywhere() == Marker(step=5, attempt=0, reached=T0)
