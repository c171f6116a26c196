"""A controller for the kill tests: makes the same calls from the start each time, and ends when all is done.

It keeps nothing in memory that matters, so it can be killed -9 anywhere and started again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.local.views import NodeRefused, RebootState, TaskSpec, TaskState

NODES = ("n1", "n2")
TASKS_PER_ROUND = 6


def task_ids(round_number: int) -> list[str]:
    return [f"r{round_number}-{number}" for number in range(TASKS_PER_ROUND)]


def expected_code(task_id: str) -> int:
    return int(task_id[-1]) % 3


def run_round(cluster: Cluster, round_number: int, ran: Path) -> None:
    """Order every task again and again until each has ended, on both nodes."""
    waiting = {(node, task_id) for node in NODES for task_id in task_ids(round_number)}
    while waiting:
        cluster.tend()
        for node, task_id in sorted(waiting):
            line = f"echo {node} {task_id} >> {ran}; sleep 0.1; exit {expected_code(task_id)}"
            try:
                cluster.start_task(node, TaskSpec(task_id=task_id, argv=("/bin/sh", "-c", line), gpus=1))
            except NodeRefused as refusal:
                if refusal.reason not in ("AGENT", "RESOURCE:GPU"):
                    raise
            if cluster.task(node, task_id).state is TaskState.ENDED:
                waiting.discard((node, task_id))
        time.sleep(0.02)


def main(state_dir: str, ran: str) -> None:
    cluster = Cluster(state_dir)
    for node in NODES:
        cluster.create(node, 2, boot_seconds=0.05)
        cluster.power_on(node)
    run_round(cluster, 1, Path(ran))
    for node in NODES:
        cluster.reboot(node, "job/1/reboot")
    while not all(cluster.reboot_state(node, "job/1/reboot") is RebootState.DONE for node in NODES):
        cluster.tend()
        time.sleep(0.02)
    run_round(cluster, 2, Path(ran))


if __name__ == "__main__":
    main(*sys.argv[1:])
