"""The only loop: load, decide, commit, dispatch. Everything that happens to a record passes through here.

State and orders are committed in one write; only then are the orders sent, and what became of them comes back as
facts through the same loop. If the process dies in between, the sweeper sends what is still in the outbox.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from ..core import handover, resolutions
from ..core.effects import Notify, Order
from ..core.errors import NotFound, Transient
from ..core.events import Fact, FaultSeen, NodeSeen, OrdersClaimed, StopAsked, TaskEnded, latest
from ..core.job.table import decide, submit
from ..core.model import ANOTHER_TOOL, Job, JobSpec
from ..core.node.table import decide_node
from ..core.node_record import Node
from ..core.policy import Policy
from .dispatch import AT_ONCE, Dispatcher, Spread, in_turn, moved_nodes, node_of, say
from .offers import Offers
from .permits import Permits
from .ports import Fleet, GuardStore, Notifier, Store
from .records import Moved, R, Records

log = logging.getLogger("ecs_gpu_recovery")
log.addHandler(logging.NullHandler())  # who runs it chooses where the lines go
#: After so many it is recorded what became of them: what a process has learned must not all die with it.
BEFORE_RECORDED = 256


class Runtime:
    """Decides on facts and sends the orders."""

    def __init__(  # noqa: PLR0913 (each is a port, or how to use them)
        self,
        *,
        store: Store,
        fleet: Fleet,
        notifier: Notifier,
        policy: Policy,
        guard: GuardStore | None = None,
        dispatch: bool = True,
        on_commit: Callable[[Job | None, Job], None] | None = None,
        clock: Callable[[], datetime] | None = None,
        spread: Spread = in_turn,
    ) -> None:
        """Without `dispatch`, orders are committed for somebody else to send. Without a `clock`, no fact is late.
        Without a `guard`, nothing that is destroyed needs a permit."""
        self.store, self.fleet, self.notifier, self.policy = store, fleet, notifier, policy
        self.permits = None if guard is None else Permits(guard, policy)
        self.offers = Offers(store, self.permits, self.handle)
        self._dispatcher = Dispatcher(store, fleet, notifier, spread)
        self._dispatch_now = dispatch
        self._clock = clock
        self._on_commit = on_commit
        #: Nodes that were just handed over, until their first orders are sent.
        self._handed: dict[str, Node] = {}
        self._jobs: Records[Job] = Records(
            read=store.job,
            last=store.last,
            decide=self._decide_job,
            commit=self._commit_job,
            settle=self._settle,
        )
        self._nodes: Records[Node] = Records(
            read=store.node,
            last=lambda _: None,
            decide=self._decide_node,
            commit=self._commit_node,
            settle=lambda moved, trouble: moved.record,
        )

    # -- what comes in -----------------------------------------------------------------------------------------

    def submit(  # noqa: PLR0913 - all by name
        self,
        *,
        job_id: str,
        cluster: str,
        spec: JobSpec,
        nodes: Sequence[str],
        at: datetime,
        check: bool,
        max_retries: int | None = None,
        restart_when_healthy: str | None = None,
        overrides: Sequence[str] = (),
    ) -> Job:
        """Claim the nodes and record the job; then send its first orders. `overrides` are those of `Rank`, by rank."""
        chosen = {"max_retries": max_retries, "restart_when_healthy": restart_when_healthy}
        policy = replace(self.policy, **{name: own for name, own in chosen.items() if own is not None})  # type: ignore[arg-type]
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
            salt=secrets.token_hex(8),
        )
        self.store.create(step.job)
        say(step.job)
        self._dispatcher.resolve(resolutions.run_again(job_id, spec), step.job)
        if self._on_commit is not None:
            self._on_commit(None, step.job)
        trouble: list[Exception] = []
        job = self._send_all(self._jobs, step.job, step.orders, at, trouble, [])
        self._label({rank.node: node_of(job, rank) for rank in job.ranks}, trouble)
        if trouble:
            raise trouble[0]
        return step.job

    def handle(self, job_id: str, facts: Iterable[Fact], job: Job | None = None) -> Job:
        """Apply facts to a job in one commit, and send the orders that follow. `job` is the record, just read."""
        return self._work(self._jobs, job_id, list(facts), job)

    def handle_node(self, name: str, facts: Iterable[Fact], node: Node | None = None) -> None:
        """Apply facts to a node, as just read where the caller has it; what is seen of it, its job hears too."""
        self.handle_nodes([(node or self.store.node(name), list(facts))])

    def handle_nodes(self, seen: Iterable[tuple[Node, Sequence[Fact]]]) -> None:
        """Apply facts to nodes, just read. A job that holds some of them hears in one commit what is seen of them, and
        in another what became of those that it handed over."""
        seen = list(seen)
        shared: dict[str, list[Fact]] = {}
        for node, facts in seen:
            if not node.own:
                seen_of_it = [fact for fact in facts if isinstance(fact, NodeSeen | FaultSeen)]
                shared.setdefault(node.job_id, []).extend(seen_of_it)
        over = {job_id for job_id, facts in shared.items() if facts and self._told(job_id, facts)}
        news: dict[str, list[Fact]] = {}
        for node, facts in seen:
            # If the job has written its row, the commit says so. One that ended has given the node away.
            known = None if node.job_id in over else node
            self._work(self._nodes, node.name, facts, known, news=news)
        for job_id, facts in news.items():
            self._told(job_id, facts)

    def _told(self, job_id: str, facts: Sequence[Fact]) -> bool:
        """Tell a job of its nodes; whether it has ended."""
        try:
            return self.handle(job_id, facts).status.final
        except NotFound:
            log.warning("nodes held by a job that is not recorded", extra={"job": job_id})
            return False

    def stop(self, job_id: str, *, by: str, why: str, at: datetime) -> Job:
        return self.handle(job_id, [StopAsked(at=at, by=by, why=why)])

    def since(self, at: datetime) -> datetime:
        """The later of a time that was told and this process's own."""
        return latest(at, self._now())

    def _now(self) -> datetime | None:
        return None if self._clock is None else self._clock()

    # -- decide and commit -------------------------------------------------------------------------------------

    def _work(
        self,
        records: Records[R],
        name: str,
        facts: Sequence[Fact],
        known: R | None,
        trouble: list[Exception] | None = None,
        news: dict[str, list[Fact]] | None = None,
    ) -> R:
        """`trouble` is what nobody foresaw so far. It is raised at the end, when all is recorded and sent. `news` is
        filled with what jobs are to be told; without it, they are told at once."""
        trouble = [] if trouble is None else trouble
        moved = records.apply(name, facts, known)
        record = records.settle(moved, trouble)
        now = max((fact.clock(record.updated_at) for fact in facts), default=record.updated_at)
        moves = [moved]
        told: dict[str, list[Fact]] = {} if news is None else news
        shown: dict[str, Node] = {}
        if isinstance(moved.old, Job):  # a reboot waits for no other order
            self._send_first(moved.old, record, now, trouble, told, shown)
        record = self._send_all(records, record, moved.orders, now, trouble, moves)
        for each in moves:
            self._dispatcher.resolve(resolutions.over(each.old, each.record), each.record)
            if isinstance(each.old, Job):
                self._send_first(each.old, each.record, now, trouble, told, shown)
        self._label(moved_nodes(moves[0].old, record) | shown, trouble)
        for each in moves:
            if isinstance(each.old, Job):
                self._tell_nodes(each.old, each.record)
            else:
                for fact in handover.news(each.old, each.record):
                    told.setdefault(each.record.job_id, []).append(fact)
                if self.permits is not None and each.record.condemned != each.old.condemned:
                    self._count(each.record, now)
        for job_id, some in told.items() if news is None else ():
            self._told(job_id, some)
        if trouble:
            raise trouble[0]
        return self.offers.follow(moves[0].old, record, now) if self._dispatch_now else record

    def _send_first(
        self,
        old: Job,
        new: Job,
        at: datetime,
        trouble: list[Exception],
        told: dict[str, list[Fact]],
        shown: dict[str, Node],
    ) -> None:
        """Nodes that a step of a job hands over send their first orders. If this process dies before, the sweeper
        does it."""
        handed = [
            node
            for rank in handover.handed(old, new)
            if (node := self._handed.pop(rank.node, None)) is not None and node.handed == rank.handed
        ]
        froze = self.ask_permits(handed, at, new.spec.task_def or " ".join(new.spec.command))
        for node in handed:
            moves = [Moved(replace(node, handed=""), node)]  # it may be back already
            try:
                self._send_all(self._nodes, node, node.outbox, at, trouble, moves)
            except Exception as exc:  # noqa: BLE001 - raised at the end
                trouble.append(exc)
            shown[node.name] = moves[-1].record
            for each in moves:
                for fact in handover.news(each.old, each.record):
                    told.setdefault(each.record.job_id, []).append(fact)
        if froze:
            self.handle_nodes([(self.store.node(name), [fact]) for name, fact in froze])

    def _tell_nodes(self, old: Job, new: Job) -> None:
        """Nodes that a job has handed over hear of tasks that have ended. If this process dies before, the sweeper
        does it: see `catch_up`."""
        ended: list[tuple[Node, Sequence[Fact]]] = []
        for before, rank in zip(old.ranks, new.ranks, strict=True):
            fact = handover.news_for_node(new, rank)
            if fact is not None and before.handed and not before.quiet:
                ended.append((self.store.node(rank.node), [fact]))
        if ended:
            self.handle_nodes(ended)

    def catch_up(self, job: Job, nodes: Mapping[str, Node]) -> None:
        """Tell a job and the nodes that it handed over whatever they have not heard of each other."""
        missed = list(handover.missed(job, nodes, self.store.node))
        for rank, for_node, _ in missed:
            if for_node is not None:
                self.handle_node(rank.node, [for_node])
        if news := [for_job for _, _, for_job in missed if for_job is not None]:
            self.handle(job.id, news)

    def _decide_job(self, job: Job, fact: Fact) -> tuple[Job, tuple[Order, ...]]:
        """A stop that another tool wrote into the job's row is heard now, and before an end that may follow from it."""
        facts = [fact]
        if job.stop_written:
            job = replace(job, stop_written=False)
            stop = StopAsked(at=fact.at, by=ANOTHER_TOOL, why="USER_STOPPED was written into its row")
            facts.insert(0 if isinstance(fact, TaskEnded) else 1, stop)
        orders: list[Order] = []
        for each in facts:
            if not (job.status.final and each is not fact):
                step = decide(job, each, self.policy, self._now())
                job = step.job
                orders += step.orders
        return job, tuple(orders)

    def _decide_node(self, node: Node, fact: Fact) -> tuple[Node, tuple[Order, ...]]:
        step = decide_node(node, fact, self.policy, self._now())
        return step.node, step.orders

    def _commit_job(self, old: Job, new: Job) -> Job:
        handed = handover.taken(old, new, self.store.node, self.policy, self._now())
        new = self.store.commit(old, new, handed)
        self._handed.update({node.name: node for node in handed if node.job_id and node.own})
        say(new, old)
        if self._on_commit is not None:
            self._on_commit(old, new)
        return new

    def _settle(self, moved: Moved[Job], trouble: list[Exception]) -> Job:
        """Have the store pay what this commit owes. The orders do not wait for it: if it can't, the sweeper will."""
        new, soon = moved.record, self._dispatch_now and 0 < len(moved.orders) <= AT_ONCE
        if new.owed != moved.old.owed:
            try:
                return self.store.settle(new, moved.old, soon=soon)
            except Transient as exc:
                log.warning("rows put off", extra={"job": new.id, "why": str(exc)})
            except Exception as exc:  # noqa: BLE001 - raised when the orders are sent
                trouble.append(exc)
        return new

    def _commit_node(self, old: Node, new: Node) -> Node:
        self.store.commit_node(new)
        say(new, old)
        return new

    # -- dispatch ----------------------------------------------------------------------------------------------

    def _label(self, nodes: Mapping[str, Node], trouble: list[Exception]) -> None:
        """Show on the cluster itself what records say of nodes: a hint for people, which nothing waits for. One that
        can't be put, or comes late, is put right by the sweeper, who sees all of them."""
        if not (nodes and self._dispatch_now and self.policy.labels):
            return
        try:
            self.fleet.label_nodes(list(nodes.values()))
        except Transient as exc:
            log.warning("labels put off", extra={"nodes": sorted(nodes), "why": str(exc)})
        except Exception as exc:  # noqa: BLE001 - raised by the caller, when all is recorded and told
            trouble.append(exc)

    def _send_all(
        self,
        records: Records[R],
        record: R,
        orders: Sequence[Order],
        at: datetime,
        trouble: list[Exception],
        moves: list[Moved[R]],
    ) -> R:
        """Send, learn, decide, until no order is left that belongs to us. What trouble there was, the caller raises.

        Each commit is added to `moves`.
        """
        while orders and self._dispatch_now:
            some, orders = orders[:BEFORE_RECORDED], orders[BEFORE_RECORDED:]
            facts = self._send(record, some, at, trouble)
            if facts:
                # Many orders take a while: the record as it is now costs less than a write that comes too late.
                known = records.read(_name(record)) if len(some) > AT_ONCE else record
                moved = records.apply(_name(record), facts, known, [order.key for order in orders])
                record, orders = records.settle(moved, trouble), moved.orders
                moves.append(moved)
        return record

    def resolve(self, messages: Iterable[Notify]) -> None:
        """Tell that what was told of the whole fleet is over."""
        self._dispatcher.resolve(messages)

    def ask_permits(self, nodes: Iterable[Node], at: datetime, image: str = "") -> list[tuple[str, Fact]]:
        """For all reboots that these nodes order, together with the faults on them that none cures: if they are too
        many, none is sent. What one of the nodes has to tell of it."""
        if self.permits is None or not self._dispatch_now:
            return []
        return [*self.permits.ask_together(nodes, self.since(at), image)]

    def _count(self, node: Node, at: datetime) -> None:
        """A new fault on it, unless its repair has asked for a permit: that has counted it."""
        if node.condemned and not node.condemned[-1].repair:
            self.count([node], at)

    def count(self, nodes: Iterable[Node], at: datetime) -> None:
        """Faults that were found on these nodes and that nobody repairs: too many of them freeze the fleet too."""
        for name, fact in self.ask_permits(nodes, at):
            self.handle_node(name, [fact])

    def waits_for_permit(self, record: Job | Node, now: datetime) -> bool:
        """Whether all there is to say of its reboot is known: it waits."""
        return self.permits is not None and isinstance(record, Node) and self.permits.waits(record, now)

    def resend(self, record: R, orders: Sequence[Order], at: datetime) -> R:
        """Send what others have left behind, and record what became of it."""
        trouble: list[Exception] = []
        return self._learn(record, self._send(record, orders, at, trouble, again=True), trouble)

    def claim(self, record: R, orders: Iterable[Order], at: datetime) -> R:
        """Take a lease on orders, so that no other sweeper sends them beside this one."""
        return self._learn(record, [OrdersClaimed(at=at, keys=tuple(order.key for order in orders))])

    def _learn(self, record: R, facts: Sequence[Fact], trouble: list[Exception] | None = None) -> R:
        if isinstance(record, Job):
            return self._work(self._jobs, record.id, facts, record, trouble)
        return self._work(self._nodes, record.name, facts, record, trouble)

    def _send(
        self,
        record: Job | Node,
        orders: Sequence[Order],
        at: datetime,
        trouble: list[Exception],
        *,
        again: bool = False,
    ) -> list[Fact]:
        """Carry out the orders of a record that may be; give back what is now known."""
        facts: list[Fact] = []
        if self.permits is not None and isinstance(record, Node):
            orders, facts = self.permits.sort(record, orders, at, self.since(at))
        return [*facts, *self._dispatcher.send(record, orders, at, trouble, again=again)]


def _name(record: Job | Node) -> str:
    return record.id if isinstance(record, Job) else record.name
