"""Read, decide, commit: the same loop for jobs and for nodes. A conflict means to read and decide again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ..core.effects import Order
from ..core.errors import Transient, VersionConflict
from ..core.events import Fact
from ..core.model import Job
from ..core.node_record import Node

R = TypeVar("R", Job, Node)
#: A job of 256 nodes whose verdicts arrive at once: each writer must get its turn.
CONFLICTS = 300
#: ... and nobody waits longer for the next try than this.
LONGEST_WAIT_S = 6.0
#: For how many events a process reads first after it guessed wrong.
WARY_FOR = 20


@dataclass(frozen=True, slots=True)
class Moved(Generic[R]):
    """A record before and after a decision, and the orders that are new in it."""

    old: R
    record: R
    orders: tuple[Order, ...] = ()


@dataclass(slots=True, kw_only=True)
class Records(Generic[R]):
    """One kind of record: how it is read, decided on and written.

    `last` is a guess, see `Store.last`.
    """

    read: Callable[[str], R]
    last: Callable[[str], R | None]
    decide: Callable[[R, Fact], tuple[R, tuple[Order, ...]]]
    commit: Callable[[R, R], R]
    settle: Callable[[Moved[R], list[Exception]], R]
    _wary: int = 0

    def apply(
        self, name: str, facts: Sequence[Fact], known: R | None = None, held: Collection[str] = ()
    ) -> Moved[R]:
        """All facts in one commit. `known` is the record, just read or written: it saves a read. `held` are the keys
        of orders that the caller has yet to send.

        Without it, the record that this process wrote last is tried first. If that is stale, the commit fails and
        tells the newer one. That nothing follows from a fact is believed only of a record that was just read. After a
        wrong guess we read for a while: somebody else is at work there, and a write that fails is paid for.
        """
        if known is not None:
            return self._try(name, facts, known, held)
        guess = None if self._wary else self.last(name)
        self._wary = max(0, self._wary - 1)
        moved = self._try(name, facts, guess)
        if guess is not None and moved.record is guess:
            return self._try(name, facts, None)
        if guess is not None and moved.old.version != guess.version:
            self._wary = WARY_FOR
        return moved

    def _try(self, name: str, facts: Sequence[Fact], known: R | None, held: Collection[str] = ()) -> Moved[R]:
        for tried in _turns():
            old = self.read(name) if known is None else known
            record, added = self._decided(old, old.version, facts)
            try:
                record = old if record is old else self.commit(old, _at(record, old.version + 1))
            except VersionConflict as exc:
                newest = exc.newest if tried == 0 else None
                known = newest if isinstance(newest, type(old)) else None
                continue
            ours = [order for order in record.outbox if order.key in added or order.key in held]
            return Moved(old, record, tuple(ours))
        raise Transient(f"{name}: too many writers at once")

    def _decided(self, record: R, version: int, facts: Sequence[Fact]) -> tuple[R, dict[str, Order]]:
        """Facts that are committed together are one version, so that no two commits give one name to their orders."""
        added: dict[str, Order] = {}
        for fact in facts:
            record, orders = self.decide(_at(record, version), fact)
            added.update({order.key: order for order in orders})
        pending = {order.key for order in record.outbox}
        return record, {key: order for key, order in added.items() if key in pending}


def _at(record: R, version: int) -> R:
    return record if record.version == version else replace(record, version=version)


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
