"""A record while it is being decided on: its outbox, its timeline, and the facts about both.

`decide` opens a draft, rules write on it, and `finish` closes it into a new, frozen record and the orders that were
added. What jobs and nodes do alike is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from . import keys, messages
from .effects import CheckNode, Effect, Notify, StartTask
from .events import OrderFailed, OrdersClaimed, OrderSent
from .exits import is_passing
from .model import Entry, Job, MachineRecord, NodeStatus
from .node_record import Node
from .outbox import Outbox
from .policy import Policy
from .timeline import NODE_LINES, archive, shortened

#: How a timeline tells of a task that only says that it is ours.
STRANGER = "ignored a task that says it is ours, and is not the one that was started"


class RecordDraft(Outbox, ABC):
    """Mutable only between the opening and `finish`; nobody outside `decide` ever holds one.

    A machine in it is named by its number: a job has one for each rank, a node is its own and only one.
    """

    attempt = 0  #: that its lines belong to
    salt = ""  #: of the tokens of its tasks

    def __init__(self, record: Job | Node, at: datetime, policy: Policy, now: datetime | None = None) -> None:
        super().__init__(record.outbox, at, policy, now)
        self._timeline = record.timeline
        self._new: list[Entry] = []
        if isinstance(record, Job):
            self.name = self.owner = record.id
            self.subject, self._limit = "job", policy.timeline_limit
        else:
            self.name, self.owner = record.name, keys.record_of_node(record.name)
            self.subject, self._limit = record.name, NODE_LINES

    @property
    @abstractmethod
    def standing(self) -> str:
        """The record's status."""

    @property
    def answers_wanted(self) -> bool:
        """Whether an examination is still of use."""
        return True

    @abstractmethod
    def cut(self, text: str) -> str:
        """As much of a text as the record can keep."""

    # -- a machine ---------------------------------------------------------------------------------------------

    @abstractmethod
    def machine(self, index: int = 0) -> MachineRecord: ...

    @abstractmethod
    def set(self, index: int = 0, /, **changes: Any) -> MachineRecord: ...

    @abstractmethod
    def node_of(self, index: int = 0) -> tuple[str, NodeStatus]:
        """Its name and its status."""

    @abstractmethod
    def may_be_examined(self, index: int = 0) -> bool:
        """While a task runs on it, an answer is to an older question."""

    @abstractmethod
    def check_key(self, index: int = 0) -> str: ...

    @abstractmethod
    def check_order(self, index: int, level: str) -> CheckNode:
        """Of the check that the record counts now; the level is the record's own where none is named."""

    @abstractmethod
    def wait_for(self, effect: Effect) -> None:
        """This order is known to have been sent: what it causes has its time from now on."""

    def keep(self, effect: Effect, archive: str) -> None:
        """What this order would wipe is in that archive. A job orders nothing that wipes."""

    def wait_longer(self, index: int, wait: timedelta) -> None:
        """From now on, where there is a deadline and it is not later anyway."""
        deadline = self.machine(index).deadline
        if deadline is not None:
            self.set(index, deadline=max(deadline, self.now + wait))

    def unsent(self, *keys: str) -> bool:
        """Whether what one of these orders causes cannot have begun, though its time is over: it was not sent.

        What was refused was sent. Asking counts as a try, so that no wait is without end: when so many have come to
        nothing that people are told, nobody waits any longer.
        """
        for key in keys:
            order = self.pending(key)
            if order is None or is_passing(order.error) or order.tries + 1 >= self.policy.alarm_tries:
                continue
            self.amend(replace(order, tries=order.tries + 1))
            return True
        return False

    # -- the timeline ------------------------------------------------------------------------------------------

    def note(
        self,
        subject: str,
        before: str,
        after: str,
        why: str,
        evidence: str = "",
        at: datetime | None = None,
        *,
        retold: bool = False,
    ) -> None:
        """`at`: under another clock than the record's."""
        self._new.append(
            Entry(
                at=at or self.at,
                subject=subject,
                before=before,
                after=after,
                why=why,
                evidence=evidence,
                attempt=self.attempt,
                policy=self.policy.version,
                retold=retold,
            )
        )

    def noted(self, at: datetime, subject: str, why: str, evidence: str) -> bool:
        """Whether the timeline says so already, for this very moment."""
        said = (at, subject, why, evidence)
        return any((e.at, e.subject, e.why, e.evidence) == said for e in self._timeline)

    def reported(self, why: str) -> list[Entry]:
        """What was noted for this reason in this attempt, as far as the timeline still holds it."""
        lines = (*self._timeline, *self._new)
        return [entry for entry in lines if entry.why == why and entry.attempt == self.attempt]

    def told(self, version: int) -> tuple[Entry, ...]:
        """The timeline with what is new. What is too much for the record goes to the archive."""
        kept, gone = shortened((*self._timeline, *self._new), self._limit, self.subject)
        if gone:
            self.order(archive(keys.archive(self.owner, version), gone))
        return kept

    def stranger(self, node: str, status: str, task_id: str) -> None:
        """A task says that it is one of ours, and is not: ignored, and written down once in an attempt."""
        if all(entry.subject != node for entry in self.reported(STRANGER)):
            self.note(node, status, status, STRANGER, f"task {task_id}")


# -- what becomes of orders --------------------------------------------------------------------------------------


def order_sent(draft: RecordDraft, ev: OrderSent) -> None:
    """Take it out of the outbox. A start or a check stays there until its task is known."""
    order = draft.pending(ev.key)
    if order is not None and not isinstance(order.effect, StartTask | CheckNode):
        draft.drop(ev.key)
        draft.wait_for(order.effect)
        if ev.kept:
            draft.keep(order.effect, ev.kept)


def order_failed(draft: RecordDraft, ev: OrderFailed) -> None:
    """Try again later. An order that keeps failing is told to a person, once."""
    order = draft.pending(ev.key)
    if order is None:
        return
    draft.postpone(ev.key, ev.error)
    if order.tries + 1 == draft.policy.alarm_tries and not isinstance(
        order.effect, Notify
    ):  # who can't be told, can't be told of it
        told = f"{ev.key}: {ev.error}"
        draft.note(draft.subject, draft.standing, draft.standing, "an order keeps failing", told)
        draft.order(messages.stuck_order(draft.name, ev.key, ev.error))


def orders_claimed(draft: RecordDraft, ev: OrdersClaimed) -> None:
    """A lease that begins when the sweeper saw the order: how late the fact was that caused it does not matter."""
    for key in ev.keys:
        if draft.pending(key) is not None:
            draft.claim(key)


def ignore(why: str) -> Callable[[Any, Any], None]:
    """The rule that does nothing with a fact, for this reason; the documentation tells it."""

    def ignore(draft: Any, ev: Any) -> None:
        pass

    ignore.__doc__ = why
    return ignore
