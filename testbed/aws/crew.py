"""Functions that run at the same time, in virtual time: threads that take turns, so that a run is the same every time.

While one of them runs, the others and the clock stand still. One that sleeps lets the others have their turn, and is
woken when the agenda gets there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from .agenda import Agenda

A = TypeVar("A")
B = TypeVar("B")


class TimeIsUp(BaseException):
    """The platform has ended this function; nothing may catch it."""


class _Member:
    def __init__(self, act: Callable[[], None], until: float) -> None:
        self.until = until  #: when the platform ends it
        self.over = False
        self.error: BaseException | None = None
        self._act, self._mine, self._others = act, threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self._mine.acquire()
        _current.member = self
        try:
            self._act()
        except BaseException as exc:  # noqa: BLE001 - raised where the turns are given
            self.error = exc
        self.over = True
        self._others.release()

    def resume(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self._mine.release()
        self._others.acquire()
        if self.error is not None:
            raise self.error

    def pause(self) -> None:
        self._others.release()
        self._mine.acquire()


class _Current(threading.local):
    member: _Member | None = None


_current = _Current()


class _Anew:
    """A context manager that can be entered again and again."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._open = make, list[Any]()

    def __enter__(self) -> None:
        one = self._make()
        one.__enter__()
        self._open.append(one)

    def __exit__(self, *error: object) -> None:
        self._open.pop().__exit__(*error)


class Crew:
    """Give everybody a turn with `run` whenever time has passed."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._ready: deque[_Member] = deque()

    def begin(self, act: Callable[[], None], *, limit_s: float) -> None:
        self._ready.append(_Member(act, self._agenda.now() + limit_s))

    def run(self) -> None:
        while self._ready:
            self._ready.popleft().resume()

    def sleep(self, seconds: float) -> None:
        """Outside of a function there is nobody to wait for, and no time passes."""
        me = _current.member
        if me is None:
            return
        left = me.until - self._agenda.now()
        self._agenda.after(max(0.0, min(seconds, left)), lambda: self._ready.append(me))
        me.pause()
        if seconds > left:
            raise TimeIsUp

    def lock(self) -> Any:
        """Stands for a lock of real threads, which would hold up the only one that runs."""
        held: list[bool] = []

        @contextmanager
        def hold() -> Iterator[None]:
            while held:
                self.sleep(0.001)
            held.append(True)
            try:
                yield
            finally:
                held.clear()

        return _Anew(hold)

    def spread(self, act: Callable[[A], B], over: Sequence[A]) -> list[B]:
        """Each in a thread of its own, until all are done."""
        me = _current.member
        if me is None or len(over) < 2:
            return [act(one) for one in over]
        done: dict[int, B] = {}
        left, ended = [len(over)], list[BaseException]()

        def one(number: int) -> None:
            try:
                done[number] = act(over[number])
            except BaseException as exc:  # noqa: BLE001 - raised in the function they belong to
                ended.append(exc)
            left[0] -= 1
            if not left[0]:
                self._ready.append(me)

        for number in range(len(over)):
            self._ready.append(_Member(lambda number=number: one(number), me.until))  # type: ignore[misc]
        me.pause()
        if ended:
            raise ended[0]
        return [done[number] for number in range(len(over))]
