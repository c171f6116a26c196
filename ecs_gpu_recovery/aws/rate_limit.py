"""How fast calls that change a cluster follow each other."""

from __future__ import annotations

import time
from collections.abc import Callable

#: The account's limit for calls that change a cluster is 40 a second, shared by all. While one process stops a gang at
#: this pace, others start a check and put a label for each rank that has stopped: three such calls at a time.
MODIFY_PER_S = 12.0
#: Most processes make two such calls in all, a start and a label. Those need not wait for each other.
AT_ONCE = 2


class Pace:
    """Keeps calls apart, so that a large gang stays below the account's limit."""

    def __init__(
        self,
        per_s: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gap, self._sleep, self._clock = 1.0 / per_s, sleep, clock
        self._next = 0.0  #: when the next call would be due if none came early

    def wait(self) -> None:
        now = self._clock()
        turn = self._next - (AT_ONCE - 1) * self._gap
        if now < turn:
            self._sleep(turn - now)
        self._next = max(now, self._next) + self._gap
