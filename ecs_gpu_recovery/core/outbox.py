"""The orders of a record while it is being decided on: the same for jobs and for nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from .effects import Effect, Order
from .policy import Policy


class Outbox:
    """What is still to be sent, by key: an order that is there already is not made again."""

    def __init__(self, orders: Iterable[Order], at: datetime, policy: Policy) -> None:
        self.at, self.policy = at, policy
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
        self._orders[effect.key] = Order(effect=effect, due=self.at + wait, own=after is None and bool(wait))
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
        wait = self.policy.lease or self.policy.backoff_first
        self._orders[key] = replace(order, due=self.at + wait, tries=max(1, order.tries))

    def postpone(self, key: str, error: str) -> None:
        """Send it later; the wait grows with every try."""
        order = self._orders[key]
        due = self.at + self.policy.backoff(order.tries)
        self._orders[key] = replace(order, due=due, tries=order.tries + 1, error=error)
        self._added.pop(key, None)
