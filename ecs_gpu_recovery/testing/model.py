"""The model: the real decisions in the modelled world, one move at a time.

What is assumed, and why. An order belongs to the process that committed it until its lease ends: a process never
sends after that (a Lambda's time limit is shorter than the lease). A start is looked up in the record right before it
is sent; look and send are one move here. What a process has learned is committed in one step, and a conflict means
load and decide again, so commits come one after the other in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ..core.effects import CheckNode, Notify, Order, RebootNode, StartTask, StopTask, WriteRows, token
from ..core.events import (
    CheckRefused,
    Fact,
    OrderFailed,
    OrderSent,
    RebootFailed,
    StartRefused,
    TaskEnded,
    Tick,
)
from ..core.machine import decide, submit
from ..core.model import Job, JobSpec, Node, NodeStatus, Rank
from . import monitors, world
from .bounds import Bounds, Left
from .world import Check, Machine, Reboot, Run, Sight, node_name

T0 = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stalled:
    """A process that stopped between a commit and the end of its orders. It goes on before its lease ends, or never."""

    job: Job  #: the record as it committed it
    orders: tuple[Order, ...]
    facts: tuple[Fact, ...]
    until: datetime


@dataclass(frozen=True, slots=True)
class State:
    """Everything there is at one moment."""

    job: Job
    machines: tuple[Machine, ...]
    now: datetime
    left: Left
    stalled: Stalled | None = None
    told: tuple[str, ...] = ()
    rows: Job | None = None  #: the record that the rows were last written from

    # Written out, not by `replace`: this is where the search spends its time.

    def spend(self, what: str) -> State:
        left = self.left._replace(**{what: getattr(self.left, what) - 1})
        return State(self.job, self.machines, self.now, left, self.stalled, self.told, self.rows)

    def with_machine(self, rank: int, machine: Machine) -> State:
        machines = (*self.machines[:rank], machine.tidy(), *self.machines[rank + 1 :])
        return State(self.job, machines, self.now, self.left, self.stalled, self.told, self.rows)

    def with_job(self, job: Job) -> State:
        return State(job, self.machines, self.now, self.left, self.stalled, self.told, self.rows)

    @property
    def at_rest(self) -> bool:
        return self.job.status.final and not self.job.outbox and self.stalled is None


Outcome = tuple[str, State]


class Model:
    """One configuration: where it begins, and what can happen next."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.policy = bounds.policy
        #: Duties of the runtime and the fleet. A test turns one off to see that the search notices.
        self.finds_tokens = True  #: whoever starts a task, or looks for one, looks for its token
        self.one_version = True  #: facts that are committed together count as one version of the record
        self._old_news: dict[int, tuple[Job, set[tuple[object, ...]]]] = {}

    def old_news(self, job: Job) -> set[tuple[object, ...]]:
        """What is known to tell this very record nothing. The world moves on more often than the record does."""
        known = self._old_news.get(id(job))
        if known is None or known[0] is not job:
            if len(self._old_news) > 20_000:
                self._old_news.clear()
            known = self._old_news[id(job)] = (job, set())
        return known[1]

    # -- the beginning -----------------------------------------------------------------------------------------

    def begin(self) -> Iterator[Outcome]:
        b = self.bounds
        boot = "" if b.blind else "boot0"
        nodes = [
            Node(
                name=node_name(i),
                cluster="c",
                created_at=T0,
                updated_at=T0,
                gpus=world.GPUS,
                gpus_seen=world.GPUS,
                seen_version=1,
                boot_id=boot,
                connected=True,
                status=NodeStatus.AVAILABLE,
            )
            for i in range(b.nodes)
        ]
        step = submit(
            job_id="j",
            cluster="c",
            spec=JobSpec(),
            nodes=nodes,
            policy=self.policy,
            at=T0,
            check=b.check_first,
        )
        job = self._trimmed(step.job, 1)
        state = State(job, (Machine(),) * b.nodes, T0, b.left, rows=job if b.rows else None)
        orders = tuple(order for order in step.orders if order in job.outbox)
        yield from self.send(state, orders, (), "submit")

    def _trimmed(self, job: Job, version: int) -> Job:
        outbox = (
            job.outbox
            if self.bounds.rows
            else tuple(o for o in job.outbox if not isinstance(o.effect, WriteRows))
        )
        return replace(job, outbox=outbox, timeline=(), version=version)

    # -- the process: decide, commit, send ---------------------------------------------------------------------

    def decide(self, state: State, facts: Sequence[Fact]) -> tuple[State, tuple[Order, ...]]:
        """Apply facts in one commit, as the runtime does."""
        old = job = state.job
        added: dict[str, Order] = {}
        for fact in facts:
            if self.one_version and job.version != old.version:
                job = replace(job, version=old.version)
            step = decide(job, fact, self.policy)
            if step.changed:
                monitors.after_decision(job, step.job, state.machines)
                job = step.job
                added.update({order.key: order for order in step.orders})
        if job is old:
            return state, ()
        job = self._trimmed(job, old.version + 1)
        keys = {order.key for order in job.outbox}
        return state.with_job(job), tuple(order for order in added.values() if order.key in keys)

    def send(
        self,
        state: State,
        orders: Sequence[Order],
        facts: tuple[Fact, ...],
        label: str,
        job: Job | None = None,
    ) -> Iterator[Outcome]:
        """Send, learn, decide, until nothing is left; with every way this can be cut short.

        `job` is the record as the process knows it, where that is older than the one in the store.
        """
        while True:
            job = job or state.job
            for k, order in enumerate(orders):
                rest = tuple(orders[k:])
                yield from self._stall(
                    state,
                    Stalled(job, rest, facts, state.now + self.policy.lease),
                    f"{label}; stalls before {order.key}",
                )
                for what, answer in self._troubles(state, order):
                    after = state.spend(what)
                    yield from self.send(
                        after,
                        rest[1:],
                        (*facts, answer),
                        f"{label}; {order.key} meets {type(answer).__name__}",
                        job,
                    )
                state, news = self._carry_out(state, job, order)
                facts = (*facts, *news)
            if not facts:
                break
            yield from self._stall(
                state,
                Stalled(job, (), facts, state.now + self.policy.lease),
                f"{label}; stalls after its last order",
            )
            state, orders = self.decide(state, facts)
            job, facts = None, ()
            if not orders:
                break
        yield label, state

    @staticmethod
    def _stall(state: State, stalled: Stalled, label: str) -> Iterator[Outcome]:
        if state.left.stalls and state.stalled is None:
            yield label, replace(state.spend("stalls"), stalled=stalled)

    def _troubles(self, state: State, order: Order) -> Iterator[tuple[str, Fact]]:
        effect, at = order.effect, state.now
        if state.left.hiccups:
            yield "hiccups", OrderFailed(at=at, key=order.key, error="no answer")
        if (
            state.left.refusals
            and isinstance(effect, StartTask)
            and self._wanted(state, order)
            and not self._known(state, effect)
        ):
            yield (
                "refusals",
                StartRefused(at=at, attempt=effect.attempt, rank=effect.rank, reason="ATTRIBUTE"),
            )
        if state.left.refusals and isinstance(effect, RebootNode):
            yield "refusals", RebootFailed(at=at, node=effect.node, key=effect.key, reason="not managed")

    @staticmethod
    def _wanted(state: State, order: Order) -> bool:
        return any(order.key == pending.key for pending in state.job.outbox)

    def _carry_out(self, state: State, job: Job, order: Order) -> tuple[State, tuple[Fact, ...]]:
        effect, at = order.effect, state.now
        if isinstance(effect, StartTask):
            return self._start(state, effect) if self._wanted(state, order) else (state, ())
        if isinstance(effect, CheckNode):
            return self._check(state, effect)
        sent = OrderSent(at=at, key=order.key)
        if isinstance(effect, StopTask):
            state, news = self._stop(state, effect)
            return state, (*news, sent)
        if isinstance(effect, RebootNode):
            return self._reboot(state, effect), (sent,)
        if isinstance(effect, Notify):
            return replace(state, told=(*state.told, effect.key)), (sent,)
        if isinstance(effect, WriteRows) and state.rows is not None and state.rows.version < job.version:
            return replace(state, rows=job), (sent,)
        return state, (sent,)

    def _known(self, state: State, order: StartTask) -> Run | None:
        """The task that this order has started before."""
        return (
            state.machines[order.rank].run(order.token, ended_too=self.bounds.finds_ended)
            if self.finds_tokens
            else None
        )

    def _start(self, state: State, order: StartTask) -> tuple[State, tuple[Fact, ...]]:
        machine = state.machines[order.rank]
        known = self._known(state, order)
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
        start_try = int(order.key.rsplit("/", 1)[1])
        run = Run(order.rank, order.attempt, start_try, copies, order.token, born=state.now)
        state = state.with_machine(order.rank, replace(machine, runs=(*machine.runs, run)))
        return state, (self._reply(run, state.now),)

    def _reply(self, run: Run, at: datetime) -> Fact:
        return replace(world.started(run, at), running=not self.bounds.slow_start)

    def _stop(self, state: State, order: StopTask) -> tuple[State, tuple[Fact, ...]]:
        i = int(order.node[1:])
        machine = state.machines[i]
        hit = [run.id == order.task_id if order.task_id else run.token == order.token for run in machine.runs]
        runs = tuple(
            run._replace(stopping=True) if mine and run.alive else run
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

    def _check(self, state: State, order: CheckNode) -> tuple[State, tuple[Fact, ...]]:
        machine = state.machines[order.rank]
        known = machine.check(order.token, ended_too=self.bounds.finds_ended)
        if known is not None:
            return state, (world.check_started(known, state.now),)
        if self.bounds.finds_ended and any(check.check_try > order.check_try for check in machine.checks):
            return state, ()  # it ended so long ago that the model has forgotten it
        if not machine.connected or machine.busy:
            reason = "RESOURCE:GPU" if machine.connected else "AGENT"
            return state, (
                CheckRefused(at=state.now, node=order.node, check_try=order.check_try, reason=reason),
            )
        copies = sum(check.token == order.token for check in machine.checks)
        check = Check(order.rank, order.attempt, order.check_try, copies, order.token, at=state.now)
        state = state.with_machine(order.rank, replace(machine, checks=(*machine.checks, check)))
        return state, (world.check_started(check, state.now),)

    def _reboot(self, state: State, order: RebootNode) -> State:
        i = int(order.node[1:])
        machine = state.machines[i]
        monitors.before_reboot(state.job, order, machine, None if self.bounds.late_stamps else state.now)
        if any(reboot.key == order.key for reboot in machine.reboots):
            return state
        return state.with_machine(i, replace(machine, reboots=(*machine.reboots, Reboot(order.key))))

    # -- what the sweeper sees and does ------------------------------------------------------------------------

    def observe(self, state: State) -> list[Fact]:
        """Level facts: nodes first, then their tasks, checks and reboots."""
        found: list[Fact] = []
        for rank, machine in zip(state.job.ranks, state.machines, strict=True):
            found.append(world.seen_now(rank.index, machine, state.now, blind=self.bounds.blind))
            found += self._see_tasks(state, rank, machine)
            if rank.verdict is None and rank.check_try:
                name = token(state.job.id, rank.index, "check", rank.check_try)
                check = machine.check(name, ended_too=self.bounds.finds_ended or bool(rank.check_id))
                if check is not None and check.verdict:
                    found.append(world.checked(check, state.now))
            if rank.node_status is NodeStatus.REBOOTING and not rank.rebooted:
                key = f"{state.job.id}/{state.job.attempt}/{rank.index}/reboot"
                found += [
                    world.proven(rank.index, reboot, state.now, blind=self.bounds.blind)
                    for reboot in machine.reboots
                    if reboot.key == key and reboot.done
                ]
        return found

    def _see_tasks(self, state: State, rank: Rank, machine: Machine) -> Iterator[Fact]:
        own: Run | None = None
        if not rank.quiet:
            if rank.task_id:
                own = next(run for run in machine.runs if run.id == rank.task_id)
            else:
                name = token(state.job.id, rank.task_attempt, rank.index, "train", rank.start_try)
                own = machine.run(name, ended_too=self.bounds.finds_ended) if self.finds_tokens else None
        if own is not None and own.end and own.told:
            yield world.ended(own, state.now)
        elif own is not None and own.alive and machine.connected:
            yield world.started(own, state.now)
        for run in machine.runs if self.finds_tokens else ():
            if run.alive and not run.stopping and run != own and run.id != rank.task_id and machine.connected:
                yield world.started(run, state.now)

    def sweep(self, state: State) -> Iterator[Outcome]:
        """Compare the record with the world, look at the deadlines, send again what is due."""
        seen = [] if state.job.status.final else self.observe(state)
        first, orders = self.decide(state, [*seen, Tick(at=state.now)])
        for label, after in self.send(first, orders, (), "sweep"):
            due = [order for order in after.job.outbox if order.due <= after.now]
            if after.stalled is not state.stalled or not due:
                yield label, after
            else:
                yield from self.send(after, due, (), label)

    # -- time --------------------------------------------------------------------------------------------------

    def next_moment(self, state: State) -> datetime | None:
        """The next time at which something is due; nothing depends on the moments in between."""
        job = state.job
        times = [order.due for order in job.outbox]
        if state.stalled is not None:
            times.append(state.stalled.until)
        for rank in () if job.status.final else job.ranks:
            if rank.deadline is not None:
                times.append(rank.deadline)
            if rank.away_since is not None and rank.away_since + self.policy.node_lost_after > state.now:
                times.append(rank.away_since + self.policy.node_lost_after)
        if not self.bounds.late_sweeper and any(at <= state.now for at in times):
            return None
        return min((at for at in times if at > state.now), default=None)

    @staticmethod
    def advance(state: State, to: datetime) -> State:
        dead = state.stalled is not None and state.stalled.until <= to
        return replace(state, now=to, stalled=None if dead else state.stalled)


def sight(machine: Machine, **changes: object) -> Machine:
    """The cluster takes note of a change."""
    new = machine.sight._replace(**changes)  # type: ignore[arg-type]
    return replace(machine, sights=(*machine.sights, Sight(*new)), version=machine.version + 1)
