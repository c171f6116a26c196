"""How fast calls that change a cluster follow each other, over all functions together.

ECS counts them for the whole account: 40 a second, and a hundred at once. A few calls every process may make by itself,
so that a small job asks nobody. Whoever has more to do takes turns from a row that all share. Why it is so is in
docs/decisions/0012-events-wait-in-queues.md.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ..core.errors import Transient
from .errors import ConditionFailed, translated
from .items import number, text
from .tables import CALLS

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

#: What a process may do without asking. There are eight at most, two of each function: 64 at once, and 4 a second.
OWN_AT_ONCE, OWN_PER_S = 8, 0.5
#: The turns that are shared. With the above that leaves four calls a second of the account's 40 to others.
SHARED_PER_S = 32.0
#: How many turns are taken at once: few at first, and more as long as there is no end to it.
FEWEST, MOST = 8, 32
#: A turn that was not used in time is gone: to use it later would be to call faster.
GOOD_FOR_S = 1.0
_TRIES = 50
#: Write units that a process spends in a second on records of jobs, and how many at once. An item takes a thousand; and
#: the longer the writers of a large record wait, the more facts share the next write.
UNITS_PER_S, UNITS_AT_ONCE = 40.0, 160.0


class Turns(Protocol):
    def reserve(self, calls: int, now: float) -> float:
        """When the first of these calls may be made."""


class OwnTurns:
    """Of a process that shares them with nobody: a person's command."""

    def __init__(self) -> None:
        self._taken_until = 0.0

    def reserve(self, calls: int, now: float) -> float:
        begin = max(now, self._taken_until)
        self._taken_until = begin + calls / SHARED_PER_S
        return begin


class SharedTurns:
    """A row that says until when all turns are taken."""

    KEY = "ecs"

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._client, self._table = client, table
        self._taken_until: int | None = (
            None  #: in milliseconds, as this process knows it; None: there is no row
        )

    def reserve(self, calls: int, now: float) -> float:
        """Whoever was faster is told by the refusal."""
        for _ in range(_TRIES):
            begin = max(int(now * 1000), self._taken_until or 0)
            end = begin + round(calls * 1000 / SHARED_PER_S)
            try:
                self._write(end)
            except ConditionFailed as exc:
                there = exc.item.get("taken_until")
                self._taken_until = int(there["N"]) if there else None
            else:
                self._taken_until = end
                return begin / 1000
        raise Transient("too many functions ask for turns at once")

    def _write(self, end: int) -> None:
        before = self._taken_until
        known = {} if before is None else {":before": number(before)}
        with translated("take turns"):
            self._client.update_item(
                TableName=self._table,
                Key={CALLS.key: text(self.KEY)},
                UpdateExpression="SET #until = :end",
                ConditionExpression="attribute_not_exists(#until)" if before is None else "#until = :before",
                ExpressionAttributeNames={"#until": "taken_until"},
                ExpressionAttributeValues={":end": number(end), **known},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )


class Pace:
    """Keeps the calls of one process within its own share and the turns it has taken. Threads may share it."""

    def __init__(
        self,
        shared: Turns,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shared, self._sleep, self._clock = shared, sleep, clock
        self._lock = threading.Lock()
        self._own, self._counted = float(OWN_AT_ONCE), clock()
        self._turns: deque[float] = deque()
        self._asked, self._last = FEWEST, 0.0

    def wait(self) -> None:
        with self._lock:
            turn = self._turn(self._clock())
        if (wait := turn - self._clock()) > 0:
            self._sleep(wait)

    def _turn(self, now: float) -> float:
        self._own = min(OWN_AT_ONCE, self._own + max(0.0, now - self._counted) * OWN_PER_S)
        self._counted = now
        while self._turns and self._turns[0] < now - GOOD_FOR_S:
            self._turns.popleft()
        if not self._turns and self._own >= 1:
            self._own -= 1
            return now
        if not self._turns:
            again = now - self._last < 2 * GOOD_FOR_S
            self._asked = min(MOST, 2 * self._asked) if again else FEWEST
            # What was called without asking is made up for before the first turn.
            soonest = now if again else now + OWN_AT_ONCE / SHARED_PER_S
            begin = self._shared.reserve(self._asked, soonest)
            self._turns.extend(begin + turn / SHARED_PER_S for turn in range(self._asked))
            self._last = self._turns[-1]
        return self._turns.popleft()


class Writes:
    """Keeps the writes of large records apart: who has spent much waits before it reads the next one."""

    def __init__(
        self, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sleep, self._clock = sleep, clock
        self._left, self._last, self._counted = UNITS_AT_ONCE, 0.0, clock()

    def wait(self) -> None:
        now = self._clock()
        self._left = min(UNITS_AT_ONCE, self._left + (now - self._counted) * UNITS_PER_S)
        self._counted = now
        if self._left < 0:
            self._sleep(-self._left / UNITS_PER_S)

    def spent(self, units: float) -> None:
        self._left -= units
        self._last = units

    def spent_again(self) -> None:
        """The same record once more."""
        self._left -= self._last
