"""Between the web and the backend: a few threads, a limit to patience, and the name of whoever asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from ..control.backend import LogSource, new_job_id
from ..core.errors import NotFound, Refused, Transient
from ..core.events import NodeAsked, OrderFailed
from ..core.model import Job, JobStatus, Node
from ..core.node.life import ASKS
from ..engine.ports import Page
from ..jobfile import JobRequest

T = TypeVar("T")
#: A page that waits longer than this says so instead.
PATIENCE_S = 8.0
#: Each thread keeps a connection of its own to the store, so there are few, and they stay.
THREADS = 6


class Backend(Protocol):
    """What the console needs of a backend; the commands' two backends both have it."""

    name: str
    parts: Any

    def now(self) -> datetime: ...
    def close(self) -> None: ...
    def warning(self) -> str: ...
    def submit(self, request: JobRequest) -> Job: ...
    def job(self, job_id: str) -> Job: ...
    def jobs(self, status: JobStatus | None, limit: int, after: str) -> Page: ...
    def nodes(self) -> Sequence[Node]: ...
    def node(self, name: str) -> Node: ...
    def log_sources(self, job: Job) -> Sequence[LogSource]: ...
    def notices(self, limit: int) -> Sequence[dict[str, Any]]: ...


class BackendPool:
    """Opens the backend when it is first needed, and again after it could not be opened."""

    def __init__(self, factory: Callable[[], Backend], *, patience_s: float = PATIENCE_S) -> None:
        self._factory, self._patience = factory, patience_s
        self._backend: Backend | None = None
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="console")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._backend is not None:
            self._backend.close()

    def _open(self) -> Backend:
        with self._lock:
            if self._backend is None:
                try:
                    self._backend = self._factory()
                except Refused as exc:
                    raise Transient(str(exc)) from exc
            return self._backend

    async def ask(self, act: Callable[[Backend], T]) -> T:
        """Run in a thread; a backend that takes too long is told of, not waited for."""

        def run() -> T:
            side = self._open()
            try:
                with plainly(side):
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


@contextmanager
def plainly(side: Backend) -> Iterator[None]:
    """What AWS refuses is told in words, also where a store is asked directly."""
    where = getattr(side, "where", None)
    if where is None:
        yield
        return
    from ..control.aws_errors import explained

    with explained(where):
        yield


def either(side: Backend, act: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """The short way, or another one for whoever may not take it."""
    from ..control.aws_errors import NotAllowed

    try:
        with plainly(side):
            return act()
    except NotAllowed:
        return otherwise()


# -- what people ask for: each is an event to the runtime, with a name ------------------------------------


def stop_job(side: Backend, job_id: str, *, by: str, why: str) -> Job:
    found = side.job(job_id)
    if found.status.final:
        raise Refused(f"{job_id} has ended already: it is {found.status}")
    stopped: Job = side.parts.runtime.stop(job_id, by=by, why=why, at=side.now())
    return stopped


def retry_job(side: Backend, job_id: str, *, by: str, nodes: Sequence[str] = ()) -> Job:
    """The same work as a new job, from its last checkpoint."""
    old = side.job(job_id)
    if not old.status.final:
        raise Refused(f"{job_id} is {old.status}: it has not ended, so it can't be run again")
    spec = replace(old.spec, retry_of=old.id, submitted_by=by)
    chosen = tuple(nodes) or tuple(rank.node for rank in old.ranks)
    request = JobRequest(spec=spec, nodes=chosen, max_retries=old.max_retries, job_id=new_job_id(spec.name))
    return side.submit(request)


def ask_node(side: Backend, name: str, ask: str, *, by: str, why: str, level: str = "quick") -> Node:
    if ask not in ASKS:
        raise NotFound(f"nodes can be asked to {', '.join(ASKS)}, not to {ask}")
    if ask != "check" and not why.strip():
        raise Refused(f"give a reason: whoever looks at {name} later will ask for it")
    fact = NodeAsked(at=side.now(), node=name, ask=ask, by=by, why=why, level=level)
    side.parts.runtime.handle_node(name, [fact])
    return side.node(name)


def send_again(side: Backend, record: str, key: str, *, by: str) -> None:
    """Make a pending order due now, whatever its back-off. Orders are safe to send twice."""
    kind, _, name = record.partition("/")
    runtime, policy = side.parts.runtime, side.parts.runtime.policy
    holder = side.job(name) if kind == "job" else side.node(name)
    order = next((o for o in holder.outbox if o.key == key), None)
    if order is None:
        raise NotFound(f"no such order is pending in {record}: it has been carried out meanwhile")
    past: timedelta = policy.backoff_most
    fact = OrderFailed(at=side.now() - past, key=key, error=f"{by} asked to send it again")
    if kind == "job":
        runtime.handle(name, [fact])
    else:
        runtime.handle_node(name, [fact])
