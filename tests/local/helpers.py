"""What the tests of the embedded cluster share: waiting, small task programs, killing by identity."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.local.files import read_json
from ecs_gpu_recovery.local.views import TaskSpec, TaskState, TaskView
from tests.embedded.helpers import living
from tests.programs import eventually


@contextmanager
def a_cluster(state: Path) -> Iterator[Cluster]:
    """It leaves no process behind."""
    made = Cluster(state)
    try:
        yield made
    finally:
        made.shutdown()
    assert living(made) == []


def power_on(cluster: Cluster, *names: str, gpus: int = 2, boot_seconds: float = 0.0) -> None:
    """Make nodes and wait until they take tasks."""
    for name in names:
        cluster.create(name, gpus, boot_seconds=boot_seconds)
        cluster.power_on(name)
    for name in names:
        eventually(lambda name=name: cluster.node(name).connected, f"{name} is connected")


def shell(task_id: str, line: str, **more: object) -> TaskSpec:
    return TaskSpec(task_id=task_id, argv=("/bin/sh", "-c", line), **more)  # type: ignore[arg-type]


def python(task_id: str, program: str, **more: object) -> TaskSpec:
    return TaskSpec(task_id=task_id, argv=(sys.executable, "-S", "-c", program), **more)  # type: ignore[arg-type]


def end_of(cluster: Cluster, node: str, task_id: str) -> TaskView:
    eventually(lambda: cluster.task(node, task_id).state is TaskState.ENDED, f"{task_id} ended")
    return cluster.task(node, task_id)


def start_and_see_it_run(cluster: Cluster, node: str, spec: TaskSpec) -> TaskView:
    cluster.start_task(node, spec)
    eventually(lambda: cluster.task(node, spec.task_id).state is TaskState.RUNNING, f"{spec.task_id} runs")
    return cluster.task(node, spec.task_id)


def shim_pid(task: TaskView) -> int:
    return int((read_json(str(task.folder / "claim")) or {})["pid"])


def running_pid(task: TaskView) -> int:
    """Of the task's own program."""
    return int((read_json(str(task.folder / "running.json")) or {})["pid"])


def kill_9(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def process_state(pid: int) -> str:
    """The letter the kernel gives it: T for stopped, S for sleeping, and so on; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
