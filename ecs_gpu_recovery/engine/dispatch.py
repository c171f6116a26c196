"""Carries out orders through the ports, and says what is now known. It decides nothing and keeps nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from ..core import keys
from ..core.effects import (
    Archive,
    CheckNode,
    Notify,
    Order,
    RebootNode,
    ReplaceNode,
    StartTask,
    StopTask,
)
from ..core.errors import Bug, ClusterRefused, Transient
from ..core.events import (
    CheckRefused,
    Fact,
    OrderFailed,
    OrderSent,
    PermitWithheld,
    RebootFailed,
    StartRefused,
)
from ..core.guard import Answer
from ..core.model import Job, Rank
from ..core.node_record import Node
from .ports import Fleet, Notifier, Store

log = logging.getLogger("ecs_gpu_recovery")
#: How many orders are sent beside each other, and how many starts on one look at the record: about those of a second.
AT_ONCE, STARTS_PER_LOOK = 10, 30
#: Carries out orders that do not depend on each other, and gives back what became of each.
Spread = Callable[[Callable[[Order], list[Fact]], Sequence[Order]], list[list[Fact]]]


def in_turn(act: Callable[[Order], list[Fact]], orders: Sequence[Order]) -> list[list[Fact]]:
    return [act(order) for order in orders]


class Dispatcher:
    """Of a job or of a node. What the cluster refuses, or does not answer, is a fact too."""

    def __init__(self, store: Store, fleet: Fleet, notifier: Notifier, spread: Spread) -> None:
        self._store, self._fleet, self._notifier, self._spread = store, fleet, notifier, spread

    def send(
        self,
        record: Job | Node,
        orders: Sequence[Order],
        at: datetime,
        trouble: list[Exception],
        *,
        again: bool,
    ) -> list[Fact]:
        """`again`: they may have been sent before. `trouble` gets what nobody foresaw, which holds up no other order.

        A large gang takes a while to start. Before every few starts the record is read again, so that a start which
        was withdrawn meanwhile is not sent.
        """
        facts: list[Fact] = []
        seen = record

        def carry_out(order: Order) -> list[Fact]:
            try:
                return _guarded(order, at, lambda: self._act(seen, order, at, again))
            except Exception as exc:  # noqa: BLE001 - raised by the caller, when the others are sent
                trouble.append(exc)
                return [OrderFailed(at=at, key=order.key, error=str(exc))]

        for first in range(0, len(orders), AT_ONCE):
            some = orders[first : first + AT_ONCE]
            if isinstance(seen, Job) and any(isinstance(order.effect, StartTask) for order in some):
                seen = self._store.job(seen.id) if first and first % STARTS_PER_LOOK == 0 else seen
                pending = {order.key for order in seen.outbox}
                some = [o for o in some if o.key in pending or not isinstance(o.effect, StartTask)]
            facts += [fact for learned in self._spread(carry_out, some) for fact in learned]
        return facts

    def _act(self, record: Job | Node, order: Order, at: datetime, again: bool) -> Iterable[Fact]:
        effect = order.effect
        job = record if isinstance(record, Job) else None
        if isinstance(effect, StartTask):
            if job is None:
                raise Bug(f"{effect.key} is not an order of a node")
            return self._fleet.start_task(job, effect, again=again)
        if isinstance(effect, CheckNode):
            return self._fleet.check_node(job, self._node(record, effect.node), effect, again=again)
        sent = OrderSent(at=at, key=effect.key)
        if isinstance(effect, StopTask):
            return [*self._fleet.stop_task(owner_of(record), effect), sent]
        if isinstance(effect, RebootNode):
            return self._reboot(self._host(record, effect.node), effect, at, again)
        if isinstance(effect, Notify):
            self._notifier.notify(effect if job is None else owned(effect, job))
        elif isinstance(effect, Archive):
            self._notifier.archive(owner_of(record), effect)
        return [sent]

    def _reboot(self, node: Node, effect: RebootNode, at: datetime, again: bool) -> list[Fact]:
        """A cluster is shared: just before, it is asked who else is there. Nobody's task is ended by a reboot."""
        if others := self._fleet.company(node):
            who = f"{', '.join(others[:3])}{' and others' if len(others) > 3 else ''}"
            return [PermitWithheld(at=at, key=effect.key, answer=Answer.BUSY, why=who)]
        sent, fleet = OrderSent(at=at, key=effect.key), self._fleet
        if isinstance(effect, ReplaceNode):
            return [*fleet.replace_node(node, effect, again=again), sent]
        return [*fleet.reboot_node(node, effect, again=again), sent]

    def _node(self, record: Job | Node, name: str) -> Node:
        """The job knows of its nodes whatever an order needs."""
        if isinstance(record, Node):
            return record
        return node_of(record, next(rank for rank in record.ranks if rank.node == name))

    def _host(self, record: Job | Node, name: str) -> Node:
        """The machine behind a node, which a job may be too old to know."""
        node = self._node(record, name)
        return node if node.host else self._store.node(name)

    def resolve(self, messages: Iterable[Notify], record: Job | Node | None = None) -> None:
        """It stands beside what is decided: what goes wrong with it holds up nothing."""
        for message in messages:
            try:
                self._notifier.resolved(owned(message, record) if isinstance(record, Job) else message)
            except Transient as exc:
                log.warning("nobody hears that it is over", extra={"key": message.key, "why": str(exc)})


def _guarded(order: Order, at: datetime, act: Callable[[], Iterable[Fact]]) -> list[Fact]:
    effect = order.effect
    try:
        return list(act())
    except ClusterRefused as exc:
        if isinstance(effect, StartTask):
            return [StartRefused(at=at, attempt=effect.attempt, rank=effect.rank, reason=exc.reason)]
        if isinstance(effect, CheckNode):
            return [CheckRefused(at=at, node=effect.node, check_try=effect.check_try, reason=exc.reason)]
        if isinstance(effect, RebootNode):
            return [RebootFailed(at=at, node=effect.node, key=effect.key, reason=exc.reason)]
        raise Bug(f"{order.key} can't be refused") from exc
    except Transient as exc:
        return [OrderFailed(at=at, key=order.key, error=str(exc))]


def owned(message: Notify, job: Job) -> Notify:
    """A message about a job says whose it is: several teams may read the same channel."""
    return replace(message, owner=job.spec.submitted_by, team=job.spec.team)


def moved_nodes(old: Job | Node, new: Job | Node) -> dict[str, Node]:
    """Those of which a step says something new, as the cluster is to show it. One that is handed over shows itself."""
    if isinstance(new, Node):
        return {new.name: new} if new.own and new.status is not old.status else {}
    ranks = old.ranks if isinstance(old, Job) else ()
    return {
        rank.node: node_of(new, rank)
        for before, rank in zip(ranks, new.ranks, strict=True)
        if (before.node_status, before.instance) != (rank.node_status, rank.instance) and not rank.handed
    }


def say(record: Job | Node, before: Job | Node | None = None) -> None:
    """One structured line per transition, none per call."""
    known = set() if before is None else set(before.timeline)
    for e in (entry for entry in record.timeline if entry not in known):
        log.info(
            "moved",
            extra={
                "record": owner_of(record),
                "subject": e.subject,
                "from": e.before,
                "to": e.after,
                "why": e.why,
                "evidence": e.evidence,
                "attempt": e.attempt,
                "policy": e.policy,
            },
        )


def owner_of(record: Job | Node) -> str:
    """How tasks, messages and log lines name the record behind an order."""
    return record.id if isinstance(record, Job) else keys.record_of_node(record.name)


def node_of(job: Job, rank: Rank) -> Node:
    """What an order needs to know of its node. The job knows it all, so nobody has to ask."""
    return Node(
        name=rank.node,
        cluster=job.cluster,
        instance=rank.instance,
        host=rank.host,
        gpus=rank.gpus,
        ip=rank.address,
        ibdev=rank.ibdev,
        job_id=job.id,
        status=rank.node_status,
        created_at=job.created_at,
        updated_at=job.updated_at,
    )
