"""Somebody sets the machine's clock while jobs run. Waits take as long as they should, no more and no less."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.local import clock
from ecs_gpu_recovery.local.clock import Clock
from tests.embedded.helpers import eventually, last_step, live_controller, training

HOUR_S = 3600.0
WAITING: Callable[[], bool] = lambda: True  # noqa: E731
IDLE: Callable[[], bool] = lambda: False  # noqa: E731
NOBODY = IDLE
SOMEBODY = WAITING


class Wall:
    """The clock that people set."""

    def __init__(self) -> None:
        self.shift_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.shift_s


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    made = Wall()
    monkeypatch.setattr(clock, "wall", made)
    monkeypatch.setattr(clock, "ASK_EVERY_S", 0.0)
    return made


def near(moment: datetime, seconds: float) -> bool:
    return abs(moment.timestamp() - seconds) < clock.TOLERANCE_S


@pytest.mark.parametrize("shift_s", [HOUR_S, -HOUR_S])
def test_time_goes_on_as_before_while_something_waits_and_is_set_right_afterwards(
    tmp_path: Path, wall: Wall, shift_s: float
) -> None:
    kept, other = Clock(tmp_path), Clock(tmp_path)
    kept.keep(WAITING, NOBODY)
    wall.shift_s = shift_s
    assert near(kept.now(), time.time())
    assert near(other.now(), time.time()), "commands have the controller's time"
    kept.keep(WAITING, NOBODY)
    assert near(kept.now(), time.time())
    kept.keep(IDLE, NOBODY)
    assert near(kept.now(), time.time() + shift_s)
    assert near(other.now(), time.time() + shift_s)


def test_a_clock_set_back_is_followed_only_when_no_job_lives(tmp_path: Path, wall: Wall) -> None:
    """A record's time never goes back: its next deadline would lie an hour ahead."""
    kept = Clock(tmp_path)
    kept.keep(IDLE, SOMEBODY)
    wall.shift_s = -HOUR_S
    kept.keep(IDLE, SOMEBODY)
    assert near(kept.now(), time.time())
    kept.keep(IDLE, NOBODY)
    assert near(kept.now(), time.time() - HOUR_S)


def test_without_a_kept_difference_time_would_jump(tmp_path: Path, wall: Wall) -> None:
    """The control of the test above."""
    alone = Clock(tmp_path)
    wall.shift_s = HOUR_S
    assert near(alone.now(), time.time() + HOUR_S)


@pytest.mark.parametrize(
    "text", ["{half", "[]", "{}", '{"offset": "x"}', '{"offset": 5, "host_boot_id": "old"}']
)
def test_a_difference_that_is_damaged_or_of_another_boot_is_not_used(tmp_path: Path, text: str) -> None:
    (tmp_path / clock.FILE).write_text(text)
    lone = Clock(tmp_path)
    assert near(lone.now(), time.time())
    lone.keep(WAITING, NOBODY)
    assert json.loads((tmp_path / clock.FILE).read_text())["host_boot_id"] != "old"
    assert near(lone.now(), time.time())


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("forward", marks=pytest.mark.slow),
        pytest.param("back", marks=pytest.mark.slow),
        "forth and back",
    ],
)
def test_a_recovery_is_not_disturbed_by_a_clock_that_is_moved(tmp_path: Path, wall: Wall, way: str) -> None:
    with live_controller(tmp_path) as live:
        live.submit("job", training(30, 0.04))
        live.trains_to("job", 4)
        wall.shift_s = {"forward": HOUR_S, "back": -HOUR_S, "forth and back": HOUR_S}[way]
        live.cluster.inject("node-2", "off-bus")
        live.reaches("job", JobStatus.PENDING_HEALTHCHECK, JobStatus.PENDING_RESTART, JobStatus.RESTARTING)
        wall.shift_s *= -1 if way == "forth and back" else 2
        job = live.ends("job", JobStatus.COMPLETE)
        assert (job.attempt, last_step(job)) == (1, 30)
        assert not live.side.notices(10), "nobody is needed"
        times = [entry.at for entry in job.timeline]
        assert times == sorted(times)
        eventually(
            lambda: near(live.side.now(), wall()), "with everything at rest the folder has the machine's time"
        )


def test_a_deadline_still_runs_out_after_the_clock_was_set_back(tmp_path: Path, wall: Wall) -> None:
    with live_controller(tmp_path, reboot_timeout=timedelta(seconds=2)) as live:
        live.submit("job", training(200, 0.05))
        live.trains_to("job", 3)
        wall.shift_s = -HOUR_S
        live.cluster.inject("node-2", "no-return")
        live.cluster.inject("node-2", "off-bus")
        job = live.ends("job", JobStatus.FAILED)
        assert "did not come back in time" in job.outcome
        assert job.updated_at < datetime.now(UTC) + timedelta(minutes=5)
