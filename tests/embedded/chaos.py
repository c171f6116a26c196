"""kill -9 by a seed: of the controller, the agents, the supervisors and the ranks, and what must be true afterwards."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable

from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus
from ecs_gpu_recovery.local.controller import running_pid
from ecs_gpu_recovery.local.files import DamagedFile, read_json
from ecs_gpu_recovery.local.views import TaskState, TaskView
from tests.embedded import helpers
from tests.embedded.helpers import ControlPlane, eventually, living, strays

STEPS = 20
STEP_S = 0.04
RETRIES = 60


class Chaos:
    """One seed's night over a control plane whose jobs train."""

    def __init__(self, plane: ControlPlane, seed: str, digest: str, *, faults: bool = False) -> None:
        self.plane, self.digest, self.faults = plane, digest, faults
        self.chance = random.Random(seed)
        self.killed: Counter[str] = Counter()
        self.excused: set[str] = set()  #: jobs of which a rank was killed: code 137 ends a job, by the rules
        self.jobs: list[str] = []
        self.broken: list[str] = []

    @property
    def kills(self) -> int:
        return sum(self.killed.values())

    # -- what happens --------------------------------------------------------------------------------------

    def night(self, kills: int, gangs: list[list[str]]) -> None:
        """Keep a job on each gang of nodes, and kill, until enough have died. Then let all come to its end."""
        self.bring_up()
        while self.kills < kills:
            for gang in gangs:
                self.keep_busy(gang)
            self.strike()
            time.sleep(self.chance.uniform(0.02, 0.4))
        self.revive()
        for job_id in self.jobs:
            try:
                eventually(lambda job_id=job_id: self.is_over(job_id), f"the end of {job_id}")
            except AssertionError as exc:
                raise AssertionError(f"{exc}\n{self.story(job_id)}\n{self.plane.said()}") from exc
        eventually(self.plane.nodes_free, "all nodes are free")

    def bring_up(self) -> None:
        self.plane.start()
        eventually(lambda: (self.plane.state / "recovery.db").exists(), "a database")
        eventually(self.plane.nodes_free, "all nodes are free")

    def keep_busy(self, gang: list[str]) -> None:
        nodes = {node.name: node for node in self.plane.side.nodes()}
        if all(nodes[name].claimable for name in gang):
            job_id = f"job-{len(self.jobs)}"
            more = {"nodes": gang, "check": "none", "max_retries": RETRIES}
            helpers.submit_on(self.plane, job_id, helpers.training(STEPS, STEP_S), **more)
            self.jobs.append(job_id)

    def strike(self) -> None:
        ways: list[tuple[int, Callable[[], bool]]] = [
            (3, self.kill_the_controller),
            (4, self.kill_an_agent),
            (6, self.kill_a_supervisor),
            (2, self.kill_a_rank),
        ]
        if self.faults:
            ways.append((1, self.break_a_gpu))
        way = self.chance.choices([act for _, act in ways], [weight for weight, _ in ways])[0]
        self.revive()
        if way():
            self.killed[way.__name__] += 1

    def revive(self) -> None:
        """Some die while they start; most get so far that they hold the state folder, however busy the machine is."""
        if self.plane.process is not None:
            self.plane.must_live()
            return
        pid = self.plane.start().pid
        if self.chance.random() < 0.8:
            eventually(lambda: running_pid(self.plane.state) == pid, "the controller is there")

    def kill_the_controller(self) -> bool:
        self.plane.kill()
        time.sleep(self.chance.choice([0, 0, 0.2]))
        return True

    def kill_an_agent(self) -> bool:
        pids = [view.pid for view in self.plane.cluster.nodes() if view.pid is not None]
        return bool(pids) and kill_9(self.chance.choice(pids))

    def kill_a_supervisor(self) -> bool:
        task = self.a_task()
        return task is not None and kill_9(pid_in(task, "claim"))

    def kill_a_rank(self) -> bool:
        task = self.a_task()
        if task is None or not kill_9(pid_in(task, "running.json")):
            return False
        self.excused.add(task.job or "")
        return True

    def break_a_gpu(self) -> bool:
        """No kill of ours; the rank there dies of it, and the check finds it. A node that boots is spared: it would
        come back without its GPU, and that is for a person. So is one that broke before: three times are for a person,
        and so are four nodes at once."""
        task = self.a_task()
        if (
            task is not None
            and task.state is TaskState.RUNNING
            and self.plane.cluster.node(task.node).connected
            and self.broken.count(task.node) < 2
            and (task.node in self.broken or len(set(self.broken)) < 3)
        ):
            self.plane.cluster.inject(task.node, "off-bus")
            self.broken.append(task.node)
        return False

    def a_task(self) -> TaskView | None:
        names = [view.name for view in self.plane.cluster.nodes()]
        live = [task for name in names for task in self.plane.cluster.tasks(name, live_only=True)]
        training = [task for task in live if task.kind == "train"]
        return self.chance.choice(training) if training else None

    # -- what must be true ---------------------------------------------------------------------------------

    def is_over(self, job_id: str) -> bool:
        self.plane.must_live()
        job = self.plane.job(job_id)
        return job.status.final and not job.outbox

    def story(self, job_id: str) -> str:
        """What the record says, for whoever has to find out why it hangs."""
        job = self.plane.job(job_id)
        lines = [f"{e.at:%T.%f} {e.subject} {e.before}->{e.after} {e.why} {e.evidence}" for e in job.timeline]
        return "\n".join(
            [*lines[-40:], *map(repr, job.ranks), *map(repr, job.outbox), f"now {self.plane.side.now()}"]
        )

    def check(self) -> None:
        jobs = [self.plane.job(job_id) for job_id in self.jobs]
        for job in jobs:
            assert broken(job) == [], job.id
            assert job.status is JobStatus.COMPLETE or job.id in self.excused, (
                job.id,
                job.status,
                job.outcome,
            )
            self.check_that_nothing_ran_twice(job)
            if job.status is JobStatus.COMPLETE:
                self.check_the_training(job)
        told = Counter(message["key"] for message in self.plane.side.notices(1000))
        failed = [job for job in jobs if job.status is JobStatus.FAILED]
        assert told == Counter(f"{job.id}/notify/failed" for job in failed), "each failure is told once"
        self.check_the_nodes()
        store = self.plane.store
        assert store.read("PRAGMA integrity_check") == [("ok",)]
        assert store.read("SELECT ecs_task_id FROM ecs_task WHERE task_status='IN_PROGRESS'") == []

    def check_that_nothing_ran_twice(self, job: Job) -> None:
        for (attempt, rank), tasks in helpers.ranks_that_ran(self.plane, job.id).items():
            assert len(tasks) == 1, f"{job.id}: rank {rank} of attempt {attempt} ran {len(tasks)} times"
            hello = f"rank {rank} of {len(job.ranks)}, job {job.id!r}, attempt {attempt}"
            assert tasks[0].log.read_text().count(hello) <= 1, hello

    def check_the_training(self, job: Job) -> None:
        """No step is left out, and the end is that of a training that nobody disturbed."""
        ran = helpers.ranks_that_ran(self.plane, job.id)
        done = helpers.progress(job)
        for attempt in range(job.attempt + 1):
            mine = [step for a, step in done if a == attempt]
            log = ran[attempt, 0][0].log.read_text() if (attempt, 0) in ran else ""
            told = re.search(r"resumed from step (\d+)", log)
            start = int(told[1]) if told else 0
            assert mine == list(range(start + 1, start + 1 + len(mine))), f"{job.id}, attempt {attempt}"
        assert done[-1][1] == STEPS, (job.id, done[-5:])  # an attempt that finds all done adds no step
        said = {helpers.digest_in(ran[job.attempt, rank.index][0].log.read_text()) for rank in job.ranks}
        assert said == {self.digest}

    def check_the_nodes(self) -> None:
        """Free and at rest; rebooted exactly as often as it was ordered, and never without a broken GPU."""
        eventually(lambda: not strays(self.plane.cluster), "no process without a task")
        eventually(lambda: len(living(self.plane.cluster)) == self.plane.nodes, "only the agents run")
        nodes = self.plane.side.nodes()
        assert {(n.status, n.job_id, n.outbox) for n in nodes} == {(NodeStatus.AVAILABLE, "", ())}
        orders = Counter(
            view.name for view in self.plane.cluster.nodes() for _ in (view.folder / "reboots").glob("*.json")
        )
        boots = helpers.boots(self.plane)
        assert {name: count - 1 for name, count in boots.items()} == {name: orders[name] for name in boots}
        assert self.faults or not orders


def kill_9(pid: int | None) -> bool:
    """Whether it was there to be killed."""
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def pid_in(task: TaskView, file: str) -> int | None:
    try:
        record = read_json(str(task.folder / file))
    except DamagedFile:
        return None
    return int(record["pid"]) if record and task.live else None
