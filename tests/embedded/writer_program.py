"""Writers for the crash tests of the store: jobs live and end as fast as they can. Every acknowledged commit
is noted in a file of its own, which survives a kill -9 as the store has to.

    writer_program DATABASE NOTES jobs THREADS     whole lives of jobs, until killed
    writer_program DATABASE NOTES count TIMES      that many increments of one record that others write too
    writer_program DATABASE NOTES open             only opens the database
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from ecs_gpu_recovery.core.errors import VersionConflict
from ecs_gpu_recovery.core.events import TaskEnded, TaskStarted
from ecs_gpu_recovery.core.model import Job, JobSpec, NodeStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.local.fleet import LocalFleet
from ecs_gpu_recovery.local.notify import LocalNotifier
from ecs_gpu_recovery.local.store import SqliteStore
from ecs_gpu_recovery.local.wiring import LOCAL_POLICY, now

RANKS = 2


class Notes:
    """What was acknowledged: one line per commit, written whole."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, job: Job) -> None:
        os.write(self.fd, f"{job.id} {job.version} {job.status}\n".encode())


def node_name(thread: int, rank: int) -> str:
    return f"t{thread}-r{rank}"


def a_node(name: str) -> Node:
    at = now()
    return Node(name=name, cluster="c", created_at=at, updated_at=at, status=NodeStatus.AVAILABLE, gpus=1)


def live_jobs_for_ever(runtime: Runtime, notes: Notes, thread: int) -> None:
    """Submit, start both ranks, end both ranks: COMPLETE; again. Nothing is sent, everything is recorded."""
    names = [node_name(thread, rank) for rank in range(RANKS)]
    for name in names:
        runtime.store.add_node(a_node(name))
    number = 0
    while True:
        number += 1
        job_id = f"{os.getpid()}-{thread}-{number}"
        spec = JobSpec(command=("true",), checkpoint_dir="/nowhere", master_port=1)
        holders = {runtime.store.node(name).job_id for name in names}
        for holder in sorted(holders - {""}):  # what a writer before us left unfinished
            notes.add(runtime.handle(holder, [ended(holder, rank) for rank in range(RANKS)]))
        notes.add(runtime.submit(job_id=job_id, cluster="c", spec=spec, nodes=names, at=now(), check=False))
        for rank in range(RANKS):
            started = TaskStarted(at=now(), task_id=f"{job_id}/{rank}", attempt=0, rank=rank, running=True)
            notes.add(runtime.handle(job_id, [started]))
        for rank in range(RANKS):
            notes.add(runtime.handle(job_id, [ended(job_id, rank)]))


def ended(job_id: str, rank: int) -> TaskEnded:
    return TaskEnded(
        at=now(),
        task_id=f"{job_id}/{rank}",
        attempt=0,
        rank=rank,
        exit_code=0,
        stop_code="EssentialContainerExited",
    )


def count(store: SqliteStore, name: str, times: int) -> None:
    for _ in range(times):
        while True:
            node = store.node(name)
            try:
                store.commit_node(replace(node, errands=node.errands + 1, version=node.version + 1))
                break
            except VersionConflict:
                continue


def main(database: str, notes_path: str, what: str, number: str = "0") -> None:
    store = SqliteStore(Path(database))
    notes = Notes(Path(notes_path))
    if what == "jobs":
        notifier = LocalNotifier(store, now)
        fleet = LocalFleet(Cluster(Path(database).parent), now)
        runtime = Runtime(store=store, fleet=fleet, notifier=notifier, policy=LOCAL_POLICY, dispatch=False)
        for thread in range(int(number)):
            threading.Thread(target=live_jobs_for_ever, args=(runtime, notes, thread), daemon=True).start()
        threading.Event().wait()
    elif what == "count":
        count(store, "shared", int(number))
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
