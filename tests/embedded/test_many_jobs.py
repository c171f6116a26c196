"""Thousands of small jobs, one after the other: each runs once, and neither memory nor folders grow with them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.local import attic
from ecs_gpu_recovery.local.attic import AT_ONCE, KEEP_ENDED
from ecs_gpu_recovery.local.views import TaskSpec, TaskState
from tests.embedded import helpers
from tests.embedded.helpers import ControlPlane, control_plane, eventually, living
from tests.local.helpers import a_cluster, power_on

#: JOBS=5000 pytest -m slow tests/embedded/test_many_jobs.py
MANY = int(os.environ.get("JOBS", "2000"))
NODES = 4


class Mill:
    """Keeps every node busy with the next small job until enough were submitted."""

    def __init__(self, plane: ControlPlane, ran: Path) -> None:
        self.plane, self.ran = plane, ran
        self.submitted = 0

    def grind(self, jobs: int) -> None:
        while self.submitted < jobs:
            free = [node.name for node in self.plane.side.nodes() if node.claimable]
            for name in free[: jobs - self.submitted]:
                command = ["/bin/sh", "-c", f'echo "$JOB_ID" >> {self.ran}']
                helpers.submit_on(self.plane, f"j{self.submitted}", command, nodes=[name], check="none")
                self.submitted += 1
            if not free:
                eventually(lambda: any(node.claimable for node in self.plane.side.nodes()), "a free node")
            self.plane.must_live()
        eventually(self.plane.nodes_free, "all nodes are free")

    def check(self) -> None:
        wanted = {f"j{number}" for number in range(self.submitted)}
        assert Counter(self.ran.read_text().split()) == Counter(wanted), "each ran once"
        store = self.plane.store
        assert dict(store.read("SELECT job_status, COUNT(*) FROM ecs_job GROUP BY 1")) == {
            JobStatus.COMPLETE.value: self.submitted
        }
        assert dict(store.read("SELECT task_status, COUNT(*) FROM ecs_task GROUP BY 1")) == {
            "COMPLETE": self.submitted
        }
        for job_id in sorted(wanted)[:: max(1, self.submitted // 50)]:
            job = store.job(job_id)
            assert (broken(job), job.attempt, job.outbox) == ([], 0, ())
        assert self.plane.side.notices(10) == []

    def memory_mib(self) -> float:
        """Of the controller and the agents together, at rest."""
        pids = [view.pid for view in self.plane.cluster.nodes()] + [self.plane.process.pid]  # type: ignore[union-attr]
        return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20

    def open_files(self) -> int:
        assert self.plane.process is not None
        return psutil.Process(self.plane.process.pid).num_fds()

    def task_folders(self) -> int:
        return max(len(list((view.folder / "tasks").iterdir())) for view in self.plane.cluster.nodes())


def play(tmp_path: Path, jobs: int) -> tuple[Mill, float, int]:
    """Grind; compare what it takes after a quarter of the jobs with what it takes after all of them."""
    with control_plane(tmp_path / "state", NODES) as plane, plane.running():
        eventually(lambda: (plane.state / "recovery.db").exists(), "a database")
        eventually(plane.nodes_free, "all nodes are free")
        mill = Mill(plane, tmp_path / "ran")
        mill.grind(jobs // 4)
        before, files = mill.memory_mib(), mill.open_files()
        mill.grind(jobs)
        mill.check()
        grown, more = mill.memory_mib() - before, mill.open_files() - files
        eventually(lambda: mill.task_folders() < KEEP_ENDED + AT_ONCE, "old tasks are put away")
        eventually(lambda: len(living(plane.cluster)) == NODES, "only the agents run")
    return mill, grown, more


def test_dozens_of_small_jobs_each_run_once(tmp_path: Path) -> None:
    mill, _, more_files = play(tmp_path, 48)
    assert mill.submitted == 48
    assert more_files < 20


@pytest.mark.slow
def test_thousands_of_jobs_are_neither_lost_nor_repeated_and_leave_little_behind(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    mill, grown_mib, more_files = play(tmp_path, MANY)
    record_property("jobs", mill.submitted)
    record_property("grown_mib", round(grown_mib, 1))
    assert more_files < 20
    kept_mib = 0.012 * min(MANY, 2000)  # the store remembers the last 2000 records, some kilobytes each
    assert grown_mib < 30 + kept_mib, f"{grown_mib:.0f} MiB more after {MANY} jobs than after a quarter"


def test_a_task_that_was_put_away_is_still_known_and_never_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attic, "KEEP_ENDED", 2)
    monkeypatch.setattr(attic, "AT_ONCE", 1)
    with a_cluster(tmp_path) as cluster:
        power_on(cluster, "n1")
        ids = [f"t{number}" for number in range(4)]
        for number, task_id in enumerate(ids):
            spec = TaskSpec(task_id=task_id, argv=("/bin/sh", "-c", f"echo {task_id}; exit {number}"))
            cluster.start_task("n1", spec)
            eventually(lambda task_id=task_id: cluster.task("n1", task_id).state is TaskState.ENDED, task_id)
        folder = cluster.node("n1").folder
        assert attic.tidy(str(folder), set(ids)) == ["t0", "t1"]
        assert [(task.task_id, task.exit_code) for task in cluster.tasks("n1")] == list(
            zip(ids, range(4), strict=True)
        )
        assert cluster.tasks("n1", live_only=True) == []
        assert attic.folder_of(folder, "t0") == folder / "past" / "t0"
        cluster.start_task("n1", TaskSpec(task_id="t0", argv=("/bin/sh", "-c", "echo again")))
        cluster.stop_task("n1", "t1", "too late")
        assert not (folder / "tasks" / "t0").exists()
        assert not (folder / "tasks" / "t1").exists()
        assert cluster.task("n1", "t0").log.read_text() == "t0\n"


def test_of_the_tasks_that_were_put_away_the_oldest_go_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attic, "KEEP_ENDED", 1)
    monkeypatch.setattr(attic, "AT_ONCE", 1)
    monkeypatch.setattr(attic, "KEEP_PAST", 3)
    ids = [f"t{number}" for number in range(8)]
    for age, task_id in enumerate(ids):
        folder = tmp_path / "tasks" / task_id
        folder.mkdir(parents=True)
        (folder / "exit.json").write_text("{}")
        os.utime(folder / "exit.json", (age, age))
    assert attic.tidy(str(tmp_path), set(ids)) == ids[:7]
    assert [path.name for path in (tmp_path / "tasks").iterdir()] == ["t7"]
    assert sorted(path.name for path in (tmp_path / "past").iterdir()) == ["t4", "t5", "t6"]
