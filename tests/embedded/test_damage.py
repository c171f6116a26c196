"""Files of a node that no writer of ours can have left so: others go on, and a person learns which file it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.jobfile import parse
from ecs_gpu_recovery.local.files import DamagedFile
from ecs_gpu_recovery.local.views import TaskSpec, TaskState
from tests.cli.conftest import run_command
from tests.embedded.helpers import FOREVER, eventually, live_controller, training
from tests.local.helpers import a_cluster, kill_9, power_on

DAMAGE = {"half": '{"boot_id": "a', "a list": "[]", "another type": '{"boot_id": 5}', "no text": "\udcff"}


@pytest.mark.parametrize(
    ("file", "damage"),
    [("boot.json", "half"), ("boot.json", "another type"), ("node.json", "a list"), ("node.json", "no text")],
)
def test_a_damaged_node_does_not_keep_the_agents_of_later_ones_from_coming_back(
    tmp_path: Path, file: str, damage: str
) -> None:
    with a_cluster(tmp_path) as cluster:
        power_on(cluster, "a", "b")
        bad = tmp_path / "nodes" / "a" / file
        bad.write_text(DAMAGE[damage], errors="surrogateescape")
        for name in ("a", "b"):
            pid = json.loads((tmp_path / "nodes" / name / "agent.json").read_text())["pid"]
            kill_9(pid)
        eventually(lambda: cluster.node("b").pid is None, "b has lost its agent")
        trouble = cluster.tend()
        eventually(lambda: cluster.node("b").connected, "b is back")
        view = cluster.node("a")
        assert (view.connected, view.damaged) == (False, True)
        assert str(bad) in (view.why_off or "")
        assert set(trouble) <= {"a"}
        assert [v.name for v in cluster.nodes()] == ["a", "b"]


def test_an_agent_writes_its_own_file_again_whoever_damaged_it(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        power_on(cluster, "a")
        before, own = cluster.node("a"), tmp_path / "nodes" / "a" / "agent.json"
        own.write_text("{half")
        eventually(lambda: cluster.node("a").connected, "the living agent says again who it is")
        assert cluster.node("a").pid == before.pid
        own.unlink()
        eventually(lambda: cluster.node("a").connected, "and again")
        kill_9(before.pid or 0)
        eventually(lambda: cluster.node("a").pid is None, "it is dead")
        own.write_text("{half")
        cluster.tend()
        eventually(lambda: cluster.node("a").connected, "the next agent starts afresh")
        assert cluster.node("a").boot_id == before.boot_id


def test_a_damaged_order_does_not_stop_the_other_tasks_of_its_node(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        power_on(cluster, "a")
        spoiled = tmp_path / "nodes" / "a" / "tasks" / "spoiled"
        spoiled.mkdir()
        (spoiled / "spec.json").write_text("{half")
        with pytest.raises(DamagedFile, match=r"spoiled/spec.json is damaged"):
            cluster.task("a", "spoiled")
        agent = cluster.node("a").pid
        good = tmp_path / "nodes" / "a" / "tasks" / "good"
        good.mkdir()
        spec = cluster._order(
            cluster.node("a").folder, cluster.node("a"), TaskSpec(task_id="good", argv=("true",))
        )
        (good / "spec.json").write_text(json.dumps(spec))
        eventually(lambda: cluster.task("a", "good").state is TaskState.ENDED, "the good one ran")
        assert cluster.task("a", "good").exit_code == 0
        assert cluster.node("a").pid == agent


def test_damaged_faults_do_not_end_a_task(tmp_path: Path) -> None:
    with live_controller(tmp_path) as live:
        live.submit("job", training(30, 0.05))
        live.trains_to("job", 3)
        for name in ("gpus.json", "faults.json"):
            (tmp_path / "nodes" / "node-1" / name).write_text('{"gpus": 7, "hits": 5}')
        job = live.ends("job", JobStatus.COMPLETE)
        assert job.attempt == 0


def test_a_person_is_told_which_file_is_bad_and_the_rest_goes_on(tmp_path: Path) -> None:
    with live_controller(tmp_path, nodes=3) as live:
        good = (tmp_path / "nodes" / "node-1" / "boot.json").read_text()
        bad = tmp_path / "nodes" / "node-1" / "boot.json"
        bad.write_text("{half")
        message = eventually(lambda: live.side.notices(10), "a message")[0]
        assert str(bad) in message["evidence"]
        assert message["node"] == "node-1"
        run_command("doctor", "--state", tmp_path).tells(str(bad), code=1)
        live.submit("job", training(5, 0), nodes=["node-2", "node-3"])
        live.ends("job", JobStatus.COMPLETE)
        bad.write_text(good)
        eventually(lambda: live.side.node("node-1").claimable, "mended, it is used again")
        assert len(live.side.notices(10)) == 1, "told once"


def test_a_control_plane_starts_though_the_files_of_one_node_are_bad(tmp_path: Path) -> None:
    with live_controller(tmp_path, nodes=2):
        pass
    (tmp_path / "nodes" / "node-1" / "node.json").write_text("{}")
    with live_controller(tmp_path, nodes=2, ready=["node-2"]) as live:
        live.submit("job", training(5, 0), nodes=["node-2"])
        live.ends("job", JobStatus.COMPLETE)
        assert not live.side.node("node-1").connected


def test_two_running_jobs_may_not_keep_their_checkpoints_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with live_controller(tmp_path / "state") as live:
        live.submit("first", FOREVER, nodes=["node-1"], checkpoint_dir=str(folder))
        request = {"command": list(FOREVER), "nodes": ["node-2"], "check": "none"}
        same = parse({**request, "checkpoint_dir": f"{folder}/../checkpoints"}, python=sys.executable)
        with pytest.raises(
            Refused, match=r"job first is running and keeps its checkpoints in .*/checkpoints"
        ):
            live.side.submit(same)
        assert live.side.node("node-2").claimable
        live.stop("first")
        taken_over = live.side.submit(same)
        assert taken_over.spec.checkpoint_dir == str(folder), "an ended job's work may be taken over"
        live.stop(taken_over.id)
