"""A long run of the embedded control plane: `python -m tools.soak --jobs 1000`.

Jobs of four ranks, one after the other in three lanes, on 16 nodes of which two are spares. Each may meet a fault; the
controller is killed now and then; a person mends what is broken for good. Every job must end COMPLETE with the weights
of an undisturbed run, or FAILED by its own program. No rank runs twice, and nothing is left at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus
from ecs_gpu_recovery.local.views import TaskView
from ecs_gpu_recovery.local.wiring import DATABASE
from tests.embedded import helpers
from tests.embedded.helpers import ControlPlane, control_plane, living, strays
from tests.programs import eventually

NODES, SPARES, RANKS, LANES = 16, 2, 4, 3
STEPS, STEP_S = 30, 0.03
#: What may happen to a job, and how often in a hundred.
FATES = {
    "": 35,
    "off-bus": 15,
    "ecc": 5,
    "kill": 10,
    "app-xid": 5,
    "permanent": 5,
    "lost": 8,
    "leaving": 4,
    "move": 5,
    "oom": 3,
    "its program fails": 5,
}
#: Those after which a job may end FAILED: its program is at fault.
OWN = ("oom", "its program fails")
#: So long a job may take, and what a person needs to mend a node.
PATIENCE_S, MENDED_AFTER_S = 300.0, 3.0


@dataclass(slots=True)
class Lane:
    """One job after the other."""

    job: str = ""
    fate: str = ""
    strikes_at: int = 0
    struck: bool = False
    began: float = 0.0


@dataclass(slots=True)
class Soak:
    """All of it, driven by one thread."""

    plane: ControlPlane
    jobs: int
    chance: random.Random
    digest: str
    lanes: list[Lane] = field(default_factory=lambda: [Lane() for _ in range(LANES)])
    submitted: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    bad_since: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        self.plane.start()
        eventually(lambda: (self.plane.state / DATABASE).exists(), "a database")
        eventually(self.plane.nodes_free, "every node is free", PATIENCE_S)
        for i in range(SPARES):
            self.plane.side.ask_node(f"node-{NODES - i}", "spare", why="for ranks that lose their node")
        while self.submitted < self.jobs or any(lane.job for lane in self.lanes):
            for lane in self.lanes:
                self._drive(lane)
            self._mend()
            if self.chance.random() < 0.004:
                self.met["controller killed"] += 1
                self.plane.kill()
                self.plane.start()
            time.sleep(0.05)
        self._at_rest()

    def _drive(self, lane: Lane) -> None:
        if not lane.job:
            if self.submitted < self.jobs:
                self._submit(lane)
            return
        job = self.plane.job(lane.job)
        if job.status.final and not job.outbox:
            self._judge(job, lane)
            lane.job = ""
        elif not lane.struck and lane.fate and helpers.last_step(job) >= lane.strikes_at:
            lane.struck = True
            self._strike(lane, job)
        assert time.monotonic() - lane.began < PATIENCE_S, self._story(job)

    def _submit(self, lane: Lane) -> None:
        fate = self.chance.choices(list(FATES), list(FATES.values()))[0]
        fails = [sys.executable, "-c", "import sys; sys.exit(3)"]
        command = fails if fate == "its program fails" else helpers.training(STEPS, STEP_S)
        job_id = f"soak-{self.submitted:04}"
        try:
            helpers.submit_on(
                self.plane, job_id, command, any_nodes=RANKS, check="none", max_retries=5, failover="any"
            )
        except Refused:  # not enough nodes are free now
            return
        self.submitted += 1
        lane.job, lane.fate, lane.struck = job_id, fate, False
        lane.strikes_at, lane.began = self.chance.randrange(1, STEPS - 5), time.monotonic()

    def _strike(self, lane: Lane, job: Job) -> None:
        victim = self.chance.choice(job.ranks).node
        self.met[lane.fate] += 1
        if lane.fate == "move":
            self.plane.side.ask_node(victim, "move", why="to see")
        elif lane.fate != "its program fails":
            self.plane.cluster.inject(victim, lane.fate)

    def _mend(self) -> None:
        """What a person does: new GPUs, power, and the word that a node may be used again."""
        now, cluster = time.monotonic(), self.plane.cluster
        for node in self.plane.side.nodes():
            off = (cluster.node(node.name).folder / "off").exists()
            bad = off or node.status is NodeStatus.FAILED or (node.hold is not None and not node.job_id)
            if not bad:
                self.bad_since.pop(node.name, None)
            elif now - self.bad_since.setdefault(node.name, now) > MENDED_AFTER_S:
                if off or node.status is NodeStatus.FAILED:
                    cluster.clear_faults(node.name)
                    cluster.power_on(node.name)
                if node.status is NodeStatus.FAILED or node.hold is not None:
                    self._release(node.name)
                self.bad_since.pop(node.name)

    def _release(self, name: str) -> None:
        try:
            self.plane.side.ask_node(name, "release", why="mended")
        except Refused:  # it has moved on meanwhile
            return

    def _judge(self, job: Job, lane: Lane) -> None:
        self.ends[job.status] += 1
        if (ended := self.ends.total()) % 25 == 0:
            print(f"{ended} of {self.jobs} jobs: {dict(self.ends)}", file=sys.stderr, flush=True)
        if job.status is JobStatus.COMPLETE and lane.fate != "its program fails":
            ran = self._ran_once(job)
            logs = [ran[job.attempt, rank.index].log.read_text() for rank in job.ranks]
            assert {helpers.digest_in(log) for log in logs} == {self.digest}, self._story(job)
            return
        assert job.status is JobStatus.FAILED, self._story(job)
        assert lane.fate in OWN, self._story(job)

    def _ran_once(self, job: Job) -> dict[tuple[int, int], TaskView]:
        """The task of each attempt and rank. One that was stopped as it began has said nothing; none speaks twice."""
        ran = helpers.ranks_that_ran(self.plane, job.id)
        for (attempt, rank), tasks in ran.items():
            hello = f"rank {rank} of {RANKS}, job {job.id!r}, attempt {attempt}"
            said = sum(task.log.read_text().count(hello) for task in tasks if task.log.exists())
            assert (len(tasks), said <= 1) == (1, True), f"{hello}: {len(tasks)} tasks, said {said} times"
        return {place: tasks[0] for place, tasks in ran.items()}

    def _story(self, job: Job) -> str:
        lines = [f"{e.at:%H:%M:%S} {e.subject} {e.after} {e.why} {e.evidence}" for e in job.timeline]
        return "\n".join([f"{job.id}: {job.status} {job.outcome}", *lines, self.plane.said()])

    def _at_rest(self) -> None:
        def over() -> bool:
            self._mend()
            nodes = self.plane.side.nodes()
            return all(node.status is NodeStatus.AVAILABLE and not node.outbox for node in nodes)

        eventually(over, "every node is free", PATIENCE_S)
        assert not [node.name for node in self.plane.side.nodes() if node.job_id]
        eventually(lambda: not strays(self.plane.cluster), "no process without a task")
        eventually(lambda: len(living(self.plane.cluster)) == NODES, "agents only")
        assert {process.task_id for process in living(self.plane.cluster)} == {None}
        for line in self.plane.store.jobs(limit=self.jobs + 1).jobs:
            assert not self.plane.store.job(line.id).outbox, f"{line.id} has orders unsent"
        assert self.plane.store.read("PRAGMA integrity_check") == [("ok",)]


def soak(folder: Path, jobs: int, seed: int = 0) -> dict[str, object]:
    """Run it; what goes wrong is raised."""
    began = time.monotonic()
    digest = helpers.undisturbed_digest(folder / "undisturbed", RANKS, STEPS)
    with control_plane(folder / "state", NODES) as plane:
        made = Soak(plane, jobs, random.Random(seed), digest)
        made.run()
    seconds = round(time.monotonic() - began)
    return {"jobs": jobs, "ends": dict(made.ends), "met": dict(made.met), "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    wishes = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        print(json.dumps(soak(Path(folder), wishes.jobs, wishes.seed), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
