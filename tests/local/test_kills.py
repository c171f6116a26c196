"""kill -9 at random moments, many times: every task runs once, ends right, and leaves nobody behind.

A seed that fails is printed by pytest as part of the test's name.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.local.views import NodeRefused, TaskState
from tests.embedded.helpers import living, strays
from tests.local import controller_program as program
from tests.local.helpers import a_cluster, eventually, kill_9, lines, power_on, shell, shim_pid

ROOT = Path(__file__).resolve().parents[2]
KILLS = 16


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_controller_killed_at_random_loses_and_repeats_nothing(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(seed)
    ran = tmp_path / "ran"
    state = tmp_path / "state"
    argv = [sys.executable, "-m", "tests.local.controller_program", str(state), str(ran)]
    with a_cluster(state) as cluster:
        kills = 0
        for _ in range(KILLS):
            controller = subprocess.Popen(argv, cwd=ROOT)
            try:
                controller.wait(timeout=chance.uniform(0.1, 0.4))
            except subprocess.TimeoutExpired:
                controller.kill()
                kills += 1
            controller.wait()
        assert kills > KILLS / 3, "the work was done before it could be disturbed"
        record_property("kills", kills)
        subprocess.run(argv, cwd=ROOT, check=True, timeout=120)
        wanted = [
            (node, task_id)
            for node in program.NODES
            for number in (1, 2)
            for task_id in program.task_ids(number)
        ]
        assert Counter(lines(ran)) == Counter(f"{node} {task_id}" for node, task_id in wanted)
        codes = {pair: cluster.task(*pair).exit_code for pair in wanted}
        assert codes == {pair: program.expected_code(pair[1]) for pair in wanted}
        for node in program.NODES:
            assert len(list(cluster.node(node).folder.glob("kmsg.*"))) == 1, "booted exactly twice"
        eventually(lambda: len(living(cluster)) == len(program.NODES), "only the agents are left")


def test_agents_killed_at_random_lose_and_repeat_no_task(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(3)
    ran = tmp_path / "ran"
    power_on(cluster, "n1")
    ids = [f"t{number}" for number in range(16)]
    todo = list(ids)
    kills = 0
    deadline = time.monotonic() + 60
    while (todo or kills < KILLS or cluster.tasks("n1", live_only=True)) and time.monotonic() < deadline:
        if todo:
            try:
                cluster.start_task("n1", shell(todo[0], f"echo {todo[0]} >> {ran}; sleep 0.05; exit 3"))
                todo.pop(0)
            except NodeRefused:
                pass  # the agent is dead just now
        time.sleep(chance.uniform(0, 0.12))
        pid = cluster.node("n1").pid
        if pid is not None and kills < KILLS:
            kill_9(pid)
            kills += 1
        cluster.tend()
    assert kills == KILLS
    record_property("kills", kills)
    assert Counter(lines(ran)) == Counter(ids)
    assert {cluster.task("n1", task_id).exit_code for task_id in ids} == {3}
    eventually(lambda: strays(cluster) == [])


def test_shims_killed_at_random_leave_no_survivor_and_no_open_end(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(4)
    ran = tmp_path / "ran"
    power_on(cluster, "n1")
    ids = [f"t{number}" for number in range(KILLS)]
    kills = 0
    line = f"echo $GPU_RECOVERY_TASK >> {ran}; setsid sleep 600 & sleep 0.15; exit 3"
    for task_id in ids:
        cluster.start_task("n1", shell(task_id, line))
        eventually(lambda task_id=task_id: (cluster.task("n1", task_id).folder / "claim").exists())
        time.sleep(chance.choice([0, 0.01, 0.05, 0.1, 0.2]))
        task = cluster.task("n1", task_id)
        if task.live:
            try:
                kill_9(shim_pid(task))
            except ProcessLookupError:
                continue  # it ended this very moment
            kills += 1
    record_property("kills", kills)
    eventually(lambda: all(cluster.task("n1", task_id).state is TaskState.ENDED for task_id in ids))
    assert set(Counter(lines(ran)).values()) == {1}
    ends = Counter(cluster.task("n1", task_id).exit_code for task_id in ids)
    assert set(ends) <= {3, None}, "an end that nobody saw has no exit code"
    assert ends[None] > 0
    eventually(lambda: len(living(cluster)) == 1, "only the agent is left")
