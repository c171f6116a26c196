"""Tests of the sample trainings run them as real processes, as a node would."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "ecs_gpu_recovery" / "examples"


def digest(output: str) -> str:
    found = re.search(r"^done, weights ([0-9a-f]{64})$", output, re.MULTILINE)
    assert found, output
    return found[1]


class Ranks:
    """Starts the ranks of a training and ends whatever is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.started: list[subprocess.Popen[str]] = []

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def start(self, script: str, rank: int, arguments: str = "", **env: object) -> subprocess.Popen[str]:
        """One rank, with the environment a node gives it. Its output goes to the returned process."""
        place = {"RANK": rank, "MASTER_ADDR": "127.0.0.1", "CHECKPOINT_DIR": self.checkpoints, "JOB_ID": "j1"}
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / script), *arguments.split()],
            env={**os.environ, **{key: str(value) for key, value in {**place, **env}.items()}},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, script: str, world: int, arguments: str = "", **env: object) -> list[str]:
        """All ranks to their good end; the output of each."""
        port = self.free_port()
        place = {"WORLD_SIZE": world, "MASTER_PORT": port, **env}
        ranks = [self.start(script, rank, arguments, **place) for rank in range(world)]
        outputs = [process.communicate(timeout=120)[0] for process in ranks]
        assert [process.returncode for process in ranks] == [0] * world, outputs
        return outputs


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
