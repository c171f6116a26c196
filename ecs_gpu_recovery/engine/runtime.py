"""The only loop: load, decide, commit, dispatch. Everything that happens to a record passes through here.

State and orders are committed in one write; only then are the orders sent, and what became of them comes back as
facts through the same loop. If the process dies in between, the sweeper sends what is still in the outbox.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ..core import keys
from ..core.effects import Order, StartTask, WriteRows
from ..core.errors import NotFound, Transient, VersionConflict
from ..core.events import CheckStarted, Fact, NodeAsked, NodeChecked, OrderFailed, StopAsked
from ..core.job.draft import Step
from ..core.job.table import decide, submit
from ..core.model import Entry, Job, JobSpec, Node
from ..core.node.life import decide_node
from ..core.policy import Policy
from .dispatch import Courier, node_of
from .ports import Fleet, Notifier, RowStore, Store
from .rows_behind import NOBODY, Trail, rows_behind, rows_order

log = logging.getLogger("ecs_gpu_recovery")
log.addHandler(logging.NullHandler())  # who runs it chooses where the lines go
#: A job of 256 nodes whose verdicts arrive at once: each writer must get its turn.
CONFLICTS = 300
#: ... and nobody waits longer for the next try than this.
LONGEST_WAIT_S = 6.0
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
        rows: RowStore | None = None,
    ) -> None:
        """`guess`: a record that this process wrote last is tried before it is read again, where reading is a call.

        `rows`: the store, where it can write the rows in the same call as the record.
        """
        self.store, self.fleet, self.notifier, self.policy = store, fleet, notifier, policy
        self._courier = Courier(store, fleet, notifier)
        self._rows = rows if dispatch else None
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
        overrides: Sequence[str] = (),
    ) -> Job:
        """Claim the nodes and record the job; then send its first orders. `overrides` are those of `Rank`, by rank."""
        policy = self.policy if max_retries is None else replace(self.policy, max_retries=max_retries)
        known = [self.store.node(name) for name in nodes]
        step = submit(
            job_id=job_id,
            cluster=cluster,
            spec=spec,
            nodes=known,
            policy=policy,
            at=at,
            check=check,
            overrides=overrides,
        )
        job = self._trimmed(None, step.job)
        self.store.create(job)
        self._say(job.timeline, job.id)
        if self._on_commit is not None:
            self._on_commit(None, job)
        self._send_all(job, step.orders, at, Trail())
        return job

    def handle(self, job_id: str, facts: Iterable[Fact], job: Job | None = None) -> Job:
        """Apply facts to a job in one commit, and send the orders that follow. `job` is the record, just read."""
        facts, trail = list(facts), Trail()
        read_first = job or not self._guess
        moved = self._decide(job_id, facts, job, trail) if read_first else self._guessed(job_id, facts, trail)
        if facts and moved.orders:
            now = max(fact.clock(moved.job.updated_at) for fact in facts)
            return self._send_all(moved.job, moved.orders, now, trail)
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
                    job = self.handle(node.job_id, shared)
                except NotFound:
                    log.warning(
                        "node held by a job that is not recorded", extra={"node": name, "job": node.job_id}
                    )
                else:
                    # If the job has written its row, the commit says so. One that ended has given the node away.
                    node = None if job.status.final else node
        self._decide_node(name, facts, node)

    def stop(self, job_id: str, *, by: str, why: str, at: datetime) -> Job:
        return self.handle(job_id, [StopAsked(at=at, by=by, why=why)])

    # -- decide and commit -------------------------------------------------------------------------------------

    def _guessed(self, job_id: str, facts: Sequence[Fact], trail: Trail) -> Moved:
        """Decide on the record as we wrote it last. If it is stale, the commit fails, and tells the newer one.

        That nothing follows from a fact is believed only of a record that was just read. After a wrong guess we read
        for a while: somebody else is at work on this job, and a write that fails is paid for.
        """
        last = self._last if self._last is not None and self._last.id == job_id and not self._wary else None
        self._wary = max(0, self._wary - 1)
        moved = self._decide(job_id, facts, last, trail)
        if last is not None and moved.job is last:
            return self._decide(job_id, facts, None, trail)
        if last is not None and moved.old.version != last.version:
            self._wary = WARY_FOR
        return moved

    def _decide(self, job_id: str, facts: Sequence[Fact], last: Job | None, trail: Trail) -> Moved:
        """`last` is the record as we have just written it: it saves a read, and if it is stale the commit says so."""
        for tried in _turns():
            old = job = last or self.store.job(job_id)
            last = None
            added: dict[str, Order] = {}
            for fact in facts:
                step: Step = decide(job, fact, self.policy)
                job = step.job
                added.update({order.key: order for order in step.orders})
            if job is old:
                self._take_back(old, trail)
                return Moved(old, old)
            job = self._trimmed(old, replace(job, version=old.version + 1))
            others = sum(o.key in added and not isinstance(o.effect, WriteRows) for o in job.outbox)
            ranks = trail.ranks_that_travel(old, job, alone=not 0 < others <= ORDERS_PER_LOOK)
            try:
                job = self._commit(job, ranks, trail)
            except VersionConflict as exc:
                last = exc.newest if tried == 0 and isinstance(exc.newest, Job) else None
                continue
            self._last = job
            self._say(_news(old, job), job.id)
            if self._on_commit is not None:
                self._on_commit(old, job)
            return Moved(old, job, tuple(order for order in job.outbox if order.key in added))
        raise Transient(f"job {job_id}: too many writers at once")

    def _commit(self, job: Job, ranks: Sequence[int], trail: Trail) -> Job:
        """Write the record, with the rows of these ranks if they can travel; else their order stays in the outbox.

        Labels come before rows, as everywhere: while a row is behind, its label is put again with it.
        """
        if self._rows is not None and 0 < len(ranks) <= self._rows.most_ranks:
            light = replace(job, outbox=tuple(order for order in job.outbox if order is not rows_order(job)))
            try:
                self._tell(light, ranks, trail)
                if self._rows.commit_with_rows(light, ranks):
                    trail.settle(light)
                    return light
            except VersionConflict:
                raise
            except Exception as exc:  # noqa: BLE001 - the rows are then written apart, which raises it again
                log.warning("rows go apart", extra={"job": job.id, "why": str(exc)})
        self._take_back(job, trail)
        self.store.commit(job)
        trail.told.clear()
        return job

    def _tell(self, job: Job, ranks: Sequence[int], trail: Trail) -> None:
        news = trail.news(job, ranks)
        if news:
            self.fleet.label_nodes([node_of(job, rank) for rank in news])
            trail.told.update({rank.node: rank.node_status for rank in news})

    def _take_back(self, job: Job, trail: Trail) -> None:
        """What was said of a node before somebody else was faster; a label is a hint, so this holds up nothing."""
        try:
            self._tell(job, (), trail)
        except Transient as exc:
            log.warning("label put off", extra={"job": job.id, "why": str(exc)})

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
        for _ in _turns():
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
            self._say([e for e in node.timeline if e not in old.timeline], keys.record_of_node(name))
            if node.status is not old.status:
                self._label(node)
            if self._dispatch_now and orders:
                now = max(fact.clock(node.updated_at) for fact in facts)
                self._send_node_orders(node, tuple(orders.values()), now)
            return node
        raise Transient(f"node {name}: too many writers at once")

    def _label(self, node: Node) -> None:
        """A label that could not be put is put by the sweeper, which compares them."""
        try:
            self.fleet.label_nodes([node])
        except Transient as exc:
            log.warning("label put off", extra={"node": node.name, "why": str(exc)})

    # -- dispatch ----------------------------------------------------------------------------------------------

    def _send_all(self, job: Job, orders: Sequence[Order], at: datetime, trail: Trail) -> Job:
        """Send, learn, decide, until no order is left that belongs to us.

        Rows come last, once for all that was decided on the way, and travel with the last commit if they can. Before
        many orders they come first: what others change meanwhile would be added to them.
        """
        todo = list(orders) if self._dispatch_now else []
        while todo:
            rows = [order for order in todo if isinstance(order.effect, WriteRows)]
            others = [order for order in todo if order not in rows]
            now = rows if rows and (not others or len(others) > ORDERS_PER_LOOK) else others
            facts = self.send(job, now, at)
            trail.owes = bool(rows) and now is not rows
            moved = self._decide(job.id, facts, job, trail) if facts else Moved(job, job)
            if now is rows and moved.old.version != job.version:
                self._rewrite(job, moved.job)
            job = moved.job
            sent = {order.key for order in now}
            waiting = {order.key for order in (*todo, *moved.orders)} - sent
            todo = [order for order in job.outbox if order.key in waiting]
        return job

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
            try:
                facts += self._courier.carry_out(seen, order, at, again=again)
            except Exception as exc:  # noqa: BLE001 - raised below, when the others are sent
                trouble.append(exc)
                facts.append(OrderFailed(at=at, key=order.key, error=str(exc)))
        if trouble:
            self._decide(job.id, facts, seen, Trail())
            raise trouble[0]
        return facts

    def _send_node_orders(
        self, node: Node, orders: Sequence[Order], at: datetime, *, again: bool = False
    ) -> None:
        facts: list[Fact] = []
        for order in orders:
            facts += self._courier.carry_out_for_node(node, order, at, again=again)
        if facts:
            self._decide_node(node.name, facts)

    def send_node(self, node: Node, at: datetime) -> None:
        """Send again what is due of a node's own orders."""
        due = [order for order in node.outbox if order.due <= at]
        if due:
            self._send_node_orders(node, due, at, again=True)

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


def _turns() -> Iterator[int]:
    """Whoever lost a race lets the others pass for a moment, longer each time: a gang's verdicts come all at once.

    How long is measured in tries: where reading and writing take long, so does everybody else's turn.
    """
    for tried in range(CONFLICTS):
        began = time.monotonic()
        yield tried
        if tried:
            took = max(0.025, time.monotonic() - began)
            time.sleep(random.uniform(0, min(took * 2 ** (tried + 1), LONGEST_WAIT_S)))  # noqa: S311 - no secret


def _news(old: Job, new: Job) -> list[Entry]:
    known = set(old.timeline)
    return [entry for entry in new.timeline if entry not in known]
