"""A control plane as a process of its own, and what must be true when its jobs are over."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus
from ecs_gpu_recovery.jobfile import parse
from ecs_gpu_recovery.local import processes
from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.local.controller import Controller, NodeWish
from ecs_gpu_recovery.local.files import read_json
from ecs_gpu_recovery.local.store import SqliteStore
from ecs_gpu_recovery.local.views import NodeState, TaskView
from ecs_gpu_recovery.local.wiring import DATABASE
from tests.embedded.controller_program import POLICY
from tests.programs import eventually

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 90.0
CHECKPOINT_EVERY = 5
FOREVER = (sys.executable, "-c", "import time; time.sleep(3600)")


class Living(NamedTuple):
    """A living process that carries the marker of a node or one of its tasks."""

    pid: int
    node: str
    task_id: str | None


def living(cluster: Cluster) -> list[Living]:
    """Every process of this cluster: agents, shims, tasks and whatever they left behind."""
    found = []
    for view in cluster.nodes():
        for pid in processes.marked(processes.NODE_MARKER, str(view.folder)):
            task_dir = processes.marker_of(pid, processes.TASK_MARKER)
            found.append(Living(pid, view.name, os.path.basename(task_dir) if task_dir else None))
    return found


def strays(cluster: Cluster) -> list[Living]:
    """Processes that nothing accounts for: of a task that has ended, or of a node that is off."""
    off = {view.name for view in cluster.nodes() if view.state is NodeState.OFF}
    return [
        one
        for one in living(cluster)
        if one.node in off or (one.task_id and not cluster.task(one.node, one.task_id).live)
    ]


class ControlPlane:
    """A controller that is started and killed, and the state folder that outlives it."""

    def __init__(self, state: Path, nodes: int) -> None:
        self.state, self.nodes = state, nodes
        self.cluster = Cluster(state)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = open(state / "controllers.log", "ab")  # noqa: SIM115 (closed by `end`)
        self.program = [sys.executable, "-m", "tests.embedded.controller_program", str(state)]
        self.program += ["--nodes", str(nodes)]

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        assert self.process is None
        command = [*self.program, *more]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self.log, stderr=self.log)
        return self.process

    def kill(self) -> None:
        """kill -9, and nothing is left of the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def died(self, within_s: float) -> bool:
        """Whether it ended by the signal it had prepared for itself. Any other end is a failure."""
        assert self.process is not None
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        assert code == -signal.SIGKILL, f"the controller ended with {code}:\n{self.said()}"
        self.process = None
        return True

    def said(self) -> str:
        return (self.state / "controllers.log").read_text()[-4000:]

    def must_live(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, f"the controller has ended:\n{self.said()}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """A controller that nobody kills."""
        self.start()
        try:
            yield
        finally:
            self.kill()

    @cached_property
    def side(self) -> LocalBackend:
        """The records, as any command sees them."""
        return LocalBackend(self.state)

    @cached_property
    def store(self) -> SqliteStore:
        """The tables, as another tool sees them."""
        return SqliteStore(self.state / DATABASE)

    def job(self, job_id: str) -> Job:
        return self.side.job(job_id)

    def nodes_free(self) -> bool:
        nodes = self.side.nodes()
        return len(nodes) == self.nodes and all(node.claimable for node in nodes)

    def end(self) -> None:
        """Nothing of it runs on, however the test went."""
        self.kill()
        self.log.close()
        for name in {"side", "store"} & self.__dict__.keys():
            getattr(self, name).close()
        self.cluster.shutdown()
        assert living(self.cluster) == []


@contextmanager
def control_plane(state: Path, nodes: int) -> Iterator[ControlPlane]:
    state.mkdir(parents=True, exist_ok=True)
    made = ControlPlane(state, nodes)
    try:
        yield made
    finally:
        made.end()


def training(steps: int, step_s: float) -> list[str]:
    more = ["--steps", str(steps), "--step-seconds", str(step_s), "--checkpoint-every", str(CHECKPOINT_EVERY)]
    return [sys.executable, "-m", "ecs_gpu_recovery.examples.train", *more]


def submit(plane: ControlPlane, job_id: str, command: list[str], **more: Any) -> Job:
    request = {"id": job_id, "command": command, "any_nodes": plane.nodes, **more}
    return plane.side.submit(parse(request, python=sys.executable))


def submit_on(plane: ControlPlane, job_id: str, command: list[str], **more: Any) -> Job:
    """The same on chosen nodes."""
    return plane.side.submit(parse({"id": job_id, "command": command, **more}, python=sys.executable))


def undisturbed_digest(folder: Path, world: int, steps: int) -> str:
    """The weights that a run without any interruption ends with."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": world, "MASTER_PORT": port, "CHECKPOINT_DIR": folder, "JOB_ID": "undisturbed"}
    ranks = [
        subprocess.Popen(
            training(steps, 0),
            cwd=ROOT,
            env={**os.environ, **{key: str(value) for key, value in {**place, "RANK": rank}.items()}},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [process.communicate(timeout=PATIENCE_S)[0] for process in ranks]
    (digest,) = {digest_in(text) for text in said}
    return digest


def digest_in(log: str) -> str:
    found = re.search(r"^done, weights ([0-9a-f]{64})$", log, re.MULTILINE)
    assert found, f"the training did not say its digest:\n{log[-2000:]}"
    return found[1]


def progress(job: Job) -> list[tuple[int, int]]:
    """(attempt, step) of every line the training wrote."""
    path = Path(job.spec.checkpoint_dir) / "progress.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return [(line["attempt"], line["step"]) for line in whole]


def last_step(job: Job) -> int:
    return max((step for _, step in progress(job)), default=0)


def ranks_that_ran(plane: ControlPlane, job_id: str) -> dict[tuple[int, int], list[TaskView]]:
    """Every training task of this job that was really started, from the nodes' own folders."""
    found: dict[tuple[int, int], list[TaskView]] = {}
    for node in plane.cluster.nodes():
        for task in plane.cluster.tasks(node.name):
            if task.kind == "train" and task.job == job_id and (task.folder / "running.json").exists():
                found.setdefault((task.attempt or 0, task.rank or 0), []).append(task)
    return found


def boots(plane: ControlPlane) -> Counter[str]:
    """How often each node has been booted since it was made: every boot but the last left its kernel log."""
    return Counter({view.name: 1 + len(list(view.folder.glob("kmsg.*"))) for view in plane.cluster.nodes()})


def reboot_orders(plane: ControlPlane, job_id: str) -> list[tuple[str, str]]:
    """(node, key) of every reboot that was ordered for a job, from the nodes' own markers."""
    orders = []
    for view in plane.cluster.nodes():
        for marker in sorted((view.folder / "reboots").glob("*.json")):
            key = str((read_json(str(marker)) or {})["key"])
            if key.startswith(f"{job_id}/"):
                orders.append((view.name, key))
    return orders


def check_that_every_rank_ran_once(plane: ControlPlane, job: Job) -> None:
    ran = ranks_that_ran(plane, job.id)
    wanted = {(a, r.index) for a in range(job.attempt + 1) for r in job.ranks}
    assert {place: len(tasks) for place, tasks in ran.items()} == dict.fromkeys(wanted, 1)
    for (attempt, rank), (task,) in ran.items():
        hello = f"rank {rank} of {len(job.ranks)}, job {job.id!r}, attempt {attempt}"
        assert task.log.read_text().count(hello) == 1, f"{hello} on {task.node}"


def check_the_steps(plane: ControlPlane, job: Job, steps: int, digest: str) -> None:
    """Each attempt goes on exactly where its checkpoint was, and the end is that of an undisturbed run."""
    ran = ranks_that_ran(plane, job.id)
    done = progress(job)
    resumed = 0
    for attempt in range(job.attempt + 1):
        mine = [step for a, step in done if a == attempt]
        if attempt:
            told = re.search(r"resumed from step (\d+)", ran[attempt, 0][0].log.read_text())
            resumed = int(told[1]) if told else 0
            before = max(step for a, step in done if a < attempt)
            assert resumed % CHECKPOINT_EVERY == 0
            assert before - CHECKPOINT_EVERY <= resumed <= before, "not from the newest checkpoint"
        assert mine == list(range(resumed + 1, resumed + 1 + len(mine))), f"attempt {attempt} left steps out"
    assert done[-1] == (job.attempt, steps)
    said = {digest_in(ran[job.attempt, rank.index][0].log.read_text()) for rank in job.ranks}
    assert said == {digest}


def check_that_nothing_is_left(plane: ControlPlane, job: Job) -> None:
    """Only the agents run, every node is free, no order waits, the record keeps all rules."""
    eventually(lambda: not strays(plane.cluster), "no process without a task")
    alive = eventually(lambda: len(found := living(plane.cluster)) == plane.nodes and found, "agents only")
    assert {process.task_id for process in alive} == {None}
    assert broken(job) == []
    assert job.outbox == ()
    free = {(NodeStatus.AVAILABLE, "", ())}  # a controller that lives may be writing about one just now
    eventually(
        lambda: {(node.status, node.job_id, node.outbox) for node in plane.side.nodes()} == free,
        "free nodes, and nothing to do for them",
    )
    assert plane.store.read("PRAGMA integrity_check") == [("ok",)]
    if job.status is JobStatus.COMPLETE:
        assert not [n for n in plane.side.notices(100) if job.id in n["key"]], "nobody is needed"


class LiveController:
    """A controller on a thread of the test: for what needs no kill -9."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.state = controller.parts.state
        self.parts = controller.parts
        self.cluster = controller.parts.cluster
        self.side = LocalBackend(self.state)

    def job(self, job_id: str) -> Job:
        return self.side.job(job_id)

    def submit(self, job_id: str, command: Sequence[str], **more: Any) -> Job:
        if "nodes" not in more:
            more.setdefault("any_nodes", 2)
        request = {"id": job_id, "command": list(command), "check": "none", **more}
        return self.side.submit(parse(request, python=sys.executable))

    def reaches(self, job_id: str, *statuses: JobStatus) -> Job:
        job = eventually(
            lambda: found if (found := self.job(job_id)).status in statuses else None,
            f"{job_id} reaches {statuses}",
        )
        assert broken(job) == []
        return job

    def started(self, job_id: str) -> Job:
        """Every rank is known to run."""
        eventually(lambda: all(rank.live for rank in self.job(job_id).ranks), f"{job_id} runs")
        return self.job(job_id)

    def node_is(self, name: str, status: NodeStatus) -> None:
        eventually(lambda: self.side.node(name).status is status, f"{name} is {status}")

    def ends(self, job_id: str, status: JobStatus) -> Job:
        """The job's end, with every order sent and every node given back."""
        job = eventually(
            lambda: found if (found := self.job(job_id)).status.final and not found.outbox else None,
            f"the end of {job_id}",
        )
        assert job.status is status, (job.outcome, [entry.why for entry in job.timeline])
        assert broken(job) == []
        assert not [node for node in self.side.nodes() if node.job_id == job_id]
        eventually(lambda: not strays(self.cluster), "no stray process")
        return job

    def stop(self, job_id: str) -> None:
        self.side.stop(job_id, why="enough")
        self.ends(job_id, JobStatus.USER_STOPPED)

    def trains_to(self, job_id: str, step: int) -> None:
        eventually(lambda: last_step(self.job(job_id)) >= step, f"{job_id} at step {step}")


@contextmanager
def live_controller(
    state: Path, nodes: int = 2, *, boot_seconds: float = 0.2, ready: Sequence[str] = (), **policy: Any
) -> Iterator[LiveController]:
    """Nodes that are ready (all, or those named), watched by a controller with a policy of this test."""
    wishes = [NodeWish(name=f"node-{i + 1}", boot_seconds=boot_seconds) for i in range(nodes)]
    chosen = replace(POLICY, **policy)
    with Controller(state, nodes=wishes, policy=chosen, poll_s=0.03) as controller:
        stop = threading.Event()
        loop = threading.Thread(target=controller.run, args=(stop,))
        loop.start()
        live = LiveController(controller)
        try:
            eventually(
                lambda: all(node.connected for node in live.side.nodes() if not ready or node.name in ready),
                "nodes that answer",
            )
            yield live
            assert loop.is_alive(), "the controller has crashed"
        finally:
            stop.set()
            loop.join()
            live.side.close()
            live.cluster.shutdown()
    assert living(live.cluster) == []
