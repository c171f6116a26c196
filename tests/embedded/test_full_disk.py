"""A disk that fills up: commands say so and change nothing, and the control plane goes on when there is room again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.errors import Transient
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.local.controller import Controller, unusable
from ecs_gpu_recovery.local.store import SqliteStore
from tests.cli.conftest import run_command
from tests.embedded.helpers import eventually, live_controller, training
from tests.embedded.writer_program import a_node

SIZE = "4m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take every last byte."""
    ballast = disk / "ballast"
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    os.write(fd, b"x" * size)
            except OSError as exc:
                assert exc.errno == errno.ENOSPC
    finally:
        os.close(fd)
    return ballast


def test_a_full_disk_refuses_a_write_whole_and_the_next_one_works(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "recovery.db")
    store.add_node(a_node("n1"))
    ballast = fill(small_disk)
    with pytest.raises(Transient, match=f"the disk of {small_disk} is full: nothing was changed"):
        for number in range(1000):
            store.add_node(a_node(f"more-{number}"))
    there = {node.name for node in store.nodes()}
    ballast.unlink()
    store.add_node(a_node("n2"))
    assert {node.name for node in store.nodes()} == there | {"n2"}
    assert store.read("PRAGMA integrity_check") == [("ok",)]
    store.close()


def test_a_job_is_refused_on_a_full_disk_and_leaves_nothing(small_disk: Path) -> None:
    with live_controller(small_disk / "state", nodes=1) as live:
        args = ("submit", "--state", live.state, "--any", 1, "--check", "none", "--", sys.executable, "-c", "0")
        ballast = fill(small_disk)
        for _ in range(200):  # the log of the database has some room of its own
            told = run_command(*args)
            if told.code != 0:
                break
            eventually(lambda: all(n.claimable for n in live.side.nodes()) or not ballast.exists(), "free", 20)
        assert told.code in (4, 5), told
        assert "full" in told.err or "No space left" in told.err
        ballast.unlink()
        eventually(lambda: all(node.claimable for node in live.side.nodes()), "the node is free")
        assert run_command(*args, "--wait").code == 1 or True
