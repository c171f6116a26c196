"""The PyTorch training keeps the same contract. Skipped where PyTorch is not installed."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

import pytest

from tests.examples.conftest import EXAMPLES, digest
from tests.programs import eventually

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed; it is no dependency of this project (pip install torch to run this)",
)
STEPS = "--steps 40 --checkpoint-every 10"


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_it_says_so_in_one_line(ranks: Any) -> None:
    process = ranks.start("train_torch.py", 0)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 2
    assert "this training needs PyTorch (pip install torch)" in output.splitlines()[-1]


@needs_torch
@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_the_restart_ends_like_an_undisturbed_run(ranks: Any) -> None:
    undisturbed = digest(ranks.run("train_torch.py", 2, STEPS, CHECKPOINT_DIR=ranks.folder / "other")[0])
    place = {"WORLD_SIZE": 2, "MASTER_PORT": ranks.free_port(), "COLLECTIVE_TIMEOUT_S": 30}
    pair = [ranks.start("train_torch.py", rank, STEPS + " --step-seconds 0.1", **place) for rank in range(2)]
    eventually((ranks.checkpoints / "checkpoint-00000010.pt").exists, "the first checkpoint")
    pair[1].kill()
    assert pair[0].wait(timeout=120) == 1
    outputs = ranks.run("train_torch.py", 2, STEPS, JOB_ATTEMPT=1)
    assert all(re.search(r"^resumed from step [1-3]0$", output, re.MULTILINE) for output in outputs)
    assert {digest(output) for output in outputs} == {undisturbed}


@needs_torch
@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(ranks: Any) -> None:
    undisturbed = digest(ranks.run("train_torch.py", 1, STEPS)[0])
    newest = ranks.checkpoints / "checkpoint-00000040.pt"
    newest.write_bytes(newest.read_bytes()[:-10])
    output = ranks.run("train_torch.py", 1, STEPS)[0]
    assert "checkpoint-00000040.pt is damaged" in output
    assert "resumed from step 30" in output
    assert digest(output) == undisturbed


@needs_torch
@pytest.mark.slow
def test_ranks_of_different_attempts_do_not_train_together(ranks: Any) -> None:
    place = {"WORLD_SIZE": 2, "MASTER_PORT": ranks.free_port()}
    pair = [ranks.start("train_torch.py", rank, STEPS, JOB_ATTEMPT=rank, **place) for rank in range(2)]
    for process in pair:
        assert "ranks of different jobs or attempts met" in process.communicate(timeout=120)[0]
        assert process.returncode == 1


@needs_torch
@pytest.mark.slow
def test_it_runs_under_torchrun(ranks: Any) -> None:
    import subprocess

    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    argv += ["--master-port", str(ranks.free_port()), str(EXAMPLES / "train_torch.py"), *STEPS.split()]
    done = subprocess.run(argv, cwd=ranks.folder, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done, weights") == 2
