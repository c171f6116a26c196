"""State folders of somebody else: one may be allowed to look, or not even that."""

from __future__ import annotations

import codecs
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ecs_gpu_recovery.local.store import SqliteStore
from tests.cli.conftest import Result, run_command

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """Outside of pytest's own folders, which nobody else may enter."""
    made = Path(tempfile.mkdtemp(prefix="gpu-recovery-test-"))
    made.chmod(0o755)
    _give(made)
    yield made
    made.chmod(0o700)
    shutil.rmtree(made)


def _give(path: Path) -> None:
    """To the user who runs the commands: a folder of another is refused before its rights are looked at."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)


@pytest.fixture
def unprivileged() -> Callable[..., Result]:
    """Runs a command without the rights of root. It is run once before: root's Python may be hidden then."""
    run_command("doctor")
    codecs.lookup("ascii")
    importlib.import_module("ecs_gpu_recovery.serve.foreground")

    def run(*args: object) -> Result:
        if os.geteuid() != 0:
            return run_command(*args)
        os.setresgid(NOBODY, NOBODY, 0)
        os.setresuid(NOBODY, NOBODY, 0)
        try:
            return run_command(*args)
        finally:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)

    return run


def test_a_folder_one_may_not_write_into(unprivileged: Callable[..., Result], folder: Path) -> None:
    folder.chmod(0o555)
    for state in (folder, folder / "below"):
        unprivileged("up", "--state", state).refused(f"{state} cannot be used as a state folder")
    unprivileged("doctor", "--state", folder).tells("FAIL  state folder", code=1)
    assert list(folder.iterdir()) == []


def test_a_database_one_may_not_write(unprivileged: Callable[..., Result], folder: Path) -> None:
    SqliteStore(folder / "recovery.db").close()
    (folder / "recovery.db").chmod(0o444)
    folder.chmod(0o555)
    before = (folder / "recovery.db").read_bytes()
    for args in (("jobs",), ("nodes",), ("submit", "--any", "1", "--", "/bin/true")):
        unprivileged(args[0], "--state", folder, *args[1:]).refused("check the folder's permissions")
    assert (folder / "recovery.db").read_bytes() == before


def test_a_folder_one_may_not_even_enter(unprivileged: Callable[..., Result], folder: Path) -> None:
    SqliteStore(folder / "recovery.db").close()
    folder.chmod(0o000)
    for args in (("jobs",), ("up",)):
        unprivileged(args[0], "--state", folder, *args[1:]).refused("cannot be used as a state folder")
    assert unprivileged("doctor", "--state", folder).code == 1


def test_a_checkpoint_folder_one_may_not_write_into(
    unprivileged: Callable[..., Result], folder: Path
) -> None:
    state, kept = folder / "state", folder / "kept"
    kept.mkdir()
    kept.chmod(0o555)
    told = unprivileged("up", "--state", "/dev/null/nowhere")  # its modules are loaded now
    assert told.code == 4
    from tests.embedded.writer_program import a_node

    store = SqliteStore(state / "recovery.db")
    store.add_node(a_node("n1"))
    store.close()
    for path in (state, *state.iterdir()):
        _give(path)
    unprivileged("submit", "--state", state, "--any", 1, "--checkpoint-dir", kept, "--", "/bin/true").refused(
        f"you cannot write into the checkpoint folder {kept}"
    )
    assert "No jobs yet" in unprivileged("jobs", "--state", state).out
