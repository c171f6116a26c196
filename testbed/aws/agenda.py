"""Time in the simulator: what is to happen, and when. Nothing in it happens by itself.

Whoever holds an agenda lets time pass. With a virtual clock that is the test, and a run is the same every
time. With the real clock it is a thread, and reads first do what has come due.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

#: Virtual time begins here, so that a run looks the same on every day.
EPOCH = datetime(2026, 11, 15, 2, 0, tzinfo=UTC).timestamp()


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970."""

    def advance(self, seconds: float) -> None:
        """Let time pass at once."""


class VirtualClock:
    """Stands still until somebody moves it."""

    def __init__(self, start: float = EPOCH) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class RealClock:
    """The wall clock, which a test may set forward: an hour later is one call away."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


class Agenda:
    """Things to do, by due time; those due at the same time in the order they were put down."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._busy = False

    def now(self) -> float:
        return self.clock.now()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now() + seconds, next(self._count), do))

    def due(self) -> float | None:
        """When the next thing is due."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        self._heap.clear()

    def settle(self) -> int:
        """Do all that is due by now. A call from within does nothing: the outer one gets there."""
        if self._busy:
            return 0
        self._busy = True
        done = 0
        try:
            while self._heap and self._heap[0][0] <= self.now():
                _, _, do = heapq.heappop(self._heap)
                do()
                done += 1
        finally:
            self._busy = False
        return done

    def step(self) -> bool:
        """Move a virtual clock to the next thing and do it. False if nothing is left to do."""
        if not self._heap:
            return False
        self.clock.advance(max(0.0, self._heap[0][0] - self.now()))
        return self.settle() > 0

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at everything that is due on the way.

        The real clock moves by itself too, so the way is measured by due times.
        """
        if self._busy:
            raise RuntimeError("time can't be moved by something that happens in it")
        end = self.now() + seconds
        while self._heap and self._heap[0][0] <= end:
            self.clock.advance(max(0.0, self._heap[0][0] - self.now()))
            self.settle()
        self.clock.advance(max(0.0, end - self.now()))
        self.settle()
