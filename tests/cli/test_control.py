"""The system itself: up, doctor, notices, explain-event."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ecs_gpu_recovery.control.backend import whoami
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.local.cluster import Cluster
from tests.aws.event_builders import TRAIN, container, stopped
from tests.cli.conftest import Command, run_command
from tests.embedded.helpers import ROOT, LiveController, eventually, living

CLI = [sys.executable, "-m", "ecs_gpu_recovery.main"]
EVENT = {
    "version": "0",
    "id": "5c3a2b1e-0000-4000-8000-000000000001",
    "detail-type": "ECS Task State Change",
    "source": "aws.ecs",
    "time": "2026-11-15T02:00:00Z",
    "region": "us-east-1",
    "detail": {"lastStatus": "RUNNING", "taskArn": "arn:aws:ecs:us-east-1:123456789012:task/other/abc"},
}


@contextmanager
def up(state: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """gpu-recovery up, until the end of the block; nothing of it runs on afterwards."""
    args = [*CLI, "up", "--state", str(state), "--boot-seconds", "0.1", *more]
    process = subprocess.Popen(args, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        if state.exists():
            Cluster(state).shutdown()


def nodes_are_free(state: Path, count: int) -> bool:
    told = run_command("nodes", "--state", state, "--json")
    return told.code == 0 and sum(node["free"] for node in told.data["nodes"]) == count


def test_up_serves_until_ctrl_c_and_its_job_runs_on_until_the_next_up(
    command: Command, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with up(state, "--nodes", "3", "--gpus", "1") as process:
        eventually(lambda: nodes_are_free(state, 3), "three free nodes")
        command("up", "--state", state).refused(
            f"another controller (pid {process.pid}) already runs on {state}"
        )
        told = command(
            "submit", "--state", state, "--any", 2, "--check", "none", "--id", "j", "--", "sleep", "60"
        )
        assert told.code == 0, told
        assert not told.err
        started = f"{state}/nodes/node-1/tasks"
        eventually(lambda: any(Path(started).glob("*/running.json")), "the job runs")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "3 nodes; Ctrl-C ends it" in out
        assert "j runs on without the control plane" in out
        assert (
            f"gpu-recovery submit --state {state} --any 2 -- python -m ecs_gpu_recovery.examples.train" in out
        )
        assert "job: IN_PROGRESS: submitted by" not in out, (
            "the command that submits says so, not the controller"
        )
        assert "node-1: ASSIGNED -> IN_PROGRESS" in out
        before = {found.pid for found in living(Cluster(state))}
        assert {found.node for found in living(Cluster(state))} == {"node-1", "node-2"}, "free nodes are off"
        alone = command("jobs", "--state", state)
        assert alone.code == 0
        assert "nothing will move until you start  gpu-recovery up" in alone.err
        command("doctor", "--state", state).tells(
            "FAIL  controller       none runs on this state, and 1 job has not ended: nothing moves",
            f"do: start one with: gpu-recovery up --state {state}",
            code=1,
        )
        with up(state):  # without any number: the nodes that are there
            eventually(lambda: "node-3" in {p.node for p in living(Cluster(state))}, "all nodes are back")
            now = {found.pid for found in living(Cluster(state)) if found.node != "node-3"}
            assert now == before, "the very same ranks run"
            job = command("job", "j", "--state", state, "--json").data
            assert (job["status"], job["attempt"]) == ("IN_PROGRESS", 0)
            command("down", "--state", state).refused("already runs on")
    with up(state) as process:
        eventually(
            lambda: command("job", "j", "--state", state, "--json").data["attempt"] == 1,
            "its nodes were powered off, so the job starts again",
        )
        assert command("stop", "j", "--state", state, "--wait").code == 0
        process.send_signal(signal.SIGINT)
        assert "the nodes are powered off" in process.communicate(timeout=60)[0]
        assert living(Cluster(state)) == []


def test_down_ends_what_a_control_plane_left_running(command: Command, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert "nothing runs there" in command("down", "--state", state).err
    with up(state, "--nodes", "1", "--keep-nodes") as process:
        eventually(lambda: nodes_are_free(state, 1), "a free node")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert [found.node for found in living(Cluster(state))] == ["node-1"], "it was asked to keep them"
        told = command("down", "--state", state)
        assert (told.code, told.out) == (0, "nodes powered off: 1\n")
        assert living(Cluster(state)) == []
        assert command("down", "--state", state).out == "nodes powered off: 0\n", "they are off already"


def test_other_numbers_for_nodes_that_are_there_are_refused_and_change_nothing(
    command: Command, live: LiveController, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    Cluster(state).create("node-1", 2)
    command("up", "--state", state, "--nodes", 2, "--gpus", 4).refused(
        "node-1 is there already, simulated with 2 GPUs; you asked for simulated with 4"
    )
    assert [view.name for view in Cluster(state).nodes()] == ["node-1"]
    assert living(Cluster(state)) == []


def test_fewer_nodes_than_are_there_are_refused(command: Command, tmp_path: Path) -> None:
    for name in ("node-1", "node-2"):
        Cluster(tmp_path).create(name, 2)
    command("up", "--state", tmp_path, "--nodes", 1).refused(
        f"{tmp_path} has 2 nodes already, you asked for 1: leave --nodes out"
    )
    assert living(Cluster(tmp_path)) == []


def test_real_gpus_that_are_not_there_are_refused(command: Command, tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has real GPUs")
    command("up", "--real", "--state", tmp_path / "state").refused("leave out --real")


def test_the_doctor_finds_a_good_state_good(here: Command, live: LiveController) -> None:
    here("doctor").tells(f"runs as pid {os.getpid()}", "3 nodes, all connected")
    data = here("doctor", "--json").data
    assert data["ok"] is True
    assert [check["name"] for check in data["checks"]] == [
        *("python", "processes", "state folder", "disk space", "database", "controller", "nodes", "GPUs")
    ]


def test_the_doctor_tells_what_to_do_about_a_damaged_state(command: Command, tmp_path: Path) -> None:
    (tmp_path / "recovery.db").write_bytes(b"nonsense" * 500)
    command("doctor", "--state", tmp_path).tells("FAIL  database", "do: move it away", code=1)
    command("doctor", "--state", tmp_path / "not" / "there").tells("is not there yet")


def test_messages_to_people_are_kept(here: Command, live: LiveController) -> None:
    assert here("notices").out == "No messages: nobody is needed.\n"
    failing = ("--", sys.executable, "-c", "exit(7)")
    assert (
        here(
            "submit", "--any", 1, "--check", "none", "--id", "sad", "--team", "vision", "--wait", *failing
        ).code
        == 1
    )
    live.ends("sad", JobStatus.FAILED)
    told = here("notices")
    assert "Job sad failed" in told.out
    for part in ("happened", "evidence", "done", "next"):
        assert f"    {part}" in told.out
    (message,) = here("notices", "--json").data["notices"]
    parts = {"at", "subject", "happened", "evidence", "done", "next", "node", "key", "owner", "team"}
    assert set(message) == parts
    assert (message["owner"], message["team"]) == (whoami(), "vision")
    assert "gpu-recovery retry sad" in message["next"]


def test_an_event_is_explained_from_a_file_and_from_standard_input(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(EVENT))
    data = command("explain-event", path, "--json").data
    assert {"ours", "kind", "job", "attempt", "rank", "why"} <= set(data)
    assert data["ours"] is False
    command("explain-event", path).tells("not ours")
    several = command("explain-event", "-", "--json", stdin=f"{json.dumps(EVENT)}\n{json.dumps(EVENT)}\n")
    assert [one["ours"] for one in several.data] == [False, False]


def test_it_is_told_which_policy_an_event_was_judged_by(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(stopped(container(77), env=TRAIN)))
    plain = command("explain-event", path, "--json").data
    assert (plain["policy"], plain["exit"]["meaning"]) == (Policy().version, "fault")
    assert f"by policy {Policy().version}: the built-in one" in command("explain-event", path).out
    monkeypatch.setenv("HEALTHCHECK_EXIT_CODES", "77")
    mine = command("explain-event", path, "--json").data
    assert (mine["policy"] == plain["policy"], mine["exit"]["meaning"]) == (False, "suspect")
    assert "HEALTHCHECK_EXIT_CODES" in mine["policy_from"]
    monkeypatch.setenv("HEALTHCHECK_EXIT_CODES", "lots")
    command("explain-event", path).refused("HEALTHCHECK_EXIT_CODES")


@pytest.mark.parametrize("content", [None, "", "{half", "\x00\x01", "[1, 2", "nonsense"])
def test_what_is_no_event_is_refused(command: Command, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "event.json"
    if content is not None:
        path.write_text(content)
    told = command("explain-event", path)
    assert told.code == 4, told
    assert "Traceback" not in told.err
