"""The embedded cluster behind the fleet port: one order in, what became of it out. It decides nothing.

A task's id is the order's token, so ordering a task twice is ordering it once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from .. import check_report
from ..core import keys
from ..core.effects import CheckNode, RebootNode, ReplaceNode, StartTask, StopTask
from ..core.errors import ClusterRefused, Transient
from ..core.events import (
    CheckStarted,
    Fact,
    NodeChecked,
    NodeSeen,
    OrderSent,
    RebootProven,
    TaskEnded,
    TaskStarted,
)
from ..core.job import hang
from ..core.model import Entry, Job, JobStatus, Leave, MachineRecord, NodeStatus, Notice, Rank, Verdict
from ..core.node_record import Node
from ..core.witness import Named, Silence
from ..environment import RAS_PORT, telling, training_environment
from ..waited_for import named
from . import evidence, gpu_load
from .cluster import Cluster
from .files import DamagedFile, read_json
from .markers import Markers
from .processes import PACKAGE_ROOT, Unkillable
from .silence import LocalSilence
from .views import NodeRefused, NodeView, RebootState, TaskSpec, TaskState, TaskView

if TYPE_CHECKING:
    from .fault_log import FaultLog

#: How far back a check reads the kernel log: the fault is older than the task's death by a little.
LOOK_BACK = timedelta(minutes=10)
#: As much of the end of a failed rank's log is searched for what it died of.
_LOG_END = 16 << 10


class LocalFleet:
    """Carries out orders on the nodes below one state folder."""

    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster, self._now = cluster, now
        self._faults: FaultLog | None = None
        self._markers = Markers(now)
        self._written = LocalSilence()

    def close(self) -> None:
        if self._faults is not None:
            self._faults.close()

    # -- orders --------------------------------------------------------------------------------------------

    def start_task(self, job: Job, order: StartTask, *, again: bool) -> Iterable[Fact]:
        rank = job.ranks[order.rank]
        spec = TaskSpec(
            task_id=order.token,
            kind="train",
            argv=job.spec.command,
            env=self._environment(job, rank, order),
            cwd=job.spec.workdir or None,
            gpus=job.spec.gpus_per_node or rank.gpus,
            memory_mib=job.spec.memory_mib or None,
            job=job.id,
            attempt=order.attempt,
            rank=order.rank,
        )
        self._start(order.node, spec)
        return [TaskStarted(at=self._now(), task_id=order.token, attempt=order.attempt, rank=order.rank)]

    def stop_task(self, job_id: str, order: StopTask) -> Iterable[Fact]:
        """The stop stays in the task's folder, so a start that comes too late finds it and never runs."""
        with suppress(ClusterRefused), _answering(order.node):  # a node that is no more has no task either
            self._cluster.stop_task(order.node, order.task_id or order.token, order.reason)
        return []

    def check_node(self, job: Job | None, node: Node, order: CheckNode, *, again: bool) -> Iterable[Fact]:
        with _answering(node.name):
            view = self._cluster.node(node.name)
        since = (job.created_at if job is not None else self._now()) - LOOK_BACK
        report = view.folder / "tasks" / order.token / "report.json"
        options = {
            "--report": str(report),
            "--since": since.isoformat(),
            "--expect-gpus": str(node.gpus),
            "--level": order.level,
        }
        argv = [sys.executable, "-m", "ecs_gpu_recovery.health", "--json", *chain(*options.items())]
        # The check must find this very package, installed or not: one that can't run proves nothing.
        path = [PACKAGE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {"PYTHONPATH": os.pathsep.join(path)}
        if view.kind == "simulated":
            env["GPU_HEALTH_SIMULATED"] = str(view.folder)
        gpus = min(node.gpus, view.gpus_seen)  # it needs those that are there, to find that one is missing
        spec = TaskSpec(
            task_id=order.token,
            kind="check",
            argv=tuple(argv),
            env=env,
            gpus=gpus,
            rank=order.rank,
            job=job.id if job is not None else keys.record_of_node(node.name),
            attempt=order.attempt,
        )
        self._start(node.name, spec)
        return [CheckStarted(at=self._now(), node=node.name, check_id=order.token, check_try=order.check_try)]

    def replace_node(self, node: Node, order: ReplaceNode, *, again: bool) -> Iterable[Fact]:
        raise ClusterRefused(node.name, "nobody brings another machine here")

    def reboot_node(self, node: Node, order: RebootNode, *, again: bool) -> Iterable[Fact]:
        with _answering(node.name):
            kept = evidence.keep(self._cluster.node(node.name), order.key)
            self._cluster.reboot(node.name, order.key)
        return [OrderSent(at=self._now(), key=order.key, kept=kept)]

    def company(self, node: Node) -> Sequence[str]:
        """Ranks that run there, but for the one that its job could not stop."""
        with _answering(node.name):
            live = self._cluster.tasks(node.name, live_only=True)
        ranks = [task for task in live if task.kind == "train" and not task.stop_ordered]
        return [f"task {task.task_id} of job {task.job}" for task in ranks if task.task_id != node.task]

    def _start(self, node: str, spec: TaskSpec) -> None:
        with _answering(node):
            self._cluster.start_task(node, spec)

    def _environment(self, job: Job, rank: Rank, order: StartTask) -> dict[str, str]:
        """With where the program tells simulated GPUs what it does with them. Real ones need not be told."""
        with _answering(order.node):
            view = self._cluster.node(order.node)
        folder = view.folder / "tasks" / order.token
        told = environment(job, rank, str(folder))
        if view.kind == "simulated":
            told[gpu_load.LOAD_VARIABLE] = str(folder / gpu_load.LOAD_FILE)
        return told

    # -- what can be seen ----------------------------------------------------------------------------------

    def observe_job(self, job: Job) -> Iterable[Fact]:
        """How far the training came is told before how it ended, and looked at after that."""
        seen = [
            fact
            for rank in job.ranks
            for fact in self._or_away(rank.node, self._observe_rank(job, rank), connected=rank.connected)
        ]
        yield from self._markers.news(job, over=any(isinstance(fact, TaskEnded) for fact in seen))
        if job.status is JobStatus.IN_PROGRESS:
            self._written.look(job, self._logs(job))
        yield from seen

    def silence(self, job: Job, since: datetime) -> Silence | None:
        found = self._written.since(job, self._logs(job), self._now())
        if found is None or found.since > since:
            return None
        ranks = hang.gang(job)
        stopped = [rank.node for rank in ranks if self._is_stopped(rank)]
        return replace(found, odd=tuple(stopped) if len(stopped) < len(ranks) else ())

    def keep_hang(self, job: Job, ranks: Sequence[Rank], *, last: bool) -> None:
        """Where GPUs are simulated, so are collectives: nobody has an NCCL that could be asked. A node that does not
        answer costs its own evidence only: it is told of when that of the others is kept."""
        looks, silent = [], []
        for rank in ranks:
            try:
                with _answering(rank.node):
                    view = self._cluster.node(rank.node)
                    folder = self._cluster.task(rank.node, rank.task_id).folder
            except (Transient, ClusterRefused) as exc:
                silent.append(exc)
            else:
                told = {**os.environ, **environment(job, rank)} if view.kind == "real" else {}
                key = keys.hang_look(job.id, job.attempt, rank.node, last=last)
                looks.append(evidence.Look(view, key, folder, told.get("NCCL_RAS_ADDR", "")))
        evidence.keep_hang(looks)
        if silent:
            raise silent[0]

    def waited_for(self, job: Job, ranks: Sequence[Rank], since: datetime) -> Named | None:
        """As NCCL said when it was asked in this hang. That a program is stopped is seen here, and told with its
        silence."""
        for rank in ranks:
            task = self._task(rank)
            said = task.folder / evidence.RAS if task is not None else None
            if said is not None and said.exists() and said.stat().st_mtime >= since.timestamp():
                return named(said.read_text(encoding="utf-8"), job.ranks)
        return None

    def _is_stopped(self, rank: Rank) -> bool:
        """Its program does not run any more, and has not ended."""
        task = self._task(rank)
        return task is not None and task.state is TaskState.RUNNING and gpu_load.process(str(task.folder))[0]

    def _logs(self, job: Job) -> dict[int, Path]:
        """Where each rank's task writes."""
        return {rank.index: task.log for rank in job.ranks if (task := self._task(rank)) is not None}

    def _task(self, rank: Rank) -> TaskView | None:
        """The rank's task. On a node whose folder is gone or can't be read there is none to look at."""
        try:
            return self._cluster.task(rank.node, rank.task_id) if rank.task_id else None
        except (NodeRefused, OSError, ValueError):
            return None

    def _observe_rank(self, job: Job, rank: Rank) -> Iterator[Fact]:
        view = self._cluster.node(rank.node)
        if not rank.handed:
            yield from self._see_node(view, rank)
        tasks = list(self._see_tasks(job, rank))
        # The log is read after the tasks were looked at, and told before them: a fault comes before its death.
        if not rank.handed:
            yield from self._see_faults(view, job.timeline, job.created_at)
        yield from tasks
        # While the rank's task lives no check was ordered: the answer that lies there is to an old question.
        if rank.verdict is None and rank.check_try and (job.preflight or rank.quiet):
            check_id = keys.token(keys.check(job.id, rank), job.salt)
            yield from self._see_check(rank.node, check_id, rank.check_try)

    def _or_away(self, node: str, seen: Iterator[Fact], *, connected: bool) -> list[Fact]:
        """A node whose folder is gone or can't be read is one that does not answer; the others go on."""
        try:
            return list(seen)
        except (NodeRefused, OSError, ValueError) as exc:
            why = f"the folder of node {node} cannot be read: {exc}"
            return [NodeSeen(at=self._now(), node=node, connected=False, why=why[:300])] if connected else []

    def label_nodes(self, nodes: Sequence[Node]) -> None:
        """A local node shows its status nowhere but in the store."""

    def observe_nodes(self, nodes: Sequence[Node]) -> Iterable[tuple[str, Fact]]:
        for node in nodes:
            for fact in self._or_away(node.name, self._observe_node(node), connected=node.connected):
                yield node.name, fact

    def _observe_node(self, node: Node) -> Iterator[Fact]:
        view = self._cluster.node(node.name)
        yield from self._see_node(view, node)
        yield from self._see_faults(view, node.timeline, node.created_at, this_boot=True)
        if node.status is NodeStatus.PENDING_HEALTHCHECK:
            yield from self._see_check(
                node.name, keys.token(keys.node_check(node), node.salt), node.check_try
            )
        waits = node.status is NodeStatus.REBOOTING and not node.rebooted
        if waits and self._cluster.reboot_state(node.name, node.reboot_key) is RebootState.DONE:
            yield RebootProven(at=self._now(), node=node.name, key=node.reboot_key)

    def _see_node(self, view: NodeView, known: MachineRecord) -> Iterator[Fact]:
        seen = view.gpus_seen if view.connected else None
        leaves = known.leave.until if known.leave and known.leave.notice is Notice.SEEN else None
        changed = (
            view.connected is not known.connected
            or (view.boot_id or "") != known.boot_id
            or (seen is not None and seen != known.gpus_seen)
            or (view.connected and view.leaving != leaves)
        )
        if changed:
            yield NodeSeen(
                at=self._now(),
                node=view.name,
                connected=view.connected,
                gpus=seen,
                boot_id=view.boot_id or "",
                why=view.why_off or "",
                kind=view.alike,
                leave=_leave(view, self._now()),
            )

    def _see_faults(
        self, view: NodeView, timeline: Sequence[Entry], since: datetime, *, this_boot: bool = False
    ) -> Iterator[Fact]:
        if self._faults is None:
            from .fault_log import FaultLog  # rules and parsers, which a mere command never needs

            self._faults = FaultLog()
        yield from self._faults.news(view, timeline, since, this_boot=this_boot)

    def _see_tasks(self, job: Job, rank: Rank) -> Iterator[Fact]:
        """The rank's own task, and any other live task here that says it is of this job."""
        own = rank.task_id or keys.start_token(job.id, rank, job.salt)
        if not rank.quiet:
            task = self._cluster.task(rank.node, own)
            if task.state is TaskState.ENDED or (task.state is TaskState.ABSENT and rank.live):
                yield self._ended(rank, task)
            elif (
                task.state is TaskState.RUNNING
                and (rank.deadline is not None or not rank.task_id)
                and job.ending is None
            ):
                yield self._runs(rank, own, rank.task_attempt)
        if job.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING) and rank.task_id:
            return
        for task in self._cluster.tasks(rank.node, live_only=True):
            if task.kind == "train" and task.job == job.id and task.task_id != own and not task.stop_ordered:
                yield self._runs(rank, task.task_id, task.attempt or 0)

    def _runs(self, rank: Rank, task_id: str, attempt: int) -> TaskStarted:
        return TaskStarted(at=self._now(), task_id=task_id, attempt=attempt, rank=rank.index, running=True)

    def _ended(self, rank: Rank, task: TaskView) -> TaskEnded:
        """A task that was started and of which its node knows nothing has gone with its node's folder.

        Waits begin when we learn of the end: it may be long ago, by a clock that was moved since.
        """
        gone = "the node does not know this task any more"
        words, echo = ("", False) if task.exit_code in (None, 0) else _last_words(task)
        return TaskEnded(
            at=self._now(),
            task_id=task.task_id,
            attempt=rank.task_attempt,
            rank=rank.index,
            exit_code=task.exit_code,
            reason=gone if task.state is TaskState.ABSENT else task.reason or "",
            stop_code=task.stop_code or "",
            last_words=words,
            echo=echo,
        )

    def _see_check(self, node: str, check_id: str, check_try: int) -> Iterator[Fact]:
        task = self._cluster.task(node, check_id)
        if task.state is TaskState.ENDED and task.stop_code != "UserInitiated":
            report = _report(task.folder / "report.json")
            verdict = Verdict.from_exit_code(task.exit_code)
            # A program that crashes also exits with 1: only its own report makes it a verdict.
            if report.get("verdict") != verdict.value:
                verdict = Verdict.INCONCLUSIVE
            yield NodeChecked(
                at=self._now(),
                node=node,
                check_id=check_id,
                check_try=check_try,
                verdict=verdict,
                findings=check_report.sentence(report) or str(task.reason or "")[: check_report.MOST],
            )


@contextmanager
def _answering(node: str) -> Iterator[None]:
    """The cluster's refusals in the port's words. A full disk or a process that won't die may pass."""
    try:
        yield
    except NodeRefused as exc:
        raise ClusterRefused(node, exc.reason) from exc
    except (OSError, Unkillable, DamagedFile) as exc:
        raise Transient(f"node {node}: {exc}") from exc


def _last_words(task: TaskView) -> tuple[str, bool]:
    """Of one that was stopped there are none: it did not die of what it wrote."""
    if task.stop_code == "UserInitiated":
        return "", False
    from ..health.judge import training_log  # a table of patterns, which a mere command never needs

    try:
        with open(task.log, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_END))
            end = log.read(_LOG_END).decode(errors="replace")
    except OSError:
        return "", False  # it wrote none, or the disk is gone: the exit code stands
    words, echo = training_log.last_words(end.splitlines())
    return "".join(c if c.isprintable() else " " for c in words), echo


def environment(job: Job, rank: Rank, folder: str = "") -> dict[str, str]:
    """A rank's log shows what it writes as it writes it, and each NCCL answers on a port of its own.

    `folder` is that of its task, once it has one: all tasks share one /tmp.
    """
    hints = telling({*os.environ, *job.spec.env}, RAS_PORT + rank.index, folder)
    return {"PYTHONUNBUFFERED": "1", **hints, **training_environment(job, rank)}


def _report(path: Path) -> dict[str, object]:
    """The check's own report; empty where it left none."""
    try:
        return read_json(str(path)) or {}
    except (OSError, DamagedFile):
        return {}


def _leave(view: NodeView, at: datetime) -> Leave | None:
    if view.leaving is None:
        return None
    why = f"at {view.leaving:%H:%M:%S}, it says"
    return Leave(notice=Notice.SEEN, why=why, at=at, until=view.leaving)
