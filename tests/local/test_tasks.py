"""One task under its shim: how it starts, how it ends, and what its node's faults do to it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from ecs_gpu_recovery.core import messages
from ecs_gpu_recovery.core.job import causes
from ecs_gpu_recovery.local import processes, shim
from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.local.fleet import environment
from ecs_gpu_recovery.local.views import TaskSpec, TaskState
from tests.core.story import a_running_job
from tests.embedded.helpers import strays
from tests.local.helpers import (
    end_of,
    eventually,
    kill_9,
    lines,
    power_on,
    process_state,
    python,
    running_pid,
    shell,
    shim_pid,
    start_and_see_it_run,
)


def test_nccl_is_made_to_tell_on_a_port_for_each_rank_unless_somebody_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(nodes=2).job
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
    told = [environment(job, rank)["NCCL_RAS_ADDR"] for rank in job.ranks]
    assert told == ["localhost:28028", "localhost:28029"]
    own = {"NCCL_RAS_ADDR": "localhost:5", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
    asked = environment(replace(job, spec=replace(job.spec, env=own)), job.ranks[0])
    assert asked["NCCL_RAS_ADDR"] == "localhost:5"
    assert "TORCH_FR_BUFFER_SIZE" not in asked, "it is the newer name of what was asked for"
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in asked, "who has no folder yet shares /tmp with the others"
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost:6")
    assert "NCCL_RAS_ADDR" not in environment(job, job.ranks[0]), "it inherits the controller's"


FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
between = os.fork()
if between == 0:
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.waitpid(between, 0)
print("up", flush=True)
"""
"""A task with a child in its own session, as torchrun makes them, and a daemon that left its parent."""


@pytest.fixture
def node(cluster: Cluster) -> Cluster:
    power_on(cluster, "n1")
    return cluster


@pytest.mark.parametrize(
    ("line", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 77", 77), ("kill -9 $$", 137), ("kill -15 $$", 143)],
)
def test_the_exit_code_is_the_tasks_own(node: Cluster, line: str, code: int) -> None:
    node.start_task("n1", shell("t", line))
    end = end_of(node, "n1", "t")
    assert (end.exit_code, end.stop_code) == (code, "EssentialContainerExited")
    assert end.started_at is not None
    assert end.ended_at is not None
    assert end.started_at <= end.ended_at


def test_a_task_gets_its_environment_its_folder_and_a_log(node: Cluster) -> None:
    node.start_task(
        "n1", shell("t", 'echo "$RANK $GPU_RECOVERY_NODE $PWD"; echo oops >&2', env={"RANK": "7"})
    )
    end = end_of(node, "n1", "t")
    assert lines(end.log) == [f"7 n1 {end.folder}", "oops"]


@pytest.mark.parametrize(
    "spec", [TaskSpec(task_id="t", argv=("/no/such/program",)), shell("t", "true", cwd="/no/such/folder")]
)
def test_a_program_or_a_folder_that_is_not_there_failed_to_start(node: Cluster, spec: TaskSpec) -> None:
    node.start_task("n1", spec)
    end = end_of(node, "n1", "t")
    assert (end.exit_code, end.stop_code) == (None, "TaskFailedToStart")
    assert (end.reason or "").startswith("CannotStartContainerError: FileNotFoundError")


def test_a_stop_asks_first(node: Cluster) -> None:
    catch = "import signal, sys, time\nsignal.signal(15, lambda *a: sys.exit(9))\n"
    wait = "print('up', flush=True)\ntime.sleep(600)"
    task = start_and_see_it_run(node, "n1", python("t", catch + wait))
    eventually(lambda: lines(task.log) == ["up"])
    node.stop_task("n1", "t", "job j1 attempt 0")
    node.stop_task("n1", "t", "another reason, too late")
    end = end_of(node, "n1", "t")
    assert (end.exit_code, end.stop_code, end.reason) == (9, "UserInitiated", "job j1 attempt 0")


def test_a_task_that_ignores_the_stop_is_killed_with_its_family(node: Cluster) -> None:
    program = "import signal\nsignal.signal(15, signal.SIG_IGN)\n" + FAMILY + "time.sleep(600)"
    task = start_and_see_it_run(node, "n1", python("t", program, stop_timeout_s=0.3))
    eventually(lambda: lines(task.log) == ["up"])
    assert len(processes.marked(processes.TASK_MARKER, str(task.folder))) == 4  # shim, task, two that left
    node.stop_task("n1", "t", "enough")
    end = end_of(node, "n1", "t")
    assert (end.exit_code, end.stop_code) == (137, "UserInitiated")
    eventually(lambda: strays(node) == [])
    assert processes.marked(processes.TASK_MARKER, str(task.folder)) == []


def test_nothing_of_a_task_outlives_its_end(node: Cluster) -> None:
    node.start_task("n1", python("t", FAMILY + "sys.exit(4)"))
    end = end_of(node, "n1", "t")
    assert end.exit_code == 4
    eventually(lambda: processes.marked(processes.TASK_MARKER, str(end.folder)) == [])


def test_a_task_stopped_before_its_order_never_runs(node: Cluster) -> None:
    node.stop_task("n1", "t", "changed my mind")
    assert node.task("n1", "t").state is TaskState.ENDED
    node.start_task("n1", shell("t", "echo ran"))
    end = node.task("n1", "t")
    assert (end.state, end.exit_code, end.stop_code) == (TaskState.ENDED, None, "UserInitiated")
    node.start_task("n1", shell("other", "true"))
    end_of(node, "n1", "other")
    assert not end.log.exists()


def test_a_stop_between_order_and_start_wins(node: Cluster) -> None:
    agent = node.node("n1").pid
    assert agent is not None
    os.kill(agent, signal.SIGSTOP)
    node.start_task("n1", shell("t", "echo ran"))
    node.stop_task("n1", "t", "changed my mind")
    assert node.task("n1", "t").state is TaskState.PENDING
    os.kill(agent, signal.SIGCONT)
    end = end_of(node, "n1", "t")
    assert (end.exit_code, end.stop_code, end.reason) == (None, "UserInitiated", "changed my mind")
    assert not end.log.exists()


@pytest.mark.parametrize("claimed", [True, False], ids=["it is claimed", "else it would run twice"])
def test_a_second_shim_leaves_a_taken_folder_alone(node: Cluster, claimed: bool) -> None:
    """Without the claim a task would run again: it is the claim that protects."""
    node.start_task("n1", shell("t", "echo ran"))
    end = end_of(node, "n1", "t")
    if not claimed:
        (end.folder / "claim").unlink()
    argv = processes.python_module("ecs_gpu_recovery.local.shim", str(end.folder))
    subprocess.run(argv, check=True, timeout=60)
    assert lines(end.log) == ["ran"] * (1 if claimed else 2)


def test_a_polite_end_of_the_shim_ends_the_task(node: Cluster) -> None:
    task = start_and_see_it_run(node, "n1", shell("t", "exec sleep 600"))
    os.kill(shim_pid(task), signal.SIGTERM)
    end = end_of(node, "n1", "t")
    assert (end.exit_code, end.stop_code) == (143, "UserInitiated")
    assert end.reason == "the task's supervisor got SIGTERM"


def test_a_killed_shim_takes_its_task_along_even_one_that_left_and_hid(node: Cluster) -> None:
    """The escaped child carries no marker; the agent inherits it, because the agent adopts orphans."""
    hide = (
        "import subprocess, time\n"
        "p = subprocess.Popen(['/bin/sleep', '600'], env={}, start_new_session=True)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)"
    )
    task = start_and_see_it_run(node, "n1", python("t", hide))
    eventually(lambda: lines(task.log))
    hidden = int(lines(task.log)[0])
    kill_9(shim_pid(task))
    end = end_of(node, "n1", "t")
    assert (end.exit_code, end.stop_code) == (None, "EssentialContainerExited")
    assert end.reason == "the task's supervisor was killed, so nobody knows how the task ended"
    assert process_state(hidden) in ("", "Z")


def test_a_task_whose_folder_vanishes_ends(node: Cluster) -> None:
    task = start_and_see_it_run(node, "n1", shell("t", "exec sleep 600"))
    pid = running_pid(task)
    while task.folder.exists():  # a file that is just being written keeps it for a moment
        shutil.rmtree(task.folder, ignore_errors=True)
    eventually(lambda: process_state(pid) in ("", "Z"))


def test_a_task_over_its_memory_limit_is_killed_for_it(node: Cluster) -> None:
    hungry = (
        "import time\nx = bytearray(200 * 1024 * 1024)\nx[::4096] = b'x' * len(x[::4096])\ntime.sleep(600)"
    )
    node.start_task("n1", python("t", hungry, memory_mib=100))
    end = end_of(node, "n1", "t")
    assert end.exit_code == 137
    why = rf"{shim.OUT_OF_MEMORY}: it used (\d+) MiB, its limit is 100 MiB"
    told = re.fullmatch(why, end.reason or "")
    assert told, end.reason
    assert int(told[1]) > 100


def test_messages_leave_out_what_a_node_says_of_every_end() -> None:
    assert shim.ENDED in messages.NO_NEWS
    assert shim.OUT_OF_MEMORY in causes.OUT_OF_MEMORY


# faults


@pytest.mark.parametrize(
    ("fault", "code", "reason", "last_line"),
    [
        ("ecc", 1, shim.ENDED, "uncorrectable ECC error encountered"),
        ("off-bus", 1, shim.ENDED, "unspecified launch failure"),
        ("app-xid", 1, shim.ENDED, "an illegal memory access was encountered"),
        ("oom", 137, shim.OUT_OF_MEMORY, "up"),
    ],
)
def test_a_fault_ends_training_but_not_a_check(
    node: Cluster, fault: str, code: int, reason: str, last_line: str
) -> None:
    start_and_see_it_run(node, "n1", shell("check", "exec sleep 600", kind="check"))
    task = start_and_see_it_run(node, "n1", shell("t", "echo up; exec sleep 600", gpus=2))
    eventually(lambda: lines(task.log))
    node.inject("n1", fault)
    end = end_of(node, "n1", "t")
    assert (end.exit_code, end.stop_code, end.reason) == (code, "EssentialContainerExited", reason)
    assert lines(end.log)[-1].endswith(last_line)
    assert node.task("n1", "check").state is TaskState.RUNNING
    kernel = lines(node.node("n1").folder / "kmsg")[-1]
    assert f"pid={running_pid(task)}," in kernel or fault == "oom"


def test_training_started_on_a_broken_gpu_dies_too(node: Cluster) -> None:
    node.inject("n1", "ecc", gpu=1)
    node.start_task("n1", shell("t", "exec sleep 600"))
    assert end_of(node, "n1", "t").exit_code == 1


def test_a_hanging_gpu_freezes_training_until_it_is_killed(node: Cluster) -> None:
    task = start_and_see_it_run(node, "n1", python("t", FAMILY + "time.sleep(600)", stop_timeout_s=0.2))
    eventually(lambda: lines(task.log) == ["up"])
    members = [
        pid for pid in processes.marked(processes.TASK_MARKER, str(task.folder)) if pid != shim_pid(task)
    ]
    node.inject("n1", "hang")
    eventually(lambda: [process_state(pid) for pid in members] == ["T"] * 3)
    node.stop_task("n1", "t", "it hangs")
    end = end_of(node, "n1", "t")
    assert (end.exit_code, end.stop_code) == (137, "UserInitiated")


def test_a_frozen_task_goes_on_when_the_fault_is_taken_back(node: Cluster) -> None:
    pid = running_pid(start_and_see_it_run(node, "n1", shell("t", "sleep 5; exit 5")))
    node.inject("n1", "hang")
    eventually(lambda: process_state(pid) == "T")
    node.clear_faults("n1")
    assert end_of(node, "n1", "t").exit_code == 5


def test_a_slow_gpu_lets_training_run_by_fits_and_starts(node: Cluster) -> None:
    pid = running_pid(start_and_see_it_run(node, "n1", python("t", "while True: pass")))
    node.inject("n1", "slow", speed=0.5)
    for _ in range(2):
        eventually(lambda: process_state(pid) == "T")
        eventually(lambda: process_state(pid) == "R")
    node.stop_task("n1", "t", "enough")
    assert end_of(node, "n1", "t").exit_code == 143


def test_the_shim_can_be_started_by_hand() -> None:
    argv = [sys.executable, "-m", "ecs_gpu_recovery.local.shim"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "usage: shim TASK_DIR [BOOT_ID]\n")
