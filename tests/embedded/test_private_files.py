"""Orders carry the environment of jobs, and with it their secrets. Only their owner can read them."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ecs_gpu_recovery.console.live.journal import Journal
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.own_folder import own_folder
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


def test_what_the_console_remembers_of_its_stream_is_its_owners_alone(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "stream.db")):
        modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert modes["stream.db"] == 0
    assert set(modes.values()) == {0}


def test_a_folder_that_others_can_look_into_is_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    state.chmod(0o755)
    told = run_command("doctor", "--state", state)
    assert f"chmod 700 {state}" in told.out
    state.chmod(0o700)
    assert "chmod 700" not in run_command("doctor", "--state", state).out


def _of_another(folder: Path) -> Path:
    """A folder of another user: root can give one away, and all others find those of root."""
    if os.geteuid() != 0:
        return Path("/usr")
    folder.mkdir(mode=0o700)
    os.chown(folder, 4711, 4711)
    return folder


@pytest.mark.parametrize("command", [("up",), ("down",), ("nodes",), ("doctor",)])
def test_a_state_folder_of_another_user_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    state = _of_another(tmp_path / "theirs")
    if os.geteuid() == 0:  # as they would prepare it
        (state / "nodes").mkdir()
        (state / "recovery.db").touch()
        (tmp_path / "mine").write_text("precious")
        (state / "controller.lock").symlink_to(tmp_path / "mine")
    told = run_command(*command, "--state", state)
    assert told.code != 0
    if os.geteuid() == 0:
        assert "belongs to uid 4711, and you are root: choose a folder of your own" in told.out + told.err
        assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_folder_that_others_can_write_into_is_refused(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    run_command("up", "--state", state).refused(
        f"others can write into {state}: see that all in it is yours, then  chmod go-w"
    )
    assert list(state.iterdir()) == []
    assert "chmod go-w" in run_command("doctor", "--state", state).out


def test_a_folder_that_everyone_can_replace_is_refused_and_one_in_tmp_is_not(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(Refused, match=r"put another folder in the place of .*chmod \+t"):
        own_folder(shared / "state")
    shared.chmod(0o1777)
    own_folder(shared / "state")
    assert (shared / "state").stat().st_mode & 0o777 == 0o700


def test_the_console_s_own_folder_must_be_its_own_too(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the console needs the extra [console]")
    data = tmp_path / "console"
    data.mkdir()
    data.chmod(0o777)
    run_command("console", "--port", "0", "--state", tmp_path / "state", "--data", data).refused(
        f"others can write into {data}", "--data"
    )
    assert list(data.iterdir()) == []
