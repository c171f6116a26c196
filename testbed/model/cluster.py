"""The modelled cluster at work: how it carries out an order, and what it answers when somebody looks.

It is as strict as Amazon ECS and as forgetful: a token finds the task it has started, an ended one perhaps not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.effects import CheckNode, RebootNode, StartTask, StopTask
from ecs_gpu_recovery.core.events import CheckRefused, Fact, StartRefused, TaskEnded
from ecs_gpu_recovery.core.model import NodeStatus, Rank

from . import monitors, replacements, world
from .bounds import Bounds
from .state import State
from .world import Check, Machine, Reboot, Run

Answer = tuple[State, tuple[Fact, ...]]


class Cluster:
    """Holds no state of its own."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        #: Whoever starts a task, or looks for one, looks for its token. A test turns it off, to see it noticed.
        self.finds_tokens = True

    # -- orders ------------------------------------------------------------------------------------------------

    def known(self, state: State, order: StartTask) -> Run | None:
        """The task that this order has started before."""
        machine = state.machines[int(order.node[1:])]
        return machine.run(order.token, ended_too=self.bounds.finds_ended) if self.finds_tokens else None

    def start(self, state: State, order: StartTask) -> Answer:
        i = int(order.node[1:])
        machine = state.machines[i]
        known = self.known(state, order)
        if known is not None:
            return state, (self._reply(known, state.now),)
        if not machine.connected:
            return state, (
                StartRefused(at=state.now, attempt=order.attempt, rank=order.rank, reason="AGENT"),
            )
        monitors.before_start(order, state.machines)
        if machine.busy:
            return state, (
                StartRefused(at=state.now, attempt=order.attempt, rank=order.rank, reason="RESOURCE:GPU"),
            )
        copies = sum(run.token == order.token for run in machine.runs)
        key = keys.parse(order.key)
        assert key is not None
        run = Run(order.rank, order.attempt, int(key.last), copies, order.token, born=state.now)
        state = state.with_machine(i, replace(machine, runs=(*machine.runs, run)))
        return state, (self._reply(run, state.now),)

    def _reply(self, run: Run, at: datetime) -> Fact:
        return replace(world.started(run, at), running=not self.bounds.slow_start)

    def stop(self, state: State, order: StopTask) -> Answer:
        i = int(order.node[1:])
        machine = state.machines[i]
        hit = [run.id == order.task_id if order.task_id else run.token == order.token for run in machine.runs]
        runs = tuple(
            run._replace(stopping=True, asked=run.asked or state.now) if mine and run.alive else run
            for run, mine in zip(machine.runs, hit, strict=True)
        )
        checks = tuple(
            check._replace(stopping=True) if check.alive and check.token == order.token else check
            for check in machine.checks
        )
        state = state.with_machine(i, replace(machine, runs=runs, checks=checks))
        if order.rank < 0 or any(hit) or order.task_id or not self.bounds.answers_stop:
            return state, ()
        return state, (
            TaskEnded(
                at=state.now,
                task_id="",
                attempt=order.attempt,
                rank=order.rank,
                exit_code=None,
                reason=order.reason,
                stop_code="UserInitiated",
            ),
        )

    def check(self, state: State, order: CheckNode) -> Answer:
        i = int(order.node[1:])
        machine = state.machines[i]
        known = machine.check(order.token, ended_too=self.bounds.finds_ended)
        if known is not None:
            return state, (world.check_started(known, state.now),)
        own = order.rank < 0
        later = (check for check in machine.checks if check.own is own and check.check_try > order.check_try)
        if self.bounds.finds_ended and any(later):
            return state, ()  # it ended so long ago that the model has forgotten it
        if not machine.connected or machine.busy:
            reason = "RESOURCE:GPU" if machine.connected else "AGENT"
            return state, (
                CheckRefused(at=state.now, node=order.node, check_try=order.check_try, reason=reason),
            )
        copies = sum(check.token == order.token for check in machine.checks)
        check = Check(i, order.attempt, order.check_try, copies, order.token, at=state.now, own=own)
        state = state.with_machine(i, replace(machine, checks=(*machine.checks, check)))
        return state, (world.check_started(check, state.now),)

    @staticmethod
    def knows(state: State, order: RebootNode) -> bool:
        """Whether it was sent before: then it had its permit."""
        machine = state.machines[int(order.node[1:])]
        return order.key in (machine.taken, *(reboot.key for reboot in machine.reboots))

    def reboot(self, state: State, order: RebootNode, *, wanted: bool = True) -> State:
        i = int(order.node[1:])
        machine = state.machines[i]
        if not replacements.means(state, i, wanted=wanted):
            return state
        now = None if self.bounds.late_stamps else state.now
        proof = monitors.before_reboot(state.nodes[i], order, machine, now)
        if self.knows(state, order):
            return state
        reboot = Reboot(order.key, at=state.now, proof=proof)
        return state.with_machine(i, replace(machine, reboots=(*machine.reboots, reboot)))

    # -- looks -------------------------------------------------------------------------------------------------

    def observe(self, state: State) -> list[Fact]:
        """Level facts: nodes first, then their tasks, checks and reboots."""
        found: list[Fact] = []
        for rank in state.job.ranks:
            i = int(rank.node[1:])
            machine = state.machines[i]
            if not rank.handed:
                found += self._see(state, i)
            found += self._see_tasks(state, rank, machine)
            if rank.verdict is None and rank.check_try:
                name = keys.token(keys.check(state.job.id, rank), state.job.salt)
                check = machine.check(name, ended_too=self.bounds.finds_ended or bool(rank.check_id))
                if check is not None and check.verdict:
                    found.append(world.checked(check, state.now))
        return found

    def observe_node(self, state: State, i: int) -> list[Fact]:
        """The same for a node that decides for itself."""
        node, machine = state.nodes[i], state.machines[i]
        found: list[Fact] = self._see(state, i)
        if node.status is NodeStatus.PENDING_HEALTHCHECK:
            name = keys.token(keys.node_check(node), node.salt)
            check = machine.check(name, ended_too=self.bounds.finds_ended or bool(node.check_id))
            if check is not None and check.verdict:
                found.append(world.checked(check, state.now))
        if node.status is NodeStatus.REBOOTING and not node.rebooted:
            found += [
                world.proven(i, reboot, state.now, blind=self.bounds.blind)
                for reboot in machine.reboots
                if reboot.key == node.reboot_key and reboot.done
            ]
        return found

    def _see(self, state: State, i: int) -> list[Fact]:
        """The machine that has the name, and before it the one that had it."""
        machine = state.machines[i]
        former = replacements.former(i, machine, state)
        now = world.seen_now(i, machine, state.now, blind=self.bounds.blind)
        return [now] if former is None else [former, now]

    def _see_tasks(self, state: State, rank: Rank, machine: Machine) -> Iterator[Fact]:
        own: Run | None = None
        if not rank.quiet:
            if rank.task_id:
                own = next(run for run in machine.runs if run.id == rank.task_id)
            else:
                name = keys.start_token(state.job.id, rank, state.job.salt)
                own = machine.run(name, ended_too=self.bounds.finds_ended) if self.finds_tokens else None
        if own is not None and own.end and own.told:
            yield world.ended(own, state.now)
        elif own is not None and (own.alive or machine.back is not None) and machine.connected:
            yield world.started(
                own, state.now
            )  # before its agent has reported, the cluster says so of a dead one
        for run in machine.runs if self.finds_tokens else ():
            if run.alive and not run.stopping and run != own and run.id != rank.task_id and machine.connected:
                yield world.started(run, state.now)
