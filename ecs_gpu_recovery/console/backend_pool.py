"""Between the web and the backend: a few threads, and a limit to patience."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..control.records import RecordsBackend
from ..core.errors import Refused, Transient

T = TypeVar("T")
#: A page that waits longer than this says so instead.
PATIENCE_S = 8.0
#: Each thread keeps a connection of its own to the store, so there are few, and they stay.
THREADS = 6


class BackendPool:
    """Opens the backend when it is first needed, and again after it could not be opened."""

    def __init__(self, factory: Callable[[], RecordsBackend], *, patience_s: float = PATIENCE_S) -> None:
        self._factory, self._patience = factory, patience_s
        self._backend: RecordsBackend | None = None
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="console")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
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

    async def ask(self, act: Callable[[RecordsBackend], T]) -> T:
        """Run in a thread; a backend that takes too long is told of, not waited for."""

        def run() -> T:
            side = self._open()
            try:
                with side.plainly():
                    return act(side)
            except OSError as exc:
                raise Transient(f"the control plane can't be reached: {exc.strerror or exc}") from exc

        try:
            work = asyncio.get_running_loop().run_in_executor(self._pool, run)
        except RuntimeError as exc:
            raise Transient("the console is closing") from exc
        try:
            return await asyncio.wait_for(work, self._patience)
        except TimeoutError:
            raise Transient(f"the control plane did not answer within {self._patience:.0f} s") from None
