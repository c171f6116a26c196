"""The only loop: load, decide, commit, dispatch. Everything that happens to a record passes through here.

State and orders are committed in one write; only then are the orders sent, and what became of them comes back as
facts through the same loop. If the process dies in between, the sweeper sends what is still in the outbox.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from .arrears import NOBODY, rows_behind
from .core.draft import Step
from .core.effects import Archive, CheckNode, Notify, Order, RebootNode, StartTask, StopTask, WriteRows
from .core.errors import Bug, NotFound, StartRefused, Transient, VersionConflict
from .core.events import (
    CheckRefused,
    CheckStarted,
    Fact,
    NodeAsked,
    NodeChecked,
    OrderFailed,
    OrderSent,
    RebootFailed,
    StopAsked,
)
from .core.events import StartRefused as StartWasRefused
from .core.machine import decide, submit
from .core.model import Entry, Job, JobSpec, Node
from .core.nodes import decide_node
from .core.policy import Policy
from .ports import Fleet, Notifier, Store

log = logging.getLogger("ecs_gpu_recovery")
log.addHandler(logging.NullHandler())  # who runs it chooses where the lines go
#: A job of 256 nodes whose verdicts arrive at once: each writer must get its turn.
CONFLICTS = 300
#: How many orders are sent on one look at the record; more of them take a while.
ORDERS_PER_LOOK = 10
#: For how many events a process reads first after it guessed wrong.
WARY_FOR = 20


@dataclass(frozen=True, slots=True)
class Moved:
    """A record before and after a decision, and the orders that are new in it."""

    old: Job
    job: Job
    orders: tuple[Order, ...] = ()


class Runtime:
    """Decides on facts and sends the orders. It holds no state but a guess at the record it wrote last."""

    def __init__(
        self,
        *,
        store: Store,
        fleet: Fleet,
        notifier: Notifier,
        policy: Policy,
        dispatch: bool = True,
        on_commit: Callable[[Job | None, Job], None] | None = None,
        guess: bool = False,
    ) -> None:
        """`guess`: a record that this process wrote last is tried before it is read again, where reading is a call."""
        self.store, self.fleet, self.notifier, self.policy = store, fleet, notifier, policy
        self._dispatch_now = dispatch
        self._on_commit = on_commit
        self._guess = guess
        self._last: Job | None = None
        self._wary = 0

    # -- what comes in -----------------------------------------------------------------------------------------

    def submit(
        self,
        *,
        job_id: str,
        cluster: str,
        spec: JobSpec,
        nodes: Sequence[str],
        at: datetime,
        check: bool,
        max_retries: int | None = None,
    ) -> Job:
        """Claim the nodes and record the job; then send its first orders."""
        policy = self.policy if max_retries is None else replace(self.policy, max_retries=max_retries)
        known = [self.store.node(name) for name in nodes]
        step = submit(
            job_id=job_id, cluster=cluster, spec=spec, nodes=known, policy=policy, at=at, check=check
        )
        job = self._trimmed(None, step.job)
        self.store.create(job)
        self._say(job.timeline, job.id)
        if self._on_commit is not None:
            self._on_commit(None, job)
        self._send_all(job, step.orders, at)
        return job

    def handle(self, job_id: str, facts: Iterable[Fact], job: Job | None = None) -> Job:
        """Apply facts to a job in one commit, and send the orders that follow. `job` is the record, just read."""
        facts = list(facts)
        moved = self._decide(job_id, facts, job) if job or not self._guess else self._guessed(job_id, facts)
        if facts and moved.orders:
            self._send_all(moved.job, moved.orders, max(fact.at for fact in facts))
        return moved.job

    def handle_node(self, name: str, facts: Iterable[Fact], node: Node | None = None) -> None:
        """Apply facts to a node, as just read where the caller has it; a job that holds it hears of them too.

        Checks are the exception: a job's check names its job. One that does not is the node's own, and old news to
        whoever has claimed the node since.
        """
        facts = list(facts)
        node = node or self.store.node(name)
        if node.job_id:
            shared = [fact for fact in facts if not isinstance(fact, NodeAsked | CheckStarted | NodeChecked)]
            if shared:
                try:
                    self.handle(node.job_id, shared)
                except NotFound:
                    log.warning(
                        "node held by a job that is not recorded", extra={"node": name, "job": node.job_id}
                    )
                node = None  # the job may have written its row
        self._decide_node(name, facts, node)

    def stop(self, job_id: str, *, by: str, why: str, at: datetime) -> Job:
        return self.handle(job_id, [StopAsked(at=at, by=by, why=why)])

    # -- decide and commit -------------------------------------------------------------------------------------

    def _guessed(self, job_id: str, facts: Sequence[Fact]) -> Moved:
        """Decide on the record as we wrote it last. If it is stale, the commit fails, and tells the newer one.

        That nothing follows from a fact is believed only of a record that was just read. After a wrong guess we read
        for a while: somebody else is at work on this job, and a write that fails is paid for.
        """
        last = self._last if self._last is not None and self._last.id == job_id and not self._wary else None
        self._wary = max(0, self._wary - 1)
        moved = self._decide(job_id, facts, last)
        if last is not None and moved.job is last:
            return self._decide(job_id, facts)
        if last is not None and moved.old.version != last.version:
            self._wary = WARY_FOR
        return moved

    def _decide(self, job_id: str, facts: Sequence[Fact], last: Job | None = None) -> Moved:
        """`last` is the record as we have just written it: it saves a read, and if it is stale the commit says so."""
        for tried in range(CONFLICTS):
            _step_aside(tried)
            old = job = last or self.store.job(job_id)
            last = None
            added: dict[str, Order] = {}
            for fact in facts:
                step: Step = decide(job, fact, self.policy)
                job = step.job
                added.update({order.key: order for order in step.orders})
            if job is old:
                return Moved(old, old)
            job = self._trimmed(old, replace(job, version=old.version + 1))
            try:
                self.store.commit(job)
            except VersionConflict as exc:
                last = exc.newest if tried == 0 and isinstance(exc.newest, Job) else None
                continue
            self._last = job
            self._say(_news(old, job), job.id)
            if self._on_commit is not None:
                self._on_commit(old, job)
            return Moved(old, job, tuple(order for order in job.outbox if order.key in added))
        raise Transient(f"job {job_id}: too many writers at once")

    def _trimmed(self, old: Job | None, job: Job) -> Job:
        """Where the store writes the rows in the same commit, nobody orders it; elsewhere the order says whose."""
        kept = []
        for order in job.outbox:
            effect = order.effect
            if isinstance(effect, WriteRows):
                if old is not None and order not in old.outbox:
                    effect = replace(effect, ranks=rows_behind(old, job))
                if self.store.writes_rows or effect.ranks == NOBODY:
                    continue
            kept.append(replace(order, effect=effect))
        return replace(job, outbox=tuple(kept))

    def _decide_node(self, name: str, facts: Sequence[Fact], last: Node | None = None) -> Node:
        for tried in range(CONFLICTS):
            _step_aside(tried)
            old = node = last or self.store.node(name)
            last = None
            orders: dict[str, Order] = {}
            for fact in facts:
                step = decide_node(node, fact, self.policy)
                node = step.node
                orders.update({order.key: order for order in step.orders})
            if node is old:
                return node
            node = replace(node, version=old.version + 1)
            try:
                self.store.commit_node(node)
            except VersionConflict as exc:
                last = exc.newest if isinstance(exc.newest, Node) else None
                continue
            self._say([e for e in node.timeline if e not in old.timeline], f"node/{name}")
            if node.status is not old.status:
                self._label(node)
            if self._dispatch_now and orders:
                self._send_node_orders(node, tuple(orders.values()), max(fact.at for fact in facts))
            return node
        raise Transient(f"node {name}: too many writers at once")

    def _label(self, node: Node) -> None:
        """A label that could not be put is put by the sweeper, which compares them."""
        try:
            self.fleet.label_nodes([node])
        except Transient as exc:
            log.warning("label put off", extra={"node": node.name, "why": str(exc)})

    # -- dispatch ----------------------------------------------------------------------------------------------

    def _send_all(self, job: Job, orders: Sequence[Order], at: datetime) -> None:
        """Send, learn, decide, until no order is left that belongs to us.

        Rows come last, once for all that was decided on the way. Before many orders they come first: what others
        change meanwhile would be added to them.
        """
        todo = list(orders) if self._dispatch_now else []
        while todo:
            rows = [order for order in todo if isinstance(order.effect, WriteRows)]
            others = [order for order in todo if order not in rows]
            now = rows if rows and (not others or len(others) > ORDERS_PER_LOOK) else others
            facts = self.send(job, now, at)
            moved = self._decide(job.id, facts, job) if facts else Moved(job, job)
            if now is rows and moved.old.version != job.version:
                self._rewrite(job, moved.job)
            job = moved.job
            sent = {order.key for order in now}
            waiting = {order.key for order in (*todo, *moved.orders)} - sent
            todo = [order for order in job.outbox if order.key in waiting]

    def _rewrite(self, written: Job, newest: Job) -> None:
        """Somebody moved on while we wrote rows, and may have written theirs before ours."""
        ranks = rows_behind(replace(written, outbox=()), newest)
        if ranks != NOBODY:
            self.store.write_rows(newest, self.fleet.label_nodes, ranks)

    def send(
        self,
        job: Job,
        orders: Sequence[Order],
        at: datetime,
        *,
        again: bool = False,
    ) -> list[Fact]:
        """Carry out orders of a job; give back what is now known.

        A large gang takes a while to start. Before every few starts the record is read again, so that a start which
        was withdrawn meanwhile is not sent. An order that fails in a way nobody foresaw holds up no other: it is
        raised when all are sent and what became of them is recorded.
        """
        facts: list[Fact] = []
        trouble: list[Exception] = []
        starts, seen = 0, job
        for order in orders:
            if isinstance(order.effect, StartTask):
                if starts and starts % ORDERS_PER_LOOK == 0:
                    seen = self.store.job(job.id)
                starts += 1
                if all(order.key != pending.key for pending in seen.outbox):
                    continue
            act = partial(self._carry_out, seen, order, at, again)
            try:
                facts += self._guarded(order, at, act)
            except Exception as exc:  # noqa: BLE001 - raised below, when the others are sent
                trouble.append(exc)
        if trouble:
            if facts:
                self._decide(job.id, facts, seen)
            raise trouble[0]
        return facts

    def _send_node_orders(
        self, node: Node, orders: Sequence[Order], at: datetime, *, again: bool = False
    ) -> None:
        facts: list[Fact] = []
        for order in orders:
            facts += self._guarded(order, at, partial(self._carry_out_for_node, node, order, at, again))
        if facts:
            self._decide_node(node.name, facts)

    def send_node(self, node: Node, at: datetime) -> None:
        """Send again what is due of a node's own orders."""
        due = [order for order in node.outbox if order.due <= at]
        if due:
            self._send_node_orders(node, due, at, again=True)

    def _guarded(self, order: Order, at: datetime, act: Callable[[], Iterable[Fact]]) -> list[Fact]:
        effect = order.effect
        try:
            return list(act())
        except StartRefused as exc:
            if isinstance(effect, StartTask):
                return [StartWasRefused(at=at, attempt=effect.attempt, rank=effect.rank, reason=exc.reason)]
            if isinstance(effect, CheckNode):
                return [CheckRefused(at=at, node=effect.node, check_try=effect.check_try, reason=exc.reason)]
            if isinstance(effect, RebootNode):
                return [RebootFailed(at=at, node=effect.node, key=effect.key, reason=exc.reason)]
            raise Bug(f"{order.key} can't be refused") from exc
        except Transient as exc:
            return [OrderFailed(at=at, key=order.key, error=str(exc))]

    def _carry_out(self, job: Job, order: Order, at: datetime, again: bool) -> Iterable[Fact]:
        effect = order.effect
        if isinstance(effect, StartTask):
            return self.fleet.start_task(job, effect, again=again)
        if isinstance(effect, StopTask):
            return [*self.fleet.stop_task(job.id, effect), OrderSent(at=at, key=effect.key)]
        if isinstance(effect, CheckNode):
            return self.fleet.check_node(job, _node_of(job, effect), effect, again=again)
        if isinstance(effect, RebootNode):
            return [
                *self.fleet.reboot_node(self.store.node(effect.node), effect, again=again),
                OrderSent(at=at, key=effect.key),
            ]
        if isinstance(effect, WriteRows):
            self.store.write_rows(job, self.fleet.label_nodes, () if again else effect.ranks)
        elif isinstance(effect, Notify):
            self.notifier.notify(effect)
        elif isinstance(effect, Archive):
            self.notifier.archive(job.id, effect)
        return [OrderSent(at=at, key=effect.key)]

    def _carry_out_for_node(self, node: Node, order: Order, at: datetime, again: bool) -> Iterable[Fact]:
        effect = order.effect
        if isinstance(effect, CheckNode):
            return self.fleet.check_node(None, node, effect, again=again)
        if isinstance(effect, RebootNode):
            return [*self.fleet.reboot_node(node, effect, again=again), OrderSent(at=at, key=effect.key)]
        if isinstance(effect, StopTask):
            return [*self.fleet.stop_task(f"node/{node.name}", effect), OrderSent(at=at, key=effect.key)]
        if isinstance(effect, Notify):
            self.notifier.notify(effect)
            return [OrderSent(at=at, key=effect.key)]
        raise Bug(f"{effect.key} is not an order of a node")

    # -- what people read --------------------------------------------------------------------------------------

    def _say(self, entries: Iterable[Entry], record: str) -> None:
        """One structured line per transition, none per call."""
        for e in entries:
            log.info(
                "moved",
                extra={
                    "record": record,
                    "subject": e.subject,
                    "from": e.before,
                    "to": e.after,
                    "why": e.why,
                    "evidence": e.evidence,
                    "attempt": e.attempt,
                    "policy": e.policy,
                },
            )


def _step_aside(tried: int) -> None:
    """Whoever lost a race lets the others pass for a moment, longer each time: a gang's verdicts come all at once."""
    if tried > 1:
        time.sleep(random.uniform(0, min(0.025 * 2**tried, 2.0)))  # noqa: S311 - nothing here is secret


def _news(old: Job, new: Job) -> list[Entry]:
    known = set(old.timeline)
    return [entry for entry in new.timeline if entry not in known]


def _node_of(job: Job, order: CheckNode) -> Node:
    """What a check needs to know of its node. The job knows it all, so nobody has to ask."""
    rank = job.ranks[order.rank]
    return Node(
        name=rank.node,
        cluster=job.cluster,
        instance=rank.instance,
        gpus=rank.gpus,
        ip=rank.address,
        ibdev=rank.ibdev,
        job_id=job.id,
        status=rank.node_status,
        created_at=job.created_at,
        updated_at=job.updated_at,
    )
