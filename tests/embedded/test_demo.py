"""`gpu-recovery demo`, as a newcomer runs it: every fault ends as it should, and a wrong end is told."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ecs_gpu_recovery.control.console_link import ConsoleLink
from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.serve.embedded import FAULTS
from ecs_gpu_recovery.serve.scenarios import SCENARIOS
from tests.embedded.helpers import PATIENCE_S, ROOT, eventually, living
from tests.programs import python, ran

CLI = [sys.executable, "-m", "ecs_gpu_recovery.main"]
SHORT = ["--nodes", "2", "--steps", "48"]
#: What the story must tell, in this order.
STORIES = {
    "none": ["submitted", "passed the check", "training: step", "COMPLETE: every rank ended with success"],
    "app": [
        "Xid 31",
        "IN_PROGRESS -> PENDING_HEALTHCHECK",
        "GPUs healthy; restarted after step",
        "COMPLETE",
        "resumed at step",
    ],
    "gpu": [
        *("Xid 79", "IN_PROGRESS -> PENDING_HEALTHCHECK", "PENDING_RESTART: GPU fault on node-2"),
        *(
            "PENDING_RESTART -> RESTARTING",
            "attempt 1",
            "COMPLETE",
            "resumed at step",
            "effective training time",
        ),
    ],
    "gpu-permanent": [
        *("node-3 is kept as a spare", "breaks for good", "rank 1 moved from node-2 to node-3", "COMPLETE"),
        *("message to people: Node node-2", "gpu-recovery node release node-2"),
    ],
    "two-nodes": [
        *("kept as a spare", "falls off the bus", "moved from node-1 to node-3"),
        *("Waits for 1 of 2 nodes since", "COMPLETE"),
    ],
    "kill": [
        *("is killed", "was killed (SIGKILL)", "GPUs healthy; restarted after step"),
        *("RESTARTING", "COMPLETE", "resumed at step"),
    ],
    "freeze": [
        *("a rank freezes without dying", "the job hangs: no GPU has worked since", "rank 1 on node-2 hung"),
        *("GPUs healthy; restarted after step", "COMPLETE", "resumed at step"),
    ],
    "hang": ["Xid 119", "froze after a GPU fault", "GPU fault on node-2", "RESTARTING", "COMPLETE"],
    "idle-gpu": [
        *("node-1 is free", "Xid 79", "AVAILABLE -> PENDING_HEALTHCHECK: a fault was seen on it"),
        *("PENDING_HEALTHCHECK -> REBOOTING", "REBOOTING -> ", "AVAILABLE", "node-1 is AVAILABLE"),
    ],
    "node-lost": ["loses power", "lost", "rank 1 moved from node-2 to node-3", "RESTARTING", "COMPLETE"],
    "storm": [
        *("every node falls off the bus", "the fleet is frozen: 2 nodes to repair within 10 seconds"),
        *("a person thaws it", "PENDING_RESTART -> RESTARTING", "COMPLETE", "message to people"),
    ],
    "oom": ["out of memory", "FAILED: rank 1 on node-2 ran out of memory", "message to people"],
}


def demo(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return ran(*CLI, "demo", *SHORT, *args, env={**os.environ, **env})


def test_every_fault_has_a_story() -> None:
    assert set(STORIES) == set(FAULTS) == set(SCENARIOS)


#: The same where there is no node to go to.
WITHOUT_SPARES = {
    "gpu-permanent": ["breaks for good", "node-2 must be replaced", "gpu-recovery node release node-2"],
    "node-lost": ["loses power", "lost", "gets its power back", "RESTARTING", "COMPLETE"],
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", WITHOUT_SPARES)
def test_without_spares_a_job_stays_where_it_is(fault: str) -> None:
    told = demo("--fault", fault, "--spares", "0")
    assert told.returncode == 0, told.stdout + told.stderr
    assert [words for words in WITHOUT_SPARES[fault] if words not in told.stdout] == []
    assert "moved from" not in told.stdout


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_ends_as_it_should(fault: str, tmp_path: Path) -> None:
    told = demo("--fault", fault, TMPDIR=str(tmp_path))
    assert told.returncode == 0, told.stdout + told.stderr
    assert "\x1b" not in told.stdout, "no colour where there is no terminal"
    assert not told.stderr
    where = 0
    for words in [*STORIES[fault], "as it should be"]:
        found = told.stdout.find(words, where)
        assert found >= 0, f"{words!r} is not told, or too early:\n{told.stdout}"
        where = found
    assert "NOT as it should be" not in told.stdout
    assert list(tmp_path.iterdir()) == [], "the demo cleans up after itself"


@pytest.mark.parametrize("fault", ["gpu", pytest.param("app", marks=pytest.mark.slow)])
def test_scripts_get_the_story_as_json(fault: str, tmp_path: Path) -> None:
    told = demo("--fault", fault, "--json", "--state", str(tmp_path / "state"))
    assert told.returncode == 0, told.stdout + told.stderr
    data = json.loads(told.stdout)
    assert {
        "fault",
        "status",
        "outcome",
        "as_expected",
        "attempts",
        "steps",
        "steps_lost",
        "resumed_at",
        "loss",
        "seconds",
        "effective_training_time",
        "phases",
        "notices",
    } == set(data)
    assert (data["fault"], data["as_expected"]) == (fault, True)
    assert all(set(phase) == {"name", "attempt", "seconds"} for phase in data["phases"])
    if fault == "gpu":
        assert (data["status"], data["attempts"], data["steps"], data["notices"]) == ("COMPLETE", 2, 48, [])
        assert [step % 20 for step in data["resumed_at"]] == [1], "one after a checkpoint"
        assert data["steps_lost"] > 0
        assert [phase["name"] for phase in data["phases"]] == [
            *(
                "checking before the start",
                "running",
                "stopping and checking",
                "waiting for nodes",
                "restarting",
                "running",
            )
        ]
    else:
        assert (data["status"], data["attempts"], data["notices"]) == ("COMPLETE", 2, [])
    cluster = Cluster(tmp_path / "state")
    assert living(cluster) == [], "the folder stays, the processes end"
    listed = subprocess.run(
        [*CLI, "jobs", "--json", "--state", str(tmp_path / "state")], cwd=ROOT, capture_output=True, text=True
    )
    assert [job["status"] for job in json.loads(listed.stdout)["jobs"]] == [data["status"]]


@pytest.mark.slow
def test_the_story_can_be_followed_in_a_browser_and_the_demo_ends_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the console needs the extra [console]")
    from tests.console.helpers import owners_client

    state = tmp_path / "state"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = subprocess.Popen(
            [*CLI, "demo", *SHORT, "--steps", "96", "--console", port, "--state", str(state)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        address, _, token = first.split()[-1].partition("/?token=")
        assert first.startswith("watch it in a browser:"), first
        assert address.startswith("http://127.0.0.1:")
        assert not address.endswith(f":{port}"), "a port that is taken is replaced"
        with owners_client(ConsoleLink(address, token), PATIENCE_S) as client:
            eventually(
                lambda: (reply := client.get("/api/jobs")).status_code == 200 and reply.json()["jobs"],
                "the job is there",
            )
            job = client.get("/api/jobs").json()["jobs"][0]["id"]
            page = client.get(f"/jobs/{job}").text
            assert "What the system is doing now" in page
        out, err = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, out + err
    assert not err
    assert f"its page: {address}/jobs/{job}?token={token}" in out
    last = out.partition("Three things to try next:")[2]
    assert re.findall(r"^  (\d)\. ", last, re.MULTILINE) == ["1", "2", "3"], out
    assert f"gpu-recovery console --state {state}" in last, "how to look at it again"
    assert living(Cluster(state)) == []


WRONG = """
import sys
from dataclasses import replace
from ecs_gpu_recovery.serve import demo
from ecs_gpu_recovery.core.model import JobStatus
demo.SCENARIOS["none"] = replace(demo.SCENARIOS["none"], status=JobStatus.FAILED)
from ecs_gpu_recovery.main import run
run()
"""


@pytest.mark.parametrize("as_json", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_demo_that_ends_otherwise_is_code_1(as_json: bool) -> None:
    args = ["demo", "--fault", "none", "--nodes", "2", "--steps", "20", *(["--json"] if as_json else [])]
    told = python("-c", WRONG, *args)
    assert told.returncode == 1, told.stdout + told.stderr
    if as_json:
        assert json.loads(told.stdout)["as_expected"] is False
    else:
        assert "NOT as it should be: expected FAILED in attempt 0, node-2 AVAILABLE" in told.stdout


BROKEN = """
from ecs_gpu_recovery.local.controller import Controller
def step(self):
    raise ZeroDivisionError("the control plane is broken")
Controller.step = step
from ecs_gpu_recovery.main import run
run()
"""


def test_a_demo_whose_control_plane_breaks_ends_at_once(tmp_path: Path) -> None:
    told = python("-c", BROKEN, "demo", *SHORT, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert told.returncode == 1
    assert "the control plane is broken" in told.stderr
    assert "has stopped with the error above" in told.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_demo_that_is_ended_early_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    state = tmp_path / "state"
    process = subprocess.Popen(
        [*CLI, "demo", "--nodes", "2", "--steps", "5000", "--state", str(state)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: list(state.glob("nodes/*/tasks/*/running.json")), "tasks run")
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode not in (0, -number), "it ended in its own way"
    assert "Traceback" not in err
    assert living(Cluster(state)) == []


def test_a_demo_on_a_state_with_a_broken_node_says_so_at_once(tmp_path: Path) -> None:
    from ecs_gpu_recovery.core.model import NodeStatus
    from tests.embedded.helpers import live_controller

    with live_controller(tmp_path, nodes=2, boot_seconds=1.5) as live:
        live.cluster.inject("node-2", "permanent")
        eventually(lambda: live.side.node("node-2").status is NodeStatus.FAILED, "node-2 failed")
    told = demo("--fault", "none", "--state", str(tmp_path))
    assert told.returncode == 4, told.stdout + told.stderr
    assert "node-2 is FAILED" in told.stderr
    assert "choose another folder with --state" in told.stderr
    assert living(Cluster(tmp_path)) == []
