"""The world as the control plane may see it: the fleet port, as unhelpful as Amazon ECS and SSM are.

A look by token finds only tasks that are meant to run; before a start is sent again, those that are known to have
ended are looked through too. A stop reaches a machine when it is connected.
Every call may meet the night: no answer, a crash, or a long wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.effects import CheckNode, RebootNode, ReplaceNode, StartTask, StopTask
from ecs_gpu_recovery.core.errors import ClusterRefused, Transient
from ecs_gpu_recovery.core.events import (
    CheckStarted,
    Fact,
    FaultSeen,
    NodeChecked,
    NodeLeaving,
    NodeSeen,
    Origin,
    ProgressSeen,
    RebootFailed,
    RebootProven,
    TaskEnded,
    TaskStarted,
)
from ecs_gpu_recovery.core.model import Job, Leave, NodeStatus, Notice, Rank
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.witness import Named, Silence
from ecs_gpu_recovery.engine.dispatch import node_of

from .machine import Fault, Machine, Reboot, Task, Warned, verdict_of
from .world import World

if TYPE_CHECKING:
    from .night import Night


#: Of the training tasks' definition.
FAMILY = "train"


def _origin(task: Task) -> Origin:
    return Origin(token=task.token, instance=task.instance, family="" if task.check else FAMILY)


class SimulatedCluster:
    """`looks` says whether tasks are looked up by token. A mutant takes it away."""

    looks = True

    def __init__(self, world: World, night: Night) -> None:
        self._world, self._night = world, night

    # -- orders ----------------------------------------------------------------------------------------

    def start_task(self, job: Job, order: StartTask, *, again: bool) -> Iterable[Fact]:
        self._night.before("start", order.key)
        task = self._find_any(order.node, order.token) if again and self.looks else None
        if task is None:
            task = self._start(
                order.node,
                order.token,
                check=False,
                job=job.id,
                rank=order.rank,
                attempt=order.attempt,
                key=order.key,
            )
        self._night.forge(job, node_of(job, job.ranks[order.rank]), order)
        self._night.after("start", order.key)
        return [TaskStarted(at=self._night.clock, task_id=task.id, attempt=order.attempt, rank=order.rank)]

    def check_node(self, job: Job | None, node: Node, order: CheckNode, *, again: bool) -> Iterable[Fact]:
        self._night.before("check", order.key)
        task = self._find_any(order.node, order.token) if again else None
        if task is None:
            task = self._start(
                order.node,
                order.token,
                check=True,
                job=job.id if job else "",
                rank=order.rank,
                attempt=order.attempt,
                key=order.key,
                check_try=order.check_try,
            )
            task.idle = order.idle
        self._night.forge(job, node, order)
        self._night.after("check", order.key)
        return [
            CheckStarted(at=self._night.clock, node=node.name, check_id=task.id, check_try=order.check_try)
        ]

    def _start(
        self,
        name: str,
        mark: str,
        *,
        check: bool,
        job: str,
        rank: int,
        attempt: int,
        key: str,
        check_try: int = 0,
    ) -> Task:
        machine, world = self._world.machines[name], self._world
        if machine.gone:
            raise ClusterRefused(name, "MISSING")
        if not machine.connected:
            raise ClusterRefused(name, "AGENT")
        if (machine.busy and not world.weather.roomy) or (not check and machine.gpus < 8):
            raise ClusterRefused(name, "RESOURCE:GPU")
        if mark in machine.tombstones:
            raise ClusterRefused(name, "it was stopped before it started")
        if world.troubled and not check and world.strikes("refused"):
            raise ClusterRefused(name, world.rng.choice(("AGENT", "RESOURCE:GPU", "ATTRIBUTE")))
        task = world.start(
            machine,
            token=mark,
            check=check,
            job=job,
            rank=rank,
            attempt=attempt,
            check_try=check_try,
            start_key=key,
        )
        if world.weather.forgetful:
            task.instance = f"{name}.{machine.registration}"
        world.after(0.5, lambda: world.changed(machine))  # a placement shows up as news about the node
        return task

    def _find(self, name: str, mark: str) -> Task | None:
        return next(
            (
                t
                for t in self._world.machines[name].tasks
                if t.token == mark and (t.alive or t.forgotten) and not t.stopping
            ),
            None,
        )

    def _find_any(self, name: str, mark: str) -> Task | None:
        ended = (t for t in self._world.machines[name].tasks if t.token == mark and (t.told or t.stopping))
        return self._find(name, mark) or next(ended, None)

    def stop_task(self, job_id: str, order: StopTask) -> Iterable[Fact]:
        self._night.before("stop", order.key)
        task = self._world.tasks.get(order.task_id) if order.task_id else self._find(order.node, order.token)
        if self._world.weather.tombstones and order.token and task is None:
            self._world.machines[order.node].tombstones.add(order.token)
        if task is not None:
            self._world.stop(task, order.reason)
        self._night.after("stop", order.key)
        if order.rank < 0:
            return []
        if task is None:
            return [
                TaskEnded(
                    at=self._night.clock,
                    task_id=order.task_id,
                    attempt=order.attempt,
                    rank=order.rank,
                    exit_code=None,
                    reason=order.reason,
                    stop_code="UserInitiated",
                )
            ]
        if not order.task_id:
            return [
                TaskStarted(at=self._night.clock, task_id=task.id, attempt=order.attempt, rank=order.rank)
            ]
        return []

    def reboot_node(self, node: Node, order: RebootNode, *, again: bool) -> Iterable[Fact]:
        self._night.before("reboot", order.key)
        machine = self._world.machines[node.name]
        if machine.gone:
            return [
                RebootFailed(
                    at=self._night.clock, node=node.name, key=order.key, reason="the host is unknown"
                )
            ]
        if not (again and order.key in machine.reboots):
            self._world.reboot(machine, order.key)
        self._night.after("reboot", order.key)
        return []

    def replace_node(self, node: Node, order: ReplaceNode, *, again: bool) -> Iterable[Fact]:
        self._night.before("replace", order.key)
        machine = self._world.machines[node.name]
        if not self._world.weather.grouped:
            raise ClusterRefused(node.name, "it is in no group: nobody would start another")
        self._world.replace(machine, order.key)
        self._night.after("replace", order.key)
        return []

    def company(self, node: Node) -> Sequence[str]:
        self._night.before("look", f"who is on {node.name}")
        return ["somebody else's task"] * self._world.machines[node.name].strangers

    def label_nodes(self, nodes: Sequence[Node]) -> None:
        self._night.before("label", "")

    # -- what can be seen ------------------------------------------------------------------------------

    def observe_job(self, job: Job) -> Iterable[Fact]:
        self._night.before("look", job.id)
        yield from self.trained(job.id, len(self._world.steps[job.id]))
        for rank in job.ranks:
            machine = self._world.machines[rank.node]
            if not rank.handed:
                yield self.seen(machine)
                yield from self.faults(machine)
            if not rank.quiet:
                yield from self._see_task(job, rank)
            if rank.check_id and rank.verdict is None:
                yield from self._see_check(rank.check_id)

    def silence(self, job: Job, since: datetime) -> Silence | None:
        self._night.before("look", f"what {job.id} wrote")
        return self._night.hangs.silence(job, since)

    def keep_hang(self, job: Job, ranks: Sequence[Rank], *, last: bool) -> None:
        self._night.hangs.looked_at(job)

    def waited_for(self, job: Job, ranks: Sequence[Rank], since: datetime) -> Named | None:
        try:
            self._night.before("look", f"whom {job.id} waits for")
        except Transient:
            self._night.hangs.unanswered(job)
            raise
        return self._night.hangs.waited_for(job)

    def observe_nodes(self, nodes: Sequence[Node]) -> Iterable[tuple[str, Fact]]:
        self._night.before("look", "nodes")
        for node in nodes:
            machine = self._world.machines[node.name]
            yield node.name, self.seen(machine)
            if node.status is NodeStatus.PENDING_HEALTHCHECK and node.check_id:
                for fact in self._see_check(node.check_id):
                    yield node.name, fact
            if node.status is NodeStatus.REBOOTING and not node.rebooted:
                for fact in self._see_reboot(machine, node.reboot_key):
                    yield node.name, fact

    def _see_task(self, job: Job, rank: Rank) -> Iterator[Fact]:
        mark = keys.start_token(job.id, rank, job.salt)
        task = (
            self._world.tasks.get(rank.task_id)
            if rank.task_id
            else self._find(rank.node, mark)
            if self.looks
            else None
        )
        if task is not None and task.told:
            yield self.ended(task)
        elif task is not None:
            yield self.started(task, running=task.running and not task.stopping)

    def _see_check(self, check_id: str) -> Iterator[Fact]:
        task = self._world.tasks.get(check_id)
        if task is not None and task.told:
            yield self.checked(task)

    def _see_reboot(self, machine: Machine, key: str) -> Iterator[Fact]:
        reboot = machine.reboots.get(key)
        if reboot is not None and (reboot.done or reboot.failed):
            yield self.rebooted(machine, reboot)

    # -- facts -----------------------------------------------------------------------------------------

    def seen(self, machine: Machine) -> NodeSeen:
        w = self._world.weather
        instance = f"{machine.name}.{machine.registration}" if w.forgetful else ""
        return NodeSeen(
            at=self._night.clock,
            node=machine.name,
            connected=machine.connected,
            gpus=machine.gpus if machine.connected else None,
            boot_id="" if w.blind else f"boot{machine.boot}",
            version=machine.version if w.ordered else 0,
            gone=machine.gone,
            registered=self._world.stamp(machine.registered),
            instance=instance,
            host=machine.name if w.forgetful else "",
            leave=Leave(notice=Notice.SEEN, why="DRAINING", at=self._night.clock)
            if machine.draining
            else None,
        )

    def leaving(self, machine: Machine, warned: Warned) -> NodeLeaving:
        at, stamp = self._world.stamp(warned.at), self._world.stamp
        notice = Notice.MAYBE if warned.until is None else Notice.TOLD
        until = None if warned.until is None else stamp(warned.until)
        leave = Leave(notice=notice, why="EC2 takes it back", at=at, until=until)
        return NodeLeaving(at=self._night.clock, node=machine.name, leave=leave)

    def faulty(self, machine: Machine, fault: Fault) -> FaultSeen:
        """Under the node's own time, however late it is told."""
        at, boot = self._world.stamp(fault.at), f"boot{fault.boot}"
        return FaultSeen(at=at, node=machine.name, evidence=fault.line, grave=True, boot_id=boot)

    def started(self, task: Task, *, running: bool) -> TaskStarted:
        return TaskStarted(
            at=self._night.clock,
            task_id=task.id,
            attempt=task.attempt,
            rank=task.rank,
            running=running,
            origin=_origin(task),
        )

    def ended(self, task: Task) -> TaskEnded:
        return TaskEnded(
            at=self._night.clock,
            task_id=task.id,
            attempt=task.attempt,
            rank=task.rank,
            exit_code=task.exit_code,
            reason=task.reason,
            stop_code=task.stop_code,
            stopped_at=self._world.stamp(task.ended),
            origin=_origin(task),
        )

    def checked(self, task: Task) -> NodeChecked:
        return NodeChecked(
            at=self._night.clock,
            node=task.machine.name,
            check_id=task.id,
            check_try=task.check_try,
            verdict=verdict_of(task),
            origin=_origin(task),
        )

    def faults(self, machine: Machine) -> list[Fact]:
        """What the kernel log of this boot says, under the time of the node."""
        if machine.froze is None or not machine.up:
            return []
        at = self._world.stamp(machine.froze)
        return [FaultSeen(at=at, node=machine.name, evidence=f"Xid 119 | {machine.froze}", fatal=True)]

    def trained(self, job: str, number: int) -> list[Fact]:
        """How far a job says that it has come."""
        if not number:
            return []
        attempt, when = self._world.steps[job][number - 1]
        reached = self._world.stamp(when)
        if self._world.weather.reports == "steps":
            return [ProgressSeen(at=self._night.clock, step=number, attempt=attempt, reached=reached)]
        return [ProgressSeen(at=self._night.clock, checkpoint=f"step-{number}", reached=reached)]

    def rebooted(self, machine: Machine, reboot: Reboot) -> RebootProven | RebootFailed:
        if reboot.done:
            boot = "" if self._world.weather.blind else f"boot{machine.boot}"
            return RebootProven(at=self._night.clock, node=machine.name, key=reboot.key, boot_id=boot)
        return RebootFailed(
            at=self._night.clock, node=machine.name, key=reboot.key, reason="the command failed"
        )
