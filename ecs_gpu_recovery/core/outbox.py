"""The orders of a record while it is being decided on: the same for jobs and for nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from .effects import Effect, Order
from .events import latest
from .policy import Policy


class Outbox:
    """What is still to be sent, by key: an order that is there already is not made again.

    `at` is the time of the story, which the fact tells. `now` is what deadlines and due times count from.
    """

    def __init__(
        self, orders: Iterable[Order], at: datetime, policy: Policy, now: datetime | None = None
    ) -> None:
        self.at, self.now, self.policy = at, latest(at, now), policy
        self._orders = {order.key: order for order in orders}
        self._added: dict[str, None] = {}

    @property
    def orders(self) -> tuple[Order, ...]:
        return tuple(self._orders.values())

    @property
    def added(self) -> tuple[Order, ...]:
        """What the process that commits this record sends at once."""
        return tuple(self._orders[key] for key in self._added)

    def order(self, effect: Effect, *, after: timedelta | None = None) -> None:
        """Put an order into the outbox. The process that commits it sends it at once, unless it shall wait."""
        if effect.key in self._orders:
            return
        wait = self.policy.lease if after is None else after
        self._orders[effect.key] = Order(effect=effect, due=self.now + wait, own=after is None and bool(wait))
        if after is None:
            self._added[effect.key] = None

    def pending(self, key: str) -> Order | None:
        return self._orders.get(key)

    def amend(self, order: Order) -> None:
        """Whoever sends it finds it changed."""
        self._orders[order.key] = order

    def drop(self, key: str) -> bool:
        self._added.pop(key, None)
        return self._orders.pop(key, None) is not None

    def claim(self, key: str) -> None:
        """Whoever claims an order has a lease on it from now on, whatever time it was committed under."""
        order = self._orders[key]
        self._orders[key] = replace(order, due=self.next_look, tries=max(1, order.tries))

    @property
    def next_look(self) -> datetime:
        """By then whoever has a lease from now on has sent its order, or is dead."""
        return self.now + (self.policy.lease or self.policy.backoff_first)

    def postpone(self, key: str, error: str) -> None:
        """Send it later; the wait grows with every try."""
        order = self._orders[key]
        due = self.now + self.policy.backoff(order.tries)
        self._orders[key] = replace(order, due=due, tries=order.tries + 1, error=error)
        self._added.pop(key, None)
