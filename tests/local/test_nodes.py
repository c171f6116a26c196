"""Nodes: power, agents that die and come back, reboots that happen once, faults of the whole node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ecs_gpu_recovery.local import cluster as cluster_module
from ecs_gpu_recovery.local import gpus, processes
from ecs_gpu_recovery.local.cluster import SHUT_DOWN, Cluster
from ecs_gpu_recovery.local.files import locked, read_json, write_json
from ecs_gpu_recovery.local.views import NodeRefused, NodeState, RebootState, TaskState
from tests.embedded.helpers import living
from tests.local.helpers import (
    end_of,
    eventually,
    kill_9,
    lines,
    power_on,
    process_state,
    shell,
    shim_pid,
    start_and_see_it_run,
)

ROOT = Path(__file__).resolve().parents[2]


def agent_pid(cluster: Cluster, name: str) -> int:
    pid = cluster.node(name).pid
    assert pid is not None
    return pid


def test_a_node_boots_and_then_takes_tasks(cluster: Cluster) -> None:
    cluster.create("n1", 2, boot_seconds=0.5)
    assert cluster.node("n1").state is NodeState.OFF
    cluster.power_on("n1")
    eventually(lambda: cluster.node("n1").state is NodeState.BOOTING)
    with pytest.raises(NodeRefused, match=r"^AGENT: ") as refusal:
        cluster.start_task("n1", shell("t", "true"))
    assert refusal.value.reason == "AGENT"
    eventually(lambda: cluster.node("n1").connected)
    node = cluster.node("n1")
    assert (node.gpus_expected, node.gpus_seen) == (2, 2)
    cluster.start_task("n1", shell("t", "true"))
    assert end_of(cluster, "n1", "t").exit_code == 0


def test_creating_the_same_node_again_is_fine_and_another_is_not(cluster: Cluster) -> None:
    cluster.create("n1", 2)
    cluster.create("n1", 2)
    with pytest.raises(ValueError, match="exists and is another"):
        cluster.create("n1", 4)
    with pytest.raises(ValueError, match="the first no sign"):
        cluster.create("../n1", 2)


def test_a_node_that_is_not_there_is_missing(cluster: Cluster) -> None:
    with pytest.raises(NodeRefused) as refusal:
        cluster.start_task("nowhere", shell("t", "true"))
    assert refusal.value.reason == "MISSING"


def test_gpus_are_refused_while_a_live_task_holds_them(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    start_and_see_it_run(cluster, "n1", shell("a", "exec sleep 600", gpus=2))
    with pytest.raises(NodeRefused) as refusal:
        cluster.start_task("n1", shell("b", "true", gpus=1))
    assert refusal.value.reason == "RESOURCE:GPU"
    cluster.start_task("n1", shell("without", "true"))
    cluster.stop_task("n1", "a", "make room")
    end_of(cluster, "n1", "a")
    cluster.start_task("n1", shell("b", "true", gpus=1))
    for task in ("without", "b"):
        assert end_of(cluster, "n1", task).exit_code == 0
    assert cluster.tasks("n1", live_only=True) == []
    assert [task.task_id for task in cluster.tasks("n1")] == ["a", "b", "without"]


def test_ordering_a_task_again_changes_nothing(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    for _ in range(3):
        cluster.start_task("n1", shell("t", "echo ran", gpus=2))
    end = end_of(cluster, "n1", "t")
    cluster.start_task("n1", shell("t", "echo ran", gpus=2))
    cluster.start_task("n1", shell("after", "true"))
    end_of(cluster, "n1", "after")
    assert lines(end.log) == ["ran"]


def test_powering_on_a_running_node_changes_nothing(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    before = cluster.node("n1")
    cluster.power_on("n1")
    Cluster(before.folder.parent.parent).power_on("n1")
    assert cluster.node("n1") == before
    assert len(living(cluster)) == 1


def test_two_agents_for_one_node_end_as_one(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    argv = processes.python_module("ecs_gpu_recovery.local.node", str(cluster.node("n1").folder))
    subprocess.run(argv, check=True, timeout=60)
    assert cluster.node("n1").connected


def test_tasks_run_on_without_their_agent_and_the_next_one_finds_them(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    start_and_see_it_run(cluster, "n1", shell("t", "echo ran; sleep 1; exit 6"))
    before = cluster.node("n1")
    kill_9(agent_pid(cluster, "n1"))
    eventually(lambda: cluster.node("n1").state is NodeState.DOWN)
    assert cluster.task("n1", "t").state is TaskState.RUNNING
    cluster.tend()
    eventually(lambda: cluster.node("n1").connected)
    assert cluster.node("n1").boot_id == before.boot_id
    end = end_of(cluster, "n1", "t")
    assert (end.exit_code, lines(end.log)) == (6, ["ran"])


def test_a_task_that_lost_agent_and_shim_is_settled_by_the_next_agent(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    task = start_and_see_it_run(cluster, "n1", shell("t", "setsid sleep 600 & exec sleep 600"))
    eventually(lambda: len(processes.marked(processes.TASK_MARKER, str(task.folder))) == 3)
    kill_9(agent_pid(cluster, "n1"))
    kill_9(shim_pid(task))
    eventually(
        lambda: len(processes.marked(processes.TASK_MARKER, str(task.folder))) == 1
    )  # the one that left
    eventually(lambda: cluster.node("n1").state is NodeState.DOWN)
    cluster.tend()
    end = end_of(cluster, "n1", "t")
    assert (end.exit_code, end.stop_code) == (None, "EssentialContainerExited")
    assert processes.marked(processes.TASK_MARKER, str(task.folder)) == []


def test_power_off_ends_everything_and_tend_leaves_it_off(cluster: Cluster) -> None:
    power_on(cluster, "n1", "n2")
    start_and_see_it_run(cluster, "n1", shell("t", "setsid sleep 600 & exec sleep 600"))
    cluster.inject("n1", "lost")
    assert {process.node for process in living(cluster)} == {"n2"}
    cluster.tend()
    lost = cluster.node("n1")
    assert (lost.state, lost.connected, lost.why_off) == (NodeState.OFF, False, "lost")
    assert cluster.task("n1", "t").state is TaskState.RUNNING  # nobody is there to tell otherwise
    with pytest.raises(NodeRefused, match="AGENT"):
        cluster.start_task("n1", shell("t2", "true"))
    cluster.power_on("n1")
    end = end_of(cluster, "n1", "t")
    assert (end.exit_code, end.reason) == (137, "node restarted while the task ran")
    assert end.stop_code == "EssentialContainerExited"
    eventually(lambda: cluster.node("n1").connected)
    assert cluster.node("n1").boot_id != lost.boot_id


def test_a_node_says_that_it_is_to_be_taken_away_and_then_it_is(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    cluster.inject("n1", "leaving")
    cluster.tend()
    said = cluster.node("n1")
    assert (said.connected, said.leaving is None) == (True, False)
    cluster.clear_faults("n1")
    assert cluster.node("n1").leaving is None
    (said.folder / "leaving").write_text("2026-01-01T00:00:00+00:00")
    cluster.tend()
    assert (cluster.node("n1").state, cluster.node("n1").why_off) == (
        NodeState.OFF,
        "taken away, as announced",
    )
    cluster.power_on("n1")
    eventually(lambda: cluster.node("n1").connected)
    assert cluster.node("n1").leaving is None


def test_a_reboot_happens_once_per_key(cluster: Cluster) -> None:
    power_on(cluster, "n1", boot_seconds=0.1)
    first = cluster.node("n1").boot_id
    assert cluster.reboot_state("n1", "job/1/reboot") is RebootState.NONE
    start_and_see_it_run(cluster, "n1", shell("t", "exec sleep 600", gpus=2))
    cluster.reboot("n1", "job/1/reboot")
    assert cluster.reboot_state("n1", "job/1/reboot") is RebootState.PENDING
    eventually(lambda: cluster.reboot_state("n1", "job/1/reboot") is RebootState.DONE)
    second = cluster.node("n1").boot_id
    assert second != first
    cluster.reboot("n1", "job/1/reboot")
    assert cluster.node("n1").boot_id == second
    assert cluster.task("n1", "t").reason == "node restarted while the task ran"
    cluster.reboot("n1", "job/2/reboot" + "x" * 300)
    assert cluster.node("n1").boot_id not in (first, second)
    eventually(lambda: cluster.reboot_state("n1", "job/2/reboot" + "x" * 300) is RebootState.DONE)
    assert cluster.reboot_state("n1", "job/1/reboot") is RebootState.DONE


def test_without_the_marker_a_repeated_order_would_reboot_again(cluster: Cluster) -> None:
    """The control of the test above: it is the marker that protects."""
    power_on(cluster, "n1")
    cluster.reboot("n1", "key")
    second = cluster.node("n1").boot_id
    (cluster.node("n1").folder / "reboots" / "key.json").unlink()
    cluster.reboot("n1", "key")
    assert cluster.node("n1").boot_id != second


def test_a_task_ordered_before_the_reboot_does_not_start_after_it(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    agent = agent_pid(cluster, "n1")
    os.kill(agent, 19)
    cluster.start_task("n1", shell("t", "echo ran"))
    cluster.reboot("n1", "key")
    end = end_of(cluster, "n1", "t")
    assert (end.exit_code, end.reason) == (137, "node restarted while the task ran")
    assert not end.log.exists()


def test_a_shim_of_an_older_boot_does_not_start_its_task(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    folder = cluster.node("n1").folder / "tasks" / "t"
    folder.mkdir()
    argv = processes.python_module("ecs_gpu_recovery.local.shim", str(folder), "an older boot")
    subprocess.run(argv, check=True, timeout=60)
    assert (read_json(str(folder / "exit.json")) or {})["reason"] == "node restarted while the task ran"


@pytest.mark.parametrize("boot_seconds", [0, 60])
def test_an_agent_that_finds_another_boot_leaves(cluster: Cluster, boot_seconds: float) -> None:
    """It can happen to one that was missed when its node was rebooted."""
    cluster.create("n1", 1, boot_seconds=boot_seconds)
    cluster.power_on("n1")
    eventually(lambda: cluster.node("n1").state is (NodeState.BOOTING if boot_seconds else NodeState.READY))
    agent = agent_pid(cluster, "n1")
    folder = cluster.node("n1").folder
    boot = read_json(str(folder / "boot.json")) or {}
    write_json(str(folder / "boot.json"), {**boot, "boot_id": "another"})
    eventually(lambda: process_state(agent) in ("", "Z"))
    assert (read_json(str(folder / "agent.json")) or {})["boot_id"] == boot["boot_id"]


class Died(Exception):
    """Stands for kill -9 in the middle of a call."""


@pytest.mark.parametrize("step", ["create_json", "_kill_all", "boot", "write_json", "_ensure_agent"])
def test_a_reboot_whose_controller_died_at_any_step_is_finished_by_the_same_call(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    power_on(cluster, "n1")
    cluster.inject("n1", "off-bus")
    first = cluster.node("n1").boot_id
    place = {"create_json": cluster_module, "write_json": cluster_module, "boot": gpus}.get(step, Cluster)
    real = getattr(place, step)

    def do_it_and_die(*arguments: object, **more: object) -> None:
        real(*arguments, **more)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(place, step, do_it_and_die)
        with pytest.raises(Died):
            cluster.reboot("n1", "key")
    successor = Cluster(cluster.node("n1").folder.parent.parent)
    successor.tend()
    successor.reboot("n1", "key")
    eventually(lambda: successor.reboot_state("n1", "key") is RebootState.DONE)
    kept = [path.name for path in successor.node("n1").folder.glob("kmsg.*")]
    assert kept == [f"kmsg.{first}"]
    assert successor.node("n1").gpus_seen == 2


def test_a_node_ordered_not_to_return_stays_away_until_somebody_powers_it_on(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    cluster.inject("n1", "no-return")
    cluster.reboot("n1", "key")
    cluster.reboot("n1", "key")
    cluster.tend()
    gone = cluster.node("n1")
    assert (gone.state, gone.why_off) == (NodeState.OFF, "did not come back from its reboot")
    assert cluster.reboot_state("n1", "key") is RebootState.PENDING
    assert living(cluster) == []
    cluster.power_on("n1")
    eventually(lambda: cluster.reboot_state("n1", "key") is RebootState.DONE)
    cluster.reboot("n1", "next")
    eventually(lambda: cluster.reboot_state("n1", "next") is RebootState.DONE)


def test_a_node_counts_its_gpus_when_it_boots(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    cluster.inject("n1", "off-bus")
    cluster.inject("n1", "no-cure")
    assert cluster.node("n1").gpus_seen == 2
    cluster.reboot("n1", "key")
    eventually(lambda: cluster.node("n1").connected)
    assert cluster.node("n1").gpus_seen == 1
    with pytest.raises(NodeRefused, match="RESOURCE:GPU"):
        cluster.start_task("n1", shell("t", "true", gpus=2))


def test_after_a_reboot_of_the_host_a_node_boots_anew(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    cluster.shutdown()
    folder = cluster.node("n1").folder
    (folder / "off").unlink()
    boot = read_json(str(folder / "boot.json")) or {}
    write_json(str(folder / "boot.json"), {**boot, "host_boot_id": "an earlier boot of the host"})
    cluster.tend()
    eventually(lambda: cluster.node("n1").connected)
    assert cluster.node("n1").boot_id != boot["boot_id"]


def test_a_cluster_that_was_shut_down_says_so(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    cluster.inject("n1", "lost")
    cluster.create("n2", 1)
    cluster.power_on("n2")
    cluster.shutdown()
    assert [node.why_off for node in cluster.nodes()] == ["lost", SHUT_DOWN]


def test_a_node_whose_folder_vanishes_ends_with_its_tasks(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    start_and_see_it_run(cluster, "n1", shell("t", "exec sleep 600"))
    pids = [process.pid for process in living(cluster)]
    assert len(pids) == 3
    shutil.rmtree(cluster.node("n1").folder, ignore_errors=True)
    eventually(lambda: all(process_state(pid) in ("", "Z") for pid in pids))


def test_a_node_with_real_gpus_takes_no_simulated_faults(cluster: Cluster) -> None:
    cluster.create("n1", 1, boot_seconds=0, kind="real")
    cluster.power_on("n1")
    eventually(lambda: cluster.node("n1").connected)
    assert cluster.node("n1").kind == "real"
    with pytest.raises(ValueError, match="needs simulated GPUs"):
        cluster.inject("n1", "ecc")


def test_a_task_whose_shims_never_get_going_failed_to_start(cluster: Cluster) -> None:
    power_on(cluster, "n1")
    kill_9(agent_pid(cluster, "n1"))
    eventually(lambda: cluster.node("n1").state is NodeState.DOWN)
    node = cluster.node("n1")
    (node.folder / "tasks" / "t").mkdir()
    write_json(str(node.folder / "tasks" / "t" / "spec.json"), {"task_id": "t", "boot_id": node.boot_id})
    program = (
        "import sys; from ecs_gpu_recovery.local.node import SHIM_TRIES, Agent\n"
        "agent = Agent(*sys.argv[1:]); agent.tries['t'] = SHIM_TRIES; agent.tend_tasks()"
    )
    argv = [sys.executable, "-c", program, str(node.folder), str(node.boot_id)]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=60)
    end = cluster.task("n1", "t")
    assert (end.exit_code, end.stop_code) == (None, "TaskFailedToStart")
    assert end.reason is not None
    assert end.reason.startswith("CannotStartContainerError: ")


def test_an_unknown_fault_is_refused_with_the_list_of_known_ones(cluster: Cluster) -> None:
    cluster.create("n1", 1)
    with pytest.raises(ValueError, match="there are: xid, ecc, off-bus"):
        cluster.inject("n1", "gremlin")


def test_a_controller_can_end_while_its_nodes_run_and_no_pipe_stays_open(tmp_path: Path) -> None:
    """`controller | cat` must end with the controller, and the nodes must live on."""
    program = (
        "import os, sys; from ecs_gpu_recovery.local.cluster import Cluster; os.set_inheritable(3, True)\n"
        "c = Cluster(sys.argv[1]); c.create('n1', 1, boot_seconds=0); c.power_on('n1')"
    )
    argv = ["/bin/sh", "-c", 'exec 3>&1; exec "$@"', "sh", sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    successor = Cluster(tmp_path)
    eventually(lambda: successor.node("n1").connected)
    successor.shutdown()
    assert living(successor) == []


def test_a_lock_left_by_a_dead_controller_holds_nobody_up(cluster: Cluster) -> None:
    cluster.create("n1", 1)
    lock = str(cluster.node("n1").folder / "lock")
    program = (
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), 2); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, lock], check=False, timeout=60)
    with locked(lock):
        pass
