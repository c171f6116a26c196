"""What all viewers look at. It is read once per moment, whoever asks, and what did not change is not read again.

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

from ...core.errors import NotFound, Refused
from ...core.model import Job
from .. import views
from ..backend_pool import Backend, either

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

    def __init__(self, keep_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._keep, self._now = keep_s, now
        self._lock = threading.Lock()
        self._views: dict[str, tuple[int, dict[str, Any]]] = {}
        self._fleet = Fleet(0, ())
        self._read_at = float("-inf")
        self._notices: tuple[float, list[dict[str, Any]]] = (float("-inf"), [])
        self._rendered: OrderedDict[Hashable, str] = OrderedDict()

    def forget(self) -> None:
        """Whoever changed something sees it at once."""
        self._read_at = float("-inf")

    def notices(self, side: Backend) -> list[dict[str, Any]]:
        """The newest messages; where they are gathered from records, they may be several ticks old."""
        with self._lock:
            if self._now() - self._notices[0] >= 6 * self._keep:
                try:
                    found = list(side.notices(MOST_NOTICES))
                except Refused:
                    found = []  # this backend keeps none
                self._notices = (self._now(), found)
            return self._notices[1]

    def fleet(self, side: Backend) -> Fleet:
        """The nodes now, or a moment ago."""
        with self._lock:
            if self._now() - self._read_at >= self._keep:
                self._read(side)
                self._read_at = self._now()
            return self._fleet

    def _read(self, side: Backend) -> None:
        store = side.parts.store
        if hasattr(store, "read"):
            changed = self._read_changed(side, store)
        else:
            found = {node.name: node for node in side.nodes()}
            fresh = {n.name: n for n in found.values() if self._views.get(n.name, (-1,))[0] != n.version}
            changed = bool(fresh) or len(found) != len(self._views)
            self._views = {
                name: (node.version, views.node_view(node)) if name in fresh else self._views[name]
                for name, node in found.items()
            }
        if changed or self._fleet.stamp == 0:
            shown = [
                view
                for _, (_, view) in sorted(
                    self._views.items(), key=lambda item: (views.in_order(item[0]), item[0])
                )
            ]
            self._fleet = Fleet(self._fleet.stamp + 1, shown)

    def _read_changed(self, side: Backend, store: Any) -> bool:
        """The embedded store tells all versions in a millisecond; only records that moved are opened."""
        versions = dict(store.read("SELECT node_name, version FROM ecs_node"))
        moved = [name for name, version in versions.items() if self._views.get(name, (-1,))[0] != version]
        known = {name: view for name, view in self._views.items() if name in versions}
        if len(moved) > 20 or not self._views:
            found = {node.name: node for node in side.nodes()}
        else:
            found = {name: side.node(name) for name in moved}
        for name in moved:
            if name in found:
                known[name] = (found[name].version, views.node_view(found[name]))
        changed = bool(moved) or len(known) != len(self._views)
        self._views = known
        return changed

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


def some_jobs(side: Backend, job_ids: Sequence[str]) -> list[Job]:
    """Records by id, in one call where the store knows how; those that are gone are left out."""
    store = side.parts.store
    if not hasattr(store, "some_jobs") or not job_ids:
        return _one_by_one(side, job_ids)

    def together() -> list[Job]:
        known: dict[str, Job] = {job.id: job for job in store.some_jobs(job_ids)}
        return [known[job_id] for job_id in job_ids if job_id in known]

    return either(side, together, lambda: _one_by_one(side, job_ids))


def _one_by_one(side: Backend, job_ids: Sequence[str]) -> list[Job]:
    found = []
    for job_id in job_ids:
        try:
            found.append(side.job(job_id))
        except NotFound:
            continue  # gone since the list was made
        except Refused:
            continue  # a damaged record, or another tool's: its own page says so
    return found


def live_ids(side: Backend) -> list[str]:
    """Jobs that have not ended. Who may not ask for them at once asks state by state."""

    def by_state() -> list[str]:
        return [line.id for status in views.live_states() for line in side.jobs(status, 200, "").jobs]

    return either(side, lambda: list(side.parts.store.live_jobs()), by_state)


def live_jobs(side: Backend, most: int = MOST_LIVE) -> tuple[int, list[Job]]:
    """How many jobs have not ended, and some of them, newest first."""
    ids = live_ids(side)
    live = [job for job in some_jobs(side, ids[:most]) if not job.status.final]
    return len(ids), sorted(live, key=lambda job: (job.created_at, job.id), reverse=True)


def count_live(side: Backend) -> dict[str, int]:
    """How many jobs are in each state that is not final; of a state, no more than 200 are counted on AWS."""
    store = side.parts.store
    if hasattr(store, "read"):
        counted = dict(
            store.read("SELECT job_status, count(*) FROM ecs_job WHERE live=1 GROUP BY job_status")
        )
        return {status.value: int(counted.get(status.value, 0)) for status in views.live_states()}
    return {status.value: len(side.jobs(status, 200, "").jobs) for status in views.live_states()}


class Shared:
    """A result that several viewers ask for in the same moment is made once."""

    def __init__(self, keep_s: float = 0.4) -> None:
        self._keep = keep_s
        self._made: dict[tuple[str, ...], tuple[float, asyncio.Future[Any]]] = {}

    def forget(self) -> None:
        """Whoever changed something sees it at once."""
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
        """An error is told to whoever waits for it, and not kept for the next."""
        if (work.cancelled() or work.exception() is not None) and self._made.get(key, (0, None))[1] is work:
            del self._made[key]
