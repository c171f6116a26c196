"""The clock's side of the system: what no event will ever tell.

`sweep` looks at what is due (deadlines, unsent orders) and compares records with the real world, feeding every fact
that was missed. Dropping every event must still end well, only later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from zlib import crc32

from ..core import handover
from ..core.effects import CheckNode, Order, RebootNode, StartTask
from ..core.errors import BadRecord, Transient
from ..core.events import Fact, NodeReplaced, Tick
from ..core.invariants import broken
from ..core.job import claim
from ..core.model import Job, JobStatus, NodeStatus, Rank
from ..core.node import replacement
from ..core.node.table import decide_node
from ..core.node_record import Node
from .hangs import Hangs
from .ports import each
from .records import R
from .runtime import Runtime
from .troubles import ALL, Record, Troubles

log = logging.getLogger("ecs_gpu_recovery")
#: What is overdue for longer than this was not moved by sweep after sweep.
STUCK_AFTER = timedelta(minutes=15)


@dataclass(slots=True)
class Report:
    """What a sweep found, for the log and the metrics."""

    jobs: int = 0
    nodes: int = 0
    resent: int = 0
    broken: int = 0
    unanswered: int = 0
    live: int = 0  #: jobs that have not ended
    stuck: int = 0  #: jobs with something long overdue, after the sweep
    #: Nodes that are FAILED or UNKNOWN, not just gone, and for which no other machine comes.
    unhealthy: int = 0
    held: int = 0  #: nodes whose reboot waits for a permit
    training: int = 0  #: GPUs of jobs that train
    idle: int = 0  #: GPUs of jobs that are examined, repaired, waited for or started
    bad: dict[Record, Exception] = field(default_factory=dict)  #: records that were left out, and why

    def raise_unforeseen(self) -> None:
        """What nobody has a word for. For whoever asked for the sweep, when everything else is done."""
        for exc in self.bad.values():
            if not isinstance(exc, BadRecord):
                raise exc

    def attempt(self, record: Record, act: Callable[[], object]) -> None:
        """What goes wrong with one record costs no other its look at the clock."""
        try:
            act()
        except BadRecord as exc:
            self.bad[exc.kind, exc.name] = exc
        except Transient as exc:
            self.unanswered += 1
            log.warning("sweep put off", extra={"record": "/".join(record), "why": str(exc)})
        except Exception as exc:  # noqa: BLE001 - named to people, and raised by the caller
            self.bad[record] = exc


def _in_turn(live: set[str], due: set[str], now: datetime) -> list[str]:
    """What is due comes first. The rest takes turns, so that a sweep cut short never leaves out the same ones twice."""
    rest = sorted(live - due, key=lambda job_id: crc32(f"{now:%H:%M} {job_id}".encode()))
    return [*sorted(due), *rest]


class Sweeper:
    """Keeps nothing between sweeps but what it has told; two sweepers at once do no harm."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._resume = False
        self._troubles = Troubles(runtime.store, runtime.notifier)
        self._hangs = Hangs(runtime)
        self._waiting: list[Job] = []  #: jobs that have handed nodes over
        self._wanting: list[Job] = []  #: jobs that need other nodes
        self._swept: dict[str, Job] = {}
        self._held: dict[str, dict[str, Rank]] = {}  #: the nodes of each job that was swept

    def sweep(
        self,
        now: datetime,
        *,
        observe: bool = True,
        resume: bool = False,
        then: Callable[[Report], None] = lambda report: None,
    ) -> Report:
        """Everything that is due; with `observe`, every live job is also compared with the cluster.

        `now` is what the caller was told; a sweep that begins late counts from when it begins.
        `then` is what else belongs to the tick. It is done whatever became of single records; people are told after it.
        `resume` sends every pending order at once. It is for a process that knows that no other sender is alive.
        """
        now = self._runtime.since(now)
        report = Report()
        self._resume, self._waiting, self._wanting, self._held, self._swept = resume, [], [], {}, {}
        live = set(self._store.live_jobs()) if observe else set()
        due = set(self._store.due_jobs(now))
        for job_id in _in_turn(live, due, now):
            look = observe and job_id in live
            act = partial(self._sweep_job, job_id, now, observe=look, report=report)
            report.attempt(("job", job_id), act)
        if observe and (permits := self._runtime.permits) is not None:
            jobs, unread = list(self._swept.values()), live - set(self._swept)
            report.attempt(ALL, partial(permits.forget_stops, jobs, unread, now))
        nodes = self._nodes(report) if observe else []
        late = self._late(nodes, now) if observe else self._store.due_nodes(now)
        report.attempt(ALL, partial(self._ask_permits, late, nodes, now))
        for name in late:
            report.attempt(("node", name), partial(self._sweep_node, name, now, [], report))
        if observe:
            fresh = (
                self._nodes(report) if late else nodes
            )  # those that were late have moved since they were read
            self._sweep_idle(fresh, live, now, report)
            for job_id in self._hangs.due(live, fresh, now):
                report.attempt(("job", job_id), partial(self._look_for_a_hang, job_id, fresh, now))
            nodes = self._nodes(report) if self._wanting else []
            report.live = len(live)
            # What is long overdue now was due before.
            report.stuck = len(self._store.due_jobs(now - STUCK_AFTER)) if due else 0
        self._offer(nodes if observe else None, now, report)
        then(report)
        report.attempt(ALL, partial(self._troubles.tell, {**report.bad}))
        return report

    def _ask_permits(self, late: Sequence[str], nodes: Sequence[Node], now: datetime) -> None:
        """For all reboots that are due, at once, with what was found of late: too many together get none. What nobody
        orders any more is forgotten."""
        permits = self._runtime.permits
        if permits is None:
            return
        known = {node.name: node for node in nodes}
        due, _ = each(lambda name: known.get(name) or self._store.node(name), late)
        condemned = [node for node in nodes if node.name not in late and permits.condemnations(node, now)]
        if due or condemned:
            self._runtime.count([*due, *condemned], now)
        if nodes:
            pending = [order.key for node in nodes for order in node.outbox]
            permits.forget(pending, now, STUCK_AFTER)

    def _nodes(self, report: Report) -> list[Node]:
        """Those that can be read."""
        found: list[Node] = []

        def look() -> None:
            nodes = self._store.nodes()
            report.bad.update({(exc.kind, exc.name): exc for exc in nodes.bad})
            found.extend(nodes)

        report.attempt(ALL, look)
        return found

    def _late(self, nodes: Sequence[Node], now: datetime) -> list[str]:
        """Those with an errand that is due; a look at all of them tells it without another question."""
        waits = {node.name: node.wake_at(self._runtime.policy.node_lost_after) for node in nodes}
        return [name for name, at in waits.items() if at is not None and (at <= now or self._resume)]

    def _sweep_idle(self, nodes: Sequence[Node], live: set[str], now: datetime, report: Report) -> None:
        """Nodes that decide for themselves: all are looked at together, and only news is written."""
        free = {node.name: node for node in nodes if node.own}
        report.unhealthy = sum(
            node.status in (NodeStatus.FAILED, NodeStatus.UNKNOWN)
            and not (node.being_replaced or node.replaced_by or node.retired)
            for node in nodes
        )
        report.held = sum(node.held for node in nodes)
        news: dict[str, list[Fact]] = {}

        def look() -> None:
            for name, fact in self._runtime.fleet.observe_nodes(list(free.values())):
                if name in free and decide_node(free[name], fact, self._runtime.policy).changed:
                    news.setdefault(name, []).append(fact)

        report.attempt(ALL, look)
        for name, facts in news.items():
            report.attempt(("node", name), partial(self._sweep_node, name, now, facts, report))
        for old, new in replacement.successors(nodes):
            came = NodeReplaced(at=now, node=old.name, by=new.name)
            report.attempt(("node", old.name), partial(self._runtime.handle_node, old.name, [came]))
        known = {node.name: node for node in nodes if node.name not in news}
        for job in self._waiting:
            report.attempt(("job", job.id), partial(self._runtime.catch_up, job, known))
        for node in nodes:
            left = node.job_id in self._held and node.name not in self._held[node.job_id]
            if node.job_id and (node.job_id not in live or left):
                release = partial(self._store.release_orphan, node.name, node.job_id, now)
                report.attempt(("node", node.name), release)
            rank = self._held.get(node.job_id, {}).get(node.name)
            if rank is not None and (fact := handover.leave_missed(rank, node, now)) is not None:
                report.attempt(("job", node.job_id), partial(self._runtime.handle, node.job_id, [fact]))

    def _offer(self, nodes: Sequence[Node] | None, now: datetime, report: Report) -> None:
        """Jobs that need other nodes choose among those that are free, the one that waits longest first."""
        for job in sorted(self._wanting, key=claim.age):
            report.attempt(("job", job.id), partial(self._runtime.offers.show, job, now, nodes))

    def _sweep_job(self, job_id: str, now: datetime, *, observe: bool, report: Report) -> None:
        report.jobs += 1
        job = self._store.job(job_id)
        facts = list(self._runtime.fleet.observe_job(job)) if observe else []
        permits = self._runtime.permits
        tick = Tick(at=now) if permits is None else permits.tick(job, now)
        job = self._runtime.handle(job_id, [*facts, tick], job)
        job = self._resend(job, now, report)
        if job.owed:
            self._store.settle(job)
        if any(rank.handed for rank in job.ranks):
            self._waiting.append(job)
        if claim.wanted(job):
            self._wanting.append(job)
        self._swept[job.id] = job
        self._held[job.id] = {rank.node: rank for rank in job.ranks}
        gpus = sum(job.spec.gpus_per_node or rank.gpus for rank in job.ranks)
        if job.status is JobStatus.IN_PROGRESS:
            report.training += gpus
        elif not job.status.final:
            report.idle += gpus
        for what in broken(job):
            report.broken += 1
            log.error("invariant broken", extra={"job": job_id, "what": what})

    def _look_for_a_hang(self, job_id: str, nodes: Sequence[Node], now: datetime) -> None:
        self._hangs.look(self._store.job(job_id), nodes, now)

    def _resend(self, record: R, now: datetime, report: Report) -> R:
        """Orders whose sender died, or that were refused or failed before.

        The sweeper first takes a lease of its own, so two sweepers never send beside each other. A start or a check
        that it meets for the first time may still have a living sender, if the fact behind it came late: that one
        gets the time of the lease.
        """
        due = [order for order in record.outbox if self._resume or order.due <= now]
        if due and self._runtime.waits_for_permit(record, now):
            due = [order for order in due if not isinstance(order.effect, RebootNode)]
        if not due:
            return record
        if not self._resume:
            record = self._runtime.claim(record, due, now)
            pending = {order.key for order in record.outbox}
            due = [order for order in due if order.key in pending and not _may_have_a_sender(order)]
        report.resent += len(due)
        return self._runtime.resend(record, due, now)

    def _sweep_node(self, name: str, now: datetime, facts: Sequence[Fact], report: Report) -> None:
        report.nodes += 1
        self._runtime.handle_node(name, [*facts, Tick(at=now)])
        self._resend(self._store.node(name), now, report)


def _may_have_a_sender(order: Order) -> bool:
    return order.own and not order.tries and isinstance(order.effect, StartTask | CheckNode)
