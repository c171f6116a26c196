"""Whether the ranks of an embedded job still write, and how long they are silent while they work."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from ecs_gpu_recovery.core.witness import Silence
from ecs_gpu_recovery.health.watch import writing
from ecs_gpu_recovery.local import silence
from tests.core.story import MINUTE, T0, a_running_job

JOB = a_running_job(nodes=2).job


class Desk:
    """Two ranks with their logs, and two clocks: one that only runs forward, and one that people may set."""

    def __init__(self, folder: Path) -> None:
        self.forward, self.set_by_people = 1000.0, T0.timestamp()
        self.logs = {rank: folder / f"log-{rank}" for rank in (0, 1)}
        self.job = replace(JOB, spec=replace(JOB.spec, checkpoint_dir=str(folder)))
        self.marks = folder / "progress.jsonl"
        self.heard = silence.LocalSilence()

    def pass_time(self, span: timedelta) -> None:
        self.forward += span.total_seconds()
        self.set_by_people += span.total_seconds()

    def writes(self, path: Path) -> None:
        path.touch()
        os.utime(path, (self.set_by_people, self.set_by_people))
        self.heard.look(self.job, self.logs)

    def silent(self) -> Silence | None:
        now = T0 + timedelta(seconds=self.forward - 1000.0)
        return self.heard.since(self.job, self.logs, now)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(tmp_path)
    clock = SimpleNamespace(monotonic=lambda: made.forward, time=lambda: made.set_by_people)
    for module in (silence, writing):
        monkeypatch.setattr(module, "time", clock)
    return made


def test_ranks_that_have_written_nothing_yet_say_nothing(desk: Desk) -> None:
    assert desk.silent() is None


def test_a_pause_is_as_long_as_five_that_were_seen_before_it_is_none_of_a_working_job(desk: Desk) -> None:
    for _ in range(4):
        desk.writes(desk.logs[1])
        desk.pass_time(4 * MINUTE)
    found = desk.silent()
    assert found is not None
    assert (found.since, found.patience) == (T0 + 12 * MINUTE, 20 * MINUTE)
    assert found.what == "rank 1 last wrote at 02:12:00"


@pytest.mark.parametrize(
    "writer", [lambda desk: desk.logs[0], lambda desk: desk.marks], ids=["log", "marker"]
)
def test_a_line_of_any_rank_and_a_step_in_the_checkpoint_folder_end_it(
    desk: Desk, writer: Callable[[Desk], Path]
) -> None:
    desk.writes(desk.logs[1])
    desk.pass_time(7 * MINUTE)
    desk.writes(writer(desk))
    found = desk.silent()
    assert found is not None
    assert found.since == T0 + 7 * MINUTE


def test_a_clock_that_is_set_an_hour_ahead_makes_no_hour_of_silence(desk: Desk) -> None:
    desk.writes(desk.logs[0])
    desk.pass_time(MINUTE)
    desk.set_by_people += 3600
    found = desk.silent()
    assert found is not None
    assert found.since == T0


def test_another_attempt_is_learned_anew(desk: Desk) -> None:
    for _ in range(2):
        desk.writes(desk.logs[0])
        desk.pass_time(30 * MINUTE)
    desk.job = replace(desk.job, attempt=1)
    desk.writes(desk.logs[0])
    found = desk.silent()
    assert found is not None
    assert found.patience == timedelta(0)
