"""Orders carry the environment of jobs, and with it their secrets. Only their owner can read them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.cli.conftest import run_command
from tests.embedded.helpers import live_controller

SHOW = (sys.executable, "-c", "import os; print(len(os.environ['API_TOKEN']))")


@pytest.fixture(autouse=True)
def _open_to_all() -> None:
    """The usual mask of a machine; a stricter one would prove nothing."""
    os.umask(0o022)


def test_what_the_embedded_mode_writes_is_its_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state"
    with live_controller(state) as live:
        live.submit("job", SHOW, env={"API_TOKEN": "q7Wz9LmX"})
        live.ends("job", JobStatus.COMPLETE)
        assert state.stat().st_mode & 0o777 == 0o700
        files = [path for path in state.rglob("*") if path.is_file()]
        holding = [path for path in files if b"q7Wz9LmX" in path.read_bytes()]
        assert {path.name for path in holding} >= {"spec.json"}, (
            "the secret is somewhere, or this proves nothing"
        )
        assert any("recovery.db" in path.name for path in holding)
        assert [path for path in holding if path.stat().st_mode & 0o077] == []
        theirs = [path for path in files if path.name not in ("report.json",)]
        assert [path for path in theirs if path.stat().st_mode & 0o077] == []


def test_a_folder_that_others_can_look_into_is_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    state.chmod(0o755)
    told = run_command("doctor", "--state", state)
    assert f"chmod 700 {state}" in told.out
    state.chmod(0o700)
    assert "chmod 700" not in run_command("doctor", "--state", state).out
