"""Before a job starts, and while no job runs: nodes are examined, bad ones are set aside, and why is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.jobfile import parse
from ecs_gpu_recovery.local.fault_log import FaultLog
from tests.cli.conftest import run_command
from tests.embedded.helpers import LiveController, live_controller

DONE = ("sh", "-c", "exit 0")


def report(live: LiveController, node: str) -> dict[str, object]:
    """What the last check on this node wrote."""
    tasks = [task for task in live.cluster.tasks(node) if task.kind == "check"]
    newest = max(tasks, key=lambda task: task.ended_at or "")
    told: dict[str, object] = json.loads((newest.folder / "report.json").read_text())
    return told


def test_a_job_is_examined_first_unless_somebody_says_no() -> None:
    wanted = {"command": ["true"], "any_nodes": 1}
    assert parse(wanted, python="python3").check is True
    assert parse(wanted, python="python3").spec.check_level == "", "as deep as the settings say"
    assert parse({**wanted, "check": "none"}, python="python3").check is False


def test_a_job_on_several_bad_nodes_is_refused_with_each_ones_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the watch may see a fault before the job.
    monkeypatch.setattr(FaultLog, "news", lambda *_, **__: iter(()))
    with live_controller(tmp_path, 4) as live:
        live.cluster.inject("node-2", "ecc")
        live.cluster.inject("node-3", "permanent")
        live.cluster.inject("node-4", "check-broken")
        live.submit("job", DONE, any_nodes=4, check="2")
        job = live.ends("job", JobStatus.FAILED)
        assert "refused by the check before the first start" in job.outcome
        (message,) = live.side.notices(10)
        said = dict(re.findall(r"(node-\d)(.*?)(?=; node-|$)", str(message["evidence"])))
        assert "uncorrectable" in said["node-2"]
        assert "SRAM error threshold" in said["node-3"]
        assert "the health check is broken" in said["node-4"]
        assert {node.name: node.status for node in live.side.nodes()} == {
            "node-1": NodeStatus.AVAILABLE,
            "node-2": NodeStatus.FAILED,
            "node-3": NodeStatus.FAILED,
            "node-4": NodeStatus.AVAILABLE,
        }, "not tested is not bad"
        tasks = [task.kind for view in live.cluster.nodes() for task in live.cluster.tasks(view.name)]
        assert "train" not in tasks
        assert {str(report(live, f"node-{n}")["level"]) for n in (1, 2, 3)} == {"2"}


def test_all_free_nodes_are_examined_on_demand_and_bad_ones_are_set_aside(tmp_path: Path) -> None:
    with live_controller(tmp_path, 3) as live:
        live.submit("job", ("sleep", "3600"), nodes=["node-1"])
        live.started("job")
        live.side.ask_node("node-3", "drain", why="else its fault has it examined at once")
        live.cluster.inject("node-3", "permanent")
        ran = run_command(
            "nodes", "check", "--all-idle", "--wait", "--json", "--level", "1", "--state", live.state
        )
        assert ran.code == 1, ran.err
        said = {node["name"]: node["verdict"] for node in json.loads(ran.out)["nodes"]}
        assert said == {"node-2": "healthy", "node-3": "replace"}
        assert live.side.node("node-3").status is NodeStatus.FAILED
        assert live.side.node("node-2").verdict is Verdict.HEALTHY
        assert live.job("job").status is JobStatus.IN_PROGRESS, "a node in use is left alone"
        assert report(live, "node-2")["level"] == "1"
        again = run_command("nodes", "check", "--all-idle", "--wait", "--state", live.state)
        assert (again.code, again.out.startswith("node-2: healthy")) == (0, True), again
        assert "node-3" not in again.out, "it is set aside already"
        live.side.stop("job", why="enough")
        live.ends("job", JobStatus.USER_STOPPED)


def test_without_a_free_node_nothing_is_asked_for(tmp_path: Path) -> None:
    with live_controller(tmp_path, 1) as live:
        live.submit("job", ("sleep", "3600"), any_nodes=1)
        live.started("job")
        ran = run_command("nodes", "check", "--all-idle", "--wait", "--state", live.state)
        assert (ran.code, ran.out) == (0, "no node is free: nothing was asked for\n")
        assert run_command("nodes", "check", "--state", live.state).code == 2
        assert run_command("nodes", "check", "--all-idle", "--level", "9", "--state", live.state).code == 2
        live.side.stop("job", why="enough")
        live.ends("job", JobStatus.USER_STOPPED)
