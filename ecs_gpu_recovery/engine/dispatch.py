"""Carries out single orders through the ports, and says what is now known. It decides nothing and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from ..core import keys
from ..core.effects import Archive, CheckNode, Notify, Order, RebootNode, StartTask, StopTask, WriteRows
from ..core.errors import Bug, ClusterRefused, Transient
from ..core.events import CheckRefused, Fact, OrderFailed, OrderSent, RebootFailed, StartRefused
from ..core.model import Job, Node, Rank
from .ports import Fleet, Notifier, Store


class Courier:
    """One order at a time. What the cluster refuses, or does not answer, is a fact too; all else is raised."""

    def __init__(self, store: Store, fleet: Fleet, notifier: Notifier) -> None:
        self._store, self._fleet, self._notifier = store, fleet, notifier

    def carry_out(self, job: Job, order: Order, at: datetime, *, again: bool) -> list[Fact]:
        return _guarded(order, at, partial(self._for_job, job, order, at, again))

    def carry_out_for_node(self, node: Node, order: Order, at: datetime, *, again: bool) -> list[Fact]:
        return _guarded(order, at, partial(self._for_node, node, order, at, again))

    def _for_job(self, job: Job, order: Order, at: datetime, again: bool) -> Iterable[Fact]:
        effect = order.effect
        if isinstance(effect, StartTask):
            return self._fleet.start_task(job, effect, again=again)
        if isinstance(effect, StopTask):
            return [*self._fleet.stop_task(job.id, effect), OrderSent(at=at, key=effect.key)]
        if isinstance(effect, CheckNode):
            return self._fleet.check_node(job, node_of(job, job.ranks[effect.rank]), effect, again=again)
        if isinstance(effect, RebootNode):
            node = self._host_of(job, effect)
            return [
                *self._fleet.reboot_node(node, effect, again=again),
                OrderSent(at=at, key=effect.key),
            ]
        if isinstance(effect, WriteRows):
            self._store.write_rows(job, self._fleet.label_nodes, () if again else effect.ranks)
        elif isinstance(effect, Notify):
            self._notifier.notify(effect)
        elif isinstance(effect, Archive):
            self._notifier.archive(job.id, effect)
        return [OrderSent(at=at, key=effect.key)]

    def _host_of(self, job: Job, order: RebootNode) -> Node:
        """The job knows the machine behind each of its nodes, unless it is older than that knowledge."""
        rank = next((rank for rank in job.ranks if rank.node == order.node and rank.host), None)
        return self._store.node(order.node) if rank is None else node_of(job, rank)

    def _for_node(self, node: Node, order: Order, at: datetime, again: bool) -> Iterable[Fact]:
        effect = order.effect
        if isinstance(effect, CheckNode):
            return self._fleet.check_node(None, node, effect, again=again)
        if isinstance(effect, RebootNode):
            return [*self._fleet.reboot_node(node, effect, again=again), OrderSent(at=at, key=effect.key)]
        if isinstance(effect, StopTask):
            return [
                *self._fleet.stop_task(keys.record_of_node(node.name), effect),
                OrderSent(at=at, key=effect.key),
            ]
        if isinstance(effect, Notify):
            self._notifier.notify(effect)
            return [OrderSent(at=at, key=effect.key)]
        if isinstance(effect, Archive):
            self._notifier.archive(keys.record_of_node(node.name), effect)
            return [OrderSent(at=at, key=effect.key)]
        raise Bug(f"{effect.key} is not an order of a node")


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
