"""Everything there is at one moment of the modelled world."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ecs_gpu_recovery.core.effects import CheckNode, Order, StartTask
from ecs_gpu_recovery.core.events import Fact
from ecs_gpu_recovery.core.model import Job, NodeStatus
from ecs_gpu_recovery.core.node_record import Node

from .bounds import Left
from .world import Machine


@dataclass(frozen=True, slots=True)
class Learned:
    """A fact, and the record that hears it: the job's, or a node's by its number."""

    fact: Fact
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Stalled:
    """A process that stopped between a commit and the end of its orders. It goes on before its lease ends, or never."""

    job: Job  #: the record as it committed it
    orders: tuple[Order, ...]
    facts: tuple[Learned, ...]
    until: datetime


@dataclass(frozen=True, slots=True)
class State:
    """Everything there is at one moment."""

    job: Job
    machines: tuple[Machine, ...]
    nodes: tuple[Node, ...]  #: their own records; of account once the job has handed them over
    now: datetime
    left: Left
    stalled: Stalled | None = None
    told: tuple[str, ...] = ()
    rows: Job | None = None  #: the record that the rows were last written from
    steps: tuple[int, ...] = ()  #: of each step that was trained for the first time, the attempt

    def _with(self, job: Job, machines: tuple[Machine, ...], nodes: tuple[Node, ...], left: Left) -> State:
        """Written out, not by `replace`: this is where the search spends its time."""
        return State(job, machines, nodes, self.now, left, self.stalled, self.told, self.rows, self.steps)

    def spend(self, what: str) -> State:
        left = self.left._replace(**{what: getattr(self.left, what) - 1})
        return State(
            self.job,
            self.machines,
            self.nodes,
            self.now,
            left,
            self.stalled,
            self.told,
            self.rows,
            self.steps,
        )

    def with_machine(self, rank: int, machine: Machine) -> State:
        machines = (*self.machines[:rank], machine.tidy(), *self.machines[rank + 1 :])
        return State(
            self.job,
            machines,
            self.nodes,
            self.now,
            self.left,
            self.stalled,
            self.told,
            self.rows,
            self.steps,
        )

    def with_job(self, job: Job, nodes: tuple[Node, ...] | None = None) -> State:
        nodes = self.nodes if nodes is None else nodes
        return self._with(job, self.machines, nodes, self.left)

    def with_node(self, rank: int, node: Node) -> State:
        return self.with_job(self.job, (*self.nodes[:rank], node, *self.nodes[rank + 1 :]))

    def joined_by(self, node: Node) -> State:
        """A machine that was not there before, and its record."""
        return self._with(self.job, (*self.machines, Machine()), (*self.nodes, node), self.left)

    def of(self, job: Job) -> tuple[Machine, ...]:
        """The machines on which its ranks are, one for each."""
        return tuple(self.machines[int(rank.node[1:])] for rank in job.ranks)

    @property
    def orders(self) -> tuple[Order, ...]:
        """Everything that is still to be sent."""
        return (*self.job.outbox, *(order for node in self.nodes for order in node.outbox))

    @property
    def at_rest(self) -> bool:
        over = self.job.status.final and not self.job.owed and self.stalled is None
        return over and not self.orders and not any(map(_busy, self.nodes))


#: A node that is being repaired or examined.
BUSY = (NodeStatus.PENDING_HEALTHCHECK, NodeStatus.REBOOTING)


def _busy(node: Node) -> bool:
    """Repaired, examined, or about to be; or its machine is gone and another may come."""
    unseen = node.fresh and node.status is NodeStatus.AVAILABLE
    return node.status in BUSY or node.being_replaced or unseen


#: What was done, and where that led.
Outcome = tuple[str, State]


def may_have_a_sender(order: Order) -> bool:
    """A start or a check that the sweeper meets for the first time: whoever committed it may be about to send it."""
    return order.own and not order.tries and isinstance(order.effect, StartTask | CheckNode)
