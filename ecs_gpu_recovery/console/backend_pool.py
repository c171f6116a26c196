"""Between the web and the backend: a few threads, and a limit to patience."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..control.records import RecordsBackend
from ..core.errors import Refused, Transient

T = TypeVar("T")
#: A page that waits longer than this says so instead.
PATIENCE_S = 8.0
#: Each thread keeps a connection of its own to the store, so there are few, and they stay.
THREADS = 6
#: As many searches run at once; they take a processor for seconds, and pages shall not wait for them.
SEARCHES = 2
#: How often it is asked whether the one who searches is still there.
_LOOK_S = 0.25


class BackendPool:
    """Opens the backend when it is first needed, and again after it could not be opened."""

    def __init__(self, factory: Callable[[], RecordsBackend], *, patience_s: float = PATIENCE_S) -> None:
        self._factory, self._patience = factory, patience_s
        self._backend: RecordsBackend | None = None
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        self._searchers = ThreadPoolExecutor(SEARCHES, thread_name_prefix="console-search")
        self._closing = threading.Event()

    def close(self) -> None:
        self._closing.set()
        for pool in (self._pool, self._searchers):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._backend is not None:
            self._backend.close()

    def _open(self) -> RecordsBackend:
        with self._lock:
            if self._backend is None:
                try:
                    self._backend = self._factory()
                except Refused as exc:
                    raise Transient(str(exc)) from exc
            return self._backend

    def _begin(self, pool: ThreadPoolExecutor, act: Callable[[RecordsBackend], T]) -> asyncio.Future[T]:
        def run() -> T:
            side = self._open()
            try:
                with side.plainly():
                    return act(side)
            except OSError as exc:
                if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise Transient("the disk is full: free some space and try again") from exc
                raise Transient(f"the control plane can't be reached: {exc.strerror or exc}") from exc

        try:
            return asyncio.get_running_loop().run_in_executor(pool, run)
        except RuntimeError as exc:
            raise Transient("the console is closing") from exc

    async def ask(self, act: Callable[[RecordsBackend], T]) -> T:
        """Run in a thread; a backend that takes too long is told of, not waited for."""
        work = self._begin(self._pool, act)
        try:
            return await asyncio.wait_for(work, self._patience)
        except TimeoutError:
            raise Transient(f"the control plane did not answer within {self._patience:.0f} s") from None

    async def search(
        self,
        act: Callable[[RecordsBackend, Callable[[], bool]], T],
        gone: Callable[[], Awaitable[bool]],
    ) -> T:
        """Run in one of the few threads for searches. `act` is told to stop once no one waits for it any more."""
        over = threading.Event()

        def stopped() -> bool:
            return over.is_set() or self._closing.is_set()

        work = self._begin(self._searchers, lambda side: act(side, stopped))
        try:
            async with asyncio.timeout(self._patience):
                while not work.done():
                    await asyncio.wait({work}, timeout=_LOOK_S)
                    if not work.done() and await gone():
                        raise Transient("the one who searched has left")
                return work.result()
        except TimeoutError:
            raise Transient("too many searches run at once: try again in a few seconds") from None
        finally:
            over.set()
            work.cancel()
