"""Where the processes of a rank stand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ecs_gpu_recovery.health import main
from ecs_gpu_recovery.health.collective import stacks
from tests.programs import eventually


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process with a child, both asleep."""
    asleep = "import time; time.sleep(600)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {asleep!r}]); {asleep}"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    eventually(lambda: stacks.of_tree(process.pid).count(": S") >= 2, "both sleep")
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_process_and_its_children_are_shown_with_what_they_wait_in(sleeper: int) -> None:
    said = stacks.of_tree(sleeper)
    assert said.count("process ") == 2
    assert ": S" in said


def test_a_stopped_process_is_told_apart(sleeper: int) -> None:
    os.kill(sleeper, signal.SIGSTOP)
    eventually(lambda: ": T" in stacks.of(sleeper), "it is shown as stopped")


def test_time_and_size_are_bounded(sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "was not asked" in stacks.of_tree(sleeper, 0.0)
    monkeypatch.setattr(stacks, "_MOST_BYTES", 20)
    assert len(stacks.of(sleeper)) <= 21


def test_a_process_that_has_ended_is_no_error_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert main.run(["stacks", "--pid", str(ended.pid)]) == 1
    assert "it has ended" in capsys.readouterr().out
