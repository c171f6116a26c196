"""Everything there is at one moment of the modelled world."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ecs_gpu_recovery.core.effects import CheckNode, Order, StartTask
from ecs_gpu_recovery.core.events import Fact
from ecs_gpu_recovery.core.model import Job

from .bounds import Left
from .world import Machine


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
        return self.job.status.final and not (self.job.outbox or self.job.owed) and self.stalled is None


#: What was done, and where that led.
Outcome = tuple[str, State]


def may_have_a_sender(order: Order) -> bool:
    """A start or a check that the sweeper meets for the first time: whoever committed it may be about to send it."""
    return order.own and not order.tries and isinstance(order.effect, StartTask | CheckNode)
