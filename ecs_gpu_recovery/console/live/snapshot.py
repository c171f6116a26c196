"""What all viewers look at. It is read once per moment for all of them, and what did not change is not read again.

Fifty people on the overview must cost the control plane as much as one. On AWS every read is a paid call, so a
moment is as long as the pages' tick there; in the embedded mode asking for versions costs next to nothing, so
every question gets the newest answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...control.records import RecordsBackend
from ...core.errors import Refused
from ...core.model import Job
from .. import views

T = TypeVar("T")
#: More jobs than these at once are counted, not shown one by one.
MOST_LIVE = 60
MOST_NOTICES = 50
_RENDERED = 64


@dataclass(frozen=True, slots=True)
class Fleet:
    """All nodes as the console shows them. The same stamp means the very same nodes."""

    stamp: int
    nodes: Sequence[dict[str, Any]]


class Snapshots:
    """Safe for many threads. `keep_s` is how old an answer may be."""

    def __init__(self, keep_s: float = 0.0) -> None:
        self._keep = keep_s
        self._lock = threading.Lock()
        self._views: dict[str, tuple[int, dict[str, Any]]] = {}
        self._fleet = Fleet(0, ())
        self._read_at = float("-inf")
        self._notices: tuple[float, list[dict[str, Any]]] = (float("-inf"), [])
        self._rendered: OrderedDict[Hashable, str] = OrderedDict()

    def forget(self) -> None:
        """A person who changed something sees it at once."""
        self._read_at = float("-inf")

    def notices(self, side: RecordsBackend) -> list[dict[str, Any]]:
        """The newest messages; where they are gathered from records, they may be several ticks old."""
        with self._lock:
            if time.monotonic() - self._notices[0] >= 6 * self._keep:
                try:
                    found = list(side.notices(MOST_NOTICES))
                except Refused:
                    found = []  # this backend keeps none
                self._notices = (time.monotonic(), found)
            return self._notices[1]

    def fleet(self, side: RecordsBackend) -> Fleet:
        """The nodes now, or a moment ago."""
        with self._lock:
            if time.monotonic() - self._read_at >= self._keep:
                self._read(side)
                self._read_at = time.monotonic()
            return self._fleet

    def _read(self, side: RecordsBackend) -> None:
        found = side.changed_nodes({name: version for name, (version, _) in self._views.items()})
        if not (found.changed or found.gone or self._fleet.stamp == 0):
            return
        known = {name: view for name, view in self._views.items() if name not in found.gone}
        known |= {node.name: (node.version, views.node_view(node)) for node in found.changed}
        self._views = dict(sorted(known.items(), key=lambda item: (views.in_order(item[0]), item[0])))
        self._fleet = Fleet(self._fleet.stamp + 1, [view for _, view in self._views.values()])

    def rendered(self, key: Hashable, make: Callable[[], str]) -> str:
        """A part of a page that is a function of its key alone is made once."""
        with self._lock:
            if key in self._rendered:
                self._rendered.move_to_end(key)
                return self._rendered[key]
        made = make()
        with self._lock:
            self._rendered[key] = made
            while len(self._rendered) > _RENDERED:
                self._rendered.popitem(last=False)
        return made


def live_jobs(side: RecordsBackend, most: int = MOST_LIVE) -> tuple[int, list[Job]]:
    """How many jobs have not ended, and some of them, newest first."""
    ids = side.live_jobs()
    live = [job for job in side.some_jobs(ids[:most]) if not job.status.final]
    return len(ids), sorted(live, key=lambda job: (job.created_at, job.id), reverse=True)


class Shared:
    """A result that several viewers ask for in the same moment is made once."""

    def __init__(self, keep_s: float = 0.4) -> None:
        self._keep = keep_s
        self._made: dict[tuple[str, ...], tuple[float, asyncio.Future[Any]]] = {}

    def forget(self) -> None:
        """A person who changed something sees it at once."""
        self._made = {}

    async def get(self, key: tuple[str, ...], make: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        found = self._made.get(key)
        if found is not None and (found[0] > loop.time() or not found[1].done()):
            return await asyncio.shield(found[1])
        self._made = {k: v for k, v in self._made.items() if v[0] > loop.time() or not v[1].done()}
        work = asyncio.ensure_future(make())
        work.add_done_callback(lambda done: self._finished(key, done))
        self._made[key] = (loop.time() + self._keep, work)
        return await asyncio.shield(work)

    def _finished(self, key: tuple[str, ...], work: asyncio.Future[Any]) -> None:
        """An error is told to the requests that wait for it, and not kept for the next."""
        if (work.cancelled() or work.exception() is not None) and self._made.get(key, (0, None))[1] is work:
            del self._made[key]
