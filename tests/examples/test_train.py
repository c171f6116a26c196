"""The stdlib training: real enough to stall, to be killed, to resume and to end where it would have ended."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.examples import train
from tests.examples.conftest import digest
from tests.programs import eventually

STEPS = "--steps 60 --checkpoint-every 10"


def progress(folder: Path) -> list[dict[str, Any]]:
    found = []
    for line in (folder / "progress.jsonl").read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # a writer was killed in the middle of it
    return found


def wait_for_step(folder: Path, step: int) -> None:
    eventually((folder / "progress.jsonl").exists, "the first step")
    eventually(lambda: any(p["step"] >= step for p in progress(folder)), f"step {step}")


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """The first line of output that holds the text."""
    assert process.stdout is not None
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if text in line:
                return line
    finally:
        watchdog.cancel()
    raise AssertionError(f"never said {text!r}")


def eventually_closed(connection: socket.socket) -> None:
    """Closed politely or with a reset, as the kernel likes."""
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""


def test_the_loss_goes_down_and_all_ranks_end_with_the_same_weights(ranks: Any) -> None:
    outputs = ranks.run("train.py", 3, "--steps 120")
    assert len({digest(output) for output in outputs}) == 1
    losses = [entry["loss"] for entry in progress(ranks.checkpoints)]
    assert len(losses) == 120
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    assert re.search(r"^step 40/120 loss 0\.\d{4}$", outputs[0], re.MULTILINE)
    assert sorted(path.name for path in ranks.checkpoints.glob("*.json")) == [
        "checkpoint-00000100.json",
        "checkpoint-00000120.json",
    ]


@pytest.mark.parametrize("victim", [0, 1])
def test_an_interrupted_training_ends_like_an_undisturbed_one(ranks: Any, victim: int) -> None:
    undisturbed = digest(ranks.run("train.py", 2, STEPS, CHECKPOINT_DIR=ranks.folder / "other")[0])
    for attempt, last_step in enumerate([13, 37]):
        place = {"WORLD_SIZE": 2, "MASTER_PORT": ranks.free_port(), "JOB_ATTEMPT": attempt}
        pair = [ranks.start("train.py", rank, STEPS + " --step-seconds 0.02", **place) for rank in range(2)]
        wait_for_step(ranks.checkpoints, last_step)
        pair[victim].kill()
        survivor = pair[1 - victim]
        assert f"lost rank {victim}" in read_until(survivor, "lost rank")
        assert survivor.poll() is None, "it waits like a blocked collective"
        survivor.terminate()
        assert survivor.wait(timeout=60) == -signal.SIGTERM
    outputs = ranks.run("train.py", 2, STEPS, JOB_ATTEMPT=2)
    resumed = [
        int(step) for output in outputs for step in re.findall(r"^resumed from step (\d+)$", output, re.M)
    ]
    assert len(resumed) == 2
    assert resumed[0] == resumed[1] >= 30
    assert resumed[0] % 10 == 0
    assert digest(outputs[0]) == undisturbed
    assert {entry["attempt"] for entry in progress(ranks.checkpoints)} == {0, 1, 2}


def test_a_survivor_gives_up_when_the_collective_times_out(ranks: Any) -> None:
    place = {"WORLD_SIZE": 2, "MASTER_PORT": ranks.free_port(), "COLLECTIVE_TIMEOUT_S": 1}
    pair = [ranks.start("train.py", rank, "--steps 100000", **place) for rank in range(2)]
    wait_for_step(ranks.checkpoints, 1)
    pair[1].kill()
    output = pair[0].communicate(timeout=60)[0]
    assert pair[0].returncode == 1
    assert output.count("lost rank 1") == 1
    assert output.endswith("rank 0: the collective timed out\n")


def test_a_frozen_rank_stalls_the_others_until_they_time_out(ranks: Any) -> None:
    place = {"WORLD_SIZE": 2, "MASTER_PORT": ranks.free_port(), "COLLECTIVE_TIMEOUT_S": 1}
    pair = [ranks.start("train.py", rank, "--steps 100000", **place) for rank in range(2)]
    wait_for_step(ranks.checkpoints, 1)
    pair[0].send_signal(signal.SIGSTOP)
    output = pair[1].communicate(timeout=60)[0]
    assert pair[1].returncode == 1
    assert "lost rank 0 at step" in output


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "nonsense"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(ranks: Any, damage: str) -> None:
    undisturbed = digest(ranks.run("train.py", 1, STEPS)[0])
    newest = ranks.checkpoints / "checkpoint-00000060.json"
    good = newest.read_text()
    bad = {
        "truncate": good[: len(good) // 2],
        "flip": good.replace('"step": 60', '"step": 61'),
        "empty": "",
        "nonsense": "[1, 2]",
    }[damage]
    newest.write_text(bad)
    output = ranks.run("train.py", 1, STEPS)[0]
    assert "checkpoint-00000060.json is damaged" in output
    assert "resumed from step 50" in output
    assert digest(output) == undisturbed


def test_without_a_whole_checkpoint_it_starts_from_the_beginning(ranks: Any) -> None:
    undisturbed = digest(ranks.run("train.py", 1, STEPS)[0])
    for path in ranks.checkpoints.glob("checkpoint-*.json"):
        path.write_text("{}")
    output = ranks.run("train.py", 1, STEPS)[0]
    assert output.count("is damaged") == 2
    assert "starting from step 0" in output
    assert digest(output) == undisturbed


def test_a_training_that_was_done_is_done_at_once(ranks: Any) -> None:
    first = ranks.run("train.py", 2, STEPS)[0]
    again = ranks.run("train.py", 2, STEPS)[0]
    assert "resumed from step 60" in again
    assert digest(first) == digest(again)


def test_the_checkpoint_of_another_training_is_a_mistake_of_the_user(ranks: Any) -> None:
    ranks.run("train.py", 1, STEPS)
    other = ranks.start("train.py", 0, STEPS + " --seed 9")
    assert "belongs to another training" in other.communicate(timeout=60)[0]
    assert other.returncode == 2


def test_ranks_of_another_job_or_attempt_and_strangers_are_sent_away(ranks: Any) -> None:
    port = ranks.free_port()
    place = {"WORLD_SIZE": 2, "MASTER_PORT": port, "JOB_ATTEMPT": 1}
    root = ranks.start("train.py", 0, "--steps 3", **place)
    ghost = ranks.start("train.py", 1, "--steps 3", **{**place, "JOB_ATTEMPT": 0, "START_TIMEOUT_S": 2})
    assert "it runs job 'j1' attempt 1" in ghost.communicate(timeout=60)[0]
    assert ghost.returncode == 1
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually_closed(stranger)
    right = ranks.start("train.py", 1, "--steps 3", **place)
    outputs = [process.communicate(timeout=60)[0] for process in (root, right)]
    assert digest(outputs[0]) == digest(outputs[1])
    assert "sent a stranger away" in outputs[0]


def test_a_rank_that_never_comes_ends_the_start(ranks: Any) -> None:
    place = {"WORLD_SIZE": 3, "MASTER_PORT": ranks.free_port(), "START_TIMEOUT_S": 0.5}
    root = ranks.start("train.py", 0, **place)
    assert "rank 0: ranks [1, 2] did not come" in root.communicate(timeout=60)[0]
    assert root.returncode == 1


def test_a_taken_port_is_waited_for(ranks: Any) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        place = {"WORLD_SIZE": 2, "MASTER_PORT": holder.getsockname()[1]}
        root = ranks.start("train.py", 0, "--steps 3", **place)
        assert "rank 0 of 2" in read_until(root, "rank 0")
        time.sleep(0.3)
        assert root.poll() is None
    other = ranks.start("train.py", 1, "--steps 3", **place)
    assert root.communicate(timeout=60)[0].count("done, weights") == 1
    assert other.wait(timeout=60) == 0


def test_a_torn_line_of_progress_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_text('{"at": "2026')
    log = train.Progress(tmp_path, 3)
    log.add(7, 0.5)
    log.file.close()
    assert [(entry["attempt"], entry["step"], entry["loss"]) for entry in progress(tmp_path)] == [(3, 7, 0.5)]


def test_the_gradient_points_where_the_loss_falls() -> None:
    """Compared with the slope measured by moving one weight a little."""
    weights = train.first_weights(0)
    exact = train.gradient(weights, 0, 1, 0)
    for index in (0, 17, 62, 71, train.WEIGHTS - 1):
        nudged = weights[:]
        nudged[index] += 1e-6
        slope = (train.gradient(nudged, 0, 1, 0)[train.WEIGHTS] - exact[train.WEIGHTS]) / 1e-6
        assert slope == pytest.approx(exact[index], rel=1e-3, abs=1e-3)


def test_node_names_stand_in_for_rank_names(tmp_path: Path) -> None:
    place = train.Place.from_env({"NODE_RANK": "2", "NNODES": "4", "CHECKPOINT_DIR": str(tmp_path)})
    assert (place.rank, place.world, place.checkpoints) == (2, 4, tmp_path)


def test_an_environment_that_makes_no_sense_is_a_mistake_of_the_user(ranks: Any) -> None:
    process = ranks.start("train.py", 0, WORLD_SIZE="many")
    assert "the environment is not understood" in process.communicate(timeout=60)[0]
    assert process.returncode == 2


@pytest.mark.parametrize("world", [1, 2])
def test_of_two_attempts_alive_at_once_the_older_ends_before_it_writes(ranks: Any, world: int) -> None:
    """The older one's node was lost, and lives on out of sight."""

    def gang(steps: int, attempt: int) -> list[subprocess.Popen[str]]:
        place = {"MASTER_PORT": ranks.free_port(), "JOB_ATTEMPT": attempt, "WORLD_SIZE": world}
        options = f"--steps {steps} --step-seconds 0.05 --checkpoint-every 5"
        return [ranks.start("train.py", r, options, COLLECTIVE_TIMEOUT_S=2, **place) for r in range(world)]

    older = gang(2000, 0)
    wait_for_step(ranks.checkpoints, 12)
    newer = gang(60, 1)
    said = [process.communicate(timeout=60)[0] for process in older]
    assert "attempt 1 of job 'j1' writes here now: attempt 0 ends" in said[0]
    assert [process.returncode for process in older] == [1] * world
    for process in newer:
        process.communicate(timeout=60)
    assert [process.returncode for process in newer] == [0] * world
    attempts = [line["attempt"] for line in progress(ranks.checkpoints)]
    assert attempts == sorted(attempts), "the older attempt has written after the newer began"


def test_another_job_takes_the_folder_over_and_an_ended_one_does_not_hold_it(ranks: Any) -> None:
    ranks.run("train.py", 1, "--steps 5 --checkpoint-every 5", JOB_ATTEMPT=7)
    (said,) = ranks.run("train.py", 1, "--steps 10 --checkpoint-every 5", JOB_ID="j2")
    assert "resumed from step 5" in said
    assert (ranks.checkpoints / ".attempt").read_text() == "0 j2\n"
