"""The model: the real decisions in the modelled world, one move at a time.

What is assumed, and why. An order belongs to the process that committed it until its lease ends: a process never
sends after that (a Lambda's time limit is shorter than the lease). A start is looked up in the record right before it
is sent; look and send are one move here. What a process has learned is committed in one step, and a conflict means
load and decide again, so commits come one after the other in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

from ecs_gpu_recovery.core import handover, keys
from ecs_gpu_recovery.core.effects import (
    CheckNode,
    Notify,
    Order,
    RebootNode,
    ReplaceNode,
    StartTask,
    StopTask,
)
from ecs_gpu_recovery.core.events import (
    Fact,
    NodeSeen,
    NodesOffered,
    OrderFailed,
    OrdersClaimed,
    OrderSent,
    PermitWithheld,
    RebootFailed,
    RebootProven,
    StartRefused,
    Tick,
)
from ecs_gpu_recovery.core.guard import Answer
from ecs_gpu_recovery.core.job import claim
from ecs_gpu_recovery.core.job.table import decide, submit
from ecs_gpu_recovery.core.model import Job, JobSpec, NodeStatus
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.rows import claimed_node, held_node

from . import monitors, replacements, world
from .bounds import Bounds
from .cluster import Cluster
from .state import Learned, Outcome, Stalled, State, may_have_a_sender
from .world import GPUS, Machine, node_name

T0 = datetime(2026, 1, 1, tzinfo=UTC)


class Model:
    """One configuration: where it begins, and what can happen next."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.policy = bounds.policy
        self.cluster = Cluster(bounds)
        #: Rows that a commit leaves to be written stay owed until they are. A test turns it off, too.
        self.keeps_what_is_owed = True
        self._old_news: dict[tuple[int, int], tuple[Job, Node, set[tuple[object, ...]]]] = {}

    def old_news(self, job: Job, node: Node) -> set[tuple[object, ...]]:
        """What is known to tell these very records nothing. The world moves on more often than they do."""
        known = self._old_news.get((id(job), id(node)))
        if known is None or known[0] is not job or known[1] is not node:
            if len(self._old_news) > 20_000:
                self._old_news.clear()
            known = self._old_news[id(job), id(node)] = (job, node, set())
        return known[2]

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
                gpus=GPUS,
                gpus_seen=GPUS,
                seen_version=1,
                boot_id=boot,
                instance=node_name(i),
                host=node_name(i),
                connected=True,
                status=NodeStatus.AVAILABLE,
                kind="alike",
            )
            for i in range(b.nodes)
        ]
        step = submit(
            job_id="j",
            cluster="c",
            spec=JobSpec(failover="any" if b.leaves or b.moves else ""),
            nodes=nodes,
            policy=self.policy,
            at=T0,
            check=b.check_first,
        )
        job = replace(step.job, timeline=(), version=1)
        held = tuple(replace(claimed_node(node, job), timeline=()) for node in nodes)
        state = State(job, (Machine(),) * b.nodes, held, T0, b.left, rows=job if b.rows else None)
        orders = tuple(order for order in step.orders if order in job.outbox)
        yield from self.send(state, orders, (), "submit")

    # -- the process: decide, commit, send ---------------------------------------------------------------------

    def decide(self, state: State, facts: Sequence[Fact]) -> tuple[State, tuple[Order, ...]]:
        """Apply facts to the job in one commit, as the runtime does. Nodes that are handed over are part of it."""
        old = job = state.job
        added: dict[str, Order] = {}
        for fact in facts:
            if job.version != old.version:
                job = replace(job, version=old.version)
            step = decide(job, fact, self.policy, state.now)
            if step.changed:
                machines = state.of(step.job)
                monitors.after_decision(job, step.job, machines)
                monitors.truly_lost(job, step.job, state, self.policy.stop_timeout)
                monitors.fairly_charged(job, step.job, state.steps)
                monitors.truly_frozen(job, step.job, machines, state.now, self.policy.fault_grace)
                job = step.job
                added.update({order.key: order for order in step.orders})
        if job is old:
            return state, ()
        owed = old.owed if self.keeps_what_is_owed else ()
        if self.bounds.rows and monitors.row_view(old) != monitors.row_view(job):
            owed = tuple((index, old.version + 1) for index in range(self.bounds.nodes))
        job = replace(job, timeline=(), version=old.version + 1, owed=owed)
        pending = {order.key for order in job.outbox}
        orders = [order for order in added.values() if order.key in pending]
        taken = handover.taken(old, job, lambda name: state.nodes[int(name[1:])], self.policy, state.now)
        orders += [order for node in taken for order in node.outbox]
        state = state.with_job(job)
        for node in taken:
            monitors.after_node_decision(state.nodes[int(node.name[1:])], node)
            state = state.with_node(int(node.name[1:]), replace(node, timeline=()))
        if job.status.final and not old.status.final:
            free = [held_node(replace(node, job_version=0), job) or node for node in state.nodes]
            for before, node in zip(state.nodes, free, strict=True):
                monitors.after_node_decision(before, node, job)
            state = state.with_job(job, tuple(replace(node, timeline=()) for node in free))
        return state, tuple(orders)

    def decide_node(self, state: State, i: int, facts: Sequence[Fact]) -> tuple[State, tuple[Order, ...]]:
        """Apply facts to a node's own record in one commit."""
        node = old = state.nodes[i]
        added: dict[str, Order] = {}
        for fact in facts:
            step = decide_node(node, fact, self.policy, state.now)
            if step.changed:
                monitors.after_node_decision(node, step.node)
                monitors.truly_gone(node, step.node, state.machines[i])
                if isinstance(fact, Tick) and self.policy.may_replace:
                    monitors.not_given_up(node, step.node, state.machines[i])
                node = replace(step.node, timeline=())
                added.update({order.key: order for order in step.orders})
        if node is old:
            return state, ()
        pending = {order.key for order in node.outbox}
        orders = tuple(order for order in added.values() if order.key in pending)
        return state.with_node(i, replace(node, version=old.version + 1)), orders

    def hear(self, state: State, facts: Sequence[Learned]) -> tuple[State, tuple[Order, ...]]:
        """Each fact reaches its record: one commit for the job, one for each node."""
        ours = [each.fact for each in facts if each.node is None]
        state, orders = self.decide(state, ours) if ours else (state, ())
        for i in sorted({each.node for each in facts if each.node is not None}):
            some = [each.fact for each in facts if each.node == i]
            state, more = self.decide_node(state, i, some)
            orders = (*orders, *more)
        return state, orders

    def addressed(self, state: State, facts: Sequence[Fact], own: bool = False) -> tuple[Learned, ...]:
        """Who hears what. A sighting is for the record that decides on the node; a reboot is the node's own."""
        found: list[Learned] = []
        for fact in facts:
            i = int(getattr(fact, "node", "n-1")[1:])
            if own or isinstance(fact, RebootProven | RebootFailed):
                found.append(Learned(fact, i))
                continue
            sighting = isinstance(fact, NodeSeen) and state.nodes[i].own
            found.append(Learned(fact, i if sighting else None))
        return tuple(found)

    def send(
        self,
        state: State,
        orders: Sequence[Order],
        facts: tuple[Learned, ...],
        label: str,
        job: Job | None = None,
    ) -> Iterator[Outcome]:
        """Send, learn, decide, until nothing is left; with every way this can be cut short.

        `job` is the record as the process knows it, where that is older than the one in the store. Rows that its
        commit has left to be written come before the orders.
        """
        paid = False
        while True:
            job = job or state.job
            if job.owed:
                yield from self._stall(
                    state,
                    Stalled(job, tuple(orders), facts, state.now + self.policy.lease),
                    f"{label}; stalls before its rows",
                )
                state = self._pay(state, job) if orders else self._settle(state, job)
                job, paid = replace(job, owed=()), True
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
                        (*facts, Learned(answer, _whose(order))),
                        f"{label}; {order.key} meets {type(answer).__name__}",
                        job,
                    )
                state, news = self._carry_out(state, job, order)
                facts = (*facts, *(Learned(fact, _whose(order)) for fact in news))
            if not facts:
                break
            yield from self._stall(
                state,
                Stalled(job, (), facts, state.now + self.policy.lease),
                f"{label}; stalls after its last order",
            )
            before, (state, orders) = state, self.hear(state, facts)
            state = self._noted(before, state, job) if paid else state
            job, facts, paid = self.as_committed(before, state), (), False
            if not orders:
                break
        yield label, state

    @staticmethod
    def as_committed(before: State, after: State) -> Job:
        """The record as the process knows it. What was owed before it came is for the sweeper to pay."""
        return replace(after.job, owed=()) if before.job.owed == after.job.owed else after.job

    @staticmethod
    def _pay(state: State, *records: Job) -> State:
        """The rows as these records have them, unless they are newer; the next commit takes note of it."""
        for record in records:
            if state.rows is not None and state.rows.version < record.version:
                state = replace(state, rows=record)
        return state

    @classmethod
    def _settle(cls, state: State, job: Job) -> State:
        """The rows as this record has them, and as the newest has them, if that is another."""
        state = cls._pay(state, job, state.job)
        return state.with_job(replace(state.job, owed=()))

    @staticmethod
    def _noted(before: State, after: State, job: Job) -> State:
        """The next commit of a process that has paid owes only its own rows, if nobody else was faster."""
        if job.owed or not before.job.version == job.version < after.job.version:
            return after
        own = tuple(each for each in after.job.owed if each[1] == after.job.version)
        return after.with_job(replace(after.job, owed=own))

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
            and not self.cluster.known(state, effect)
        ):
            yield (
                "refusals",
                StartRefused(at=at, attempt=effect.attempt, rank=effect.rank, reason="ATTRIBUTE"),
            )
        if state.left.holds and isinstance(effect, RebootNode) and not self.cluster.knows(state, effect):
            for said in (Answer.HELD, Answer.EXAMINE, Answer.REFUSED):
                yield "holds", PermitWithheld(at=at, key=order.key, answer=said, why="frozen")
        if state.left.refusals and isinstance(effect, RebootNode):
            yield "refusals", RebootFailed(at=at, node=effect.node, key=effect.key, reason="not managed")

    @staticmethod
    def _wanted(state: State, order: Order) -> bool:
        return any(order.key == pending.key for pending in state.orders)

    def _carry_out(self, state: State, job: Job, order: Order) -> tuple[State, tuple[Fact, ...]]:
        effect, at = order.effect, state.now
        if isinstance(effect, StartTask):
            return self.cluster.start(state, effect) if self._wanted(state, order) else (state, ())
        if isinstance(effect, CheckNode):
            return self.cluster.check(state, effect)
        sent = OrderSent(at=at, key=order.key)
        if isinstance(effect, StopTask):
            state, news = self.cluster.stop(state, effect)
            return state, (*news, sent)
        if isinstance(effect, RebootNode):
            if self.bounds.holds and not self._wanted(
                state, order
            ):  # the guard has said so to another sender
                return state, (PermitWithheld(at=at, key=order.key, answer=Answer.EXAMINE, why="old"),)
            wanted = self._wanted(state, order)
            if isinstance(effect, ReplaceNode):
                patience = self.policy.reboot_timeout
                return replacements.take_away(state, effect, patience, wanted=wanted), (sent,)
            return self.cluster.reboot(state, effect, wanted=wanted), (sent,)
        if isinstance(effect, Notify):
            return replace(state, told=(*state.told, effect.key)), (sent,)
        return state, (sent,)

    # -- what the sweeper does ---------------------------------------------------------------------------------

    def sweep(self, state: State) -> Iterator[Outcome]:
        """Compare the record with the world, look at the deadlines, send again what is due, pay what is owed."""
        for label, after in self._sweep(state):
            stopped = after.stalled is not state.stalled
            yield label, self._settle(after, after.job) if after.job.owed and not stopped else after

    def _sweep(self, state: State) -> Iterator[Outcome]:
        seen = (
            []
            if state.job.status.final
            else [*world.trained(state.steps, state.now), *self.cluster.observe(state)]
        )
        offer = [NodesOffered(at=state.now, nodes=state.nodes)] if claim.wanted(state.job) else []
        facts = [Learned(fact) for fact in (*seen, Tick(at=state.now), *offer)]
        for i, node in enumerate(state.nodes):
            if node.own:
                news = (*self.cluster.observe_node(state, i), Tick(at=state.now))
                facts += [Learned(fact, i) for fact in news]
        facts += replacements.who_came(state)
        first, orders = self.hear(state, [*facts, *self.missed(state)])
        for label, after in self.send(first, orders, (), "sweep", self.as_committed(state, first)):
            due = [order for order in after.orders if order.due <= after.now]
            if after.stalled is not state.stalled or not due:
                yield label, after
            else:
                yield from self._resend(after, due, label)

    def _resend(self, state: State, due: Sequence[Order], label: str) -> Iterator[Outcome]:
        """The sweeper first takes a lease of its own. What may still have a sender gets the time of that lease."""
        owners = dict.fromkeys(map(_whose, due))
        claims = [
            Learned(OrdersClaimed(at=state.now, keys=tuple(o.key for o in due if _whose(o) == whose)), whose)
            for whose in owners
        ]
        before, (state, _) = state, self.hear(state, claims)
        mine = [order for order in due if self._wanted(state, order) and not may_have_a_sender(order)]
        yield from self.send(state, mine, (), label, self.as_committed(before, state))

    @staticmethod
    def missed(state: State) -> list[Learned]:
        """What the job and the nodes that it handed over have not told each other, as the sweeper finds it."""
        found = []
        known = {node.name: node for node in state.nodes}
        for rank, for_node, for_job in handover.missed(state.job, known, known.__getitem__):
            found += [Learned(for_node, int(rank.node[1:]))] if for_node is not None else []
            found += [Learned(for_job)] if for_job is not None else []
        return found


def _whose(order: Order) -> int | None:
    """The node whose own order it is; None for the job's. A node is rebooted under the key of its hand-over."""
    if isinstance(order.effect, RebootNode):
        return int(order.effect.node[1:])
    return _node_in(order.key)


@cache
def _node_in(name: str) -> int | None:
    key = keys.parse(name)
    return int(key.node[1:]) if key is not None and key.node else None
