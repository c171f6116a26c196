"""The only loop: load, decide, commit, dispatch. Everything that happens to a record passes through here.

State and orders are committed in one write; only then are the orders sent, and what became of them comes back as
facts through the same loop. If the process dies in between, the sweeper sends what is still in the outbox.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

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
#: How many ranks are started on one look at the record.
STARTS_PER_LOOK = 10
#: So many orders take a while to send.
MANY = 10


@dataclass(frozen=True, slots=True)
class Moved:
    """A record before and after a decision, and the orders that are new in it."""

    old: Job
    job: Job
    orders: tuple[Order, ...] = ()

    @property
    def rows_known(self) -> Job | None:
        """The record before, if its rows are known to be written: then only what changed needs a look."""
        return None if any(isinstance(order.effect, WriteRows) for order in self.old.outbox) else self.old


class Runtime:
    """Decides on facts and sends the orders. It holds no state of its own."""

    def __init__(
        self,
        *,
        store: Store,
        fleet: Fleet,
        notifier: Notifier,
        policy: Policy,
        dispatch: bool = True,
        on_commit: Callable[[Job | None, Job], None] | None = None,
    ) -> None:
        self.store, self.fleet, self.notifier, self.policy = store, fleet, notifier, policy
        self._dispatch_now = dispatch
        self._on_commit = on_commit

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
        job = self._trimmed(step.job)
        self.store.create(job)
        self._say(job.timeline, job.id)
        if self._on_commit is not None:
            self._on_commit(None, job)
        self._send_all(job, step.orders, at, None)
        return job

    def handle(self, job_id: str, facts: Iterable[Fact], job: Job | None = None) -> Job:
        """Apply facts to a job in one commit, and send the orders that follow. `job` is the record, just read."""
        facts = list(facts)
        moved = self._decide(job_id, facts, job)
        if facts and moved.orders:
            self._send_all(moved.job, moved.orders, max(fact.at for fact in facts), moved.rows_known)
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

    def _decide(self, job_id: str, facts: Sequence[Fact], last: Job | None = None) -> Moved:
        """`last` is the record as we have just written it: it saves a read, and if it is stale the commit says so."""
        for _ in range(CONFLICTS):
            old = job = last or self.store.job(job_id)
            last = None
            added: dict[str, Order] = {}
            for fact in facts:
                step: Step = decide(job, fact, self.policy)
                job = step.job
                added.update({order.key: order for order in step.orders})
            if job is old:
                return Moved(old, old)
            job = self._trimmed(replace(job, version=old.version + 1))
            try:
                self.store.commit(job)
            except VersionConflict as exc:
                last = exc.newest if isinstance(exc.newest, Job) else None
                continue
            self._say(_news(old, job), job.id)
            if self._on_commit is not None:
                self._on_commit(old, job)
            keys = {order.key for order in job.outbox}
            return Moved(old, job, tuple(order for order in added.values() if order.key in keys))
        raise Transient(f"job {job_id}: too many writers at once")

    def _trimmed(self, job: Job) -> Job:
        """Where the store writes the rows in the same commit, there is no order to write them."""
        if not self.store.writes_rows:
            return job
        return replace(
            job, outbox=tuple(order for order in job.outbox if not isinstance(order.effect, WriteRows))
        )

    def _decide_node(self, name: str, facts: Sequence[Fact], last: Node | None = None) -> Node:
        for _ in range(CONFLICTS):
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

    def _send_all(self, job: Job, orders: Sequence[Order], at: datetime, rows_known: Job | None) -> None:
        """Send, learn, decide, until no order is left that belongs to us.

        Rows come last, once for all that was decided on the way. Before many orders they come first: others would
        see them pending all that time, and write them all. `rows_known` is a record whose rows are written.
        """
        todo = list(orders) if self._dispatch_now else []
        while todo:
            rows = [order for order in todo if isinstance(order.effect, WriteRows)]
            others = [order for order in todo if order not in rows]
            now = rows if rows and (not others or len(others) > MANY) else others
            facts = self.send(job, now, at, rows_known=rows_known)
            moved = self._decide(job.id, facts, job) if facts else Moved(job, job)
            overtaken = moved.old.version != job.version
            if now is rows:
                if overtaken:  # somebody moved on while we wrote: perhaps past what we wrote
                    self.store.write_rows(moved.job, self.fleet.label_nodes, job)
                rows_known = moved.job
            elif overtaken and not {order.key for order in rows} & {order.key for order in moved.old.outbox}:
                rows_known = None if rows else moved.rows_known
            job = moved.job
            pending = {order.key for order in job.outbox}
            todo = [order for order in (*todo, *moved.orders) if order not in now and order.key in pending]

    def send(
        self,
        job: Job,
        orders: Sequence[Order],
        at: datetime,
        *,
        again: bool = False,
        rows_known: Job | None = None,
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
                if starts and starts % STARTS_PER_LOOK == 0:
                    seen = self.store.job(job.id)
                starts += 1
                if all(order.key != pending.key for pending in seen.outbox):
                    continue
            act = partial(self._carry_out, seen, order, at, again, rows_known)
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

    def _carry_out(
        self, job: Job, order: Order, at: datetime, again: bool, rows_known: Job | None
    ) -> Iterable[Fact]:
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
            self.store.write_rows(job, self.fleet.label_nodes, rows_known)
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
