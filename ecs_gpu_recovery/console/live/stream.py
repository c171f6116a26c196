"""Server-sent events: what changed, with ids that survive a lost connection and a restarted console.

An id is EPOCH.NUMBER. The epoch is the life of the stream's memory: a viewer who comes back with a number of it gets
what was missed, in order and once, even if the console was restarted meanwhile. A number of another life means
nothing, so a viewer who has one gets a whole snapshot instead of a gap.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from typing import Any

from ...control.records import RecordsBackend
from ...core.codec import whole
from ...core.errors import NotFound, RecoveryError
from ...core.model import Job
from ...engine.ports import JobLine
from ..backend_pool import BackendPool
from ..views import job_line
from .journal import RING, Event, Journal
from .snapshot import Snapshots

#: A stream that says nothing for longer than this is taken for dead by proxies.
BREATH_S = 15.0
#: A stream ends after a while and is opened again, so that a viewer who may no longer look is asked for their name.
LONGEST_S = 900.0
#: How often it is asked meanwhile whether the viewer may still look.
DOUBT_S = 5.0
JOBS = 200
#: Stands in shared parts of pages where each viewer's own token belongs. It can't be written into a record.
CSRF = f"csrf-{secrets.token_hex(16)}"


def frame(data: str, *, event: str = "", id: str = "") -> str:
    """One message. Every line of the data gets its own `data:`."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return head + "".join(f"data: {line}\n" for line in data.splitlines() or [""]) + "\n"


class Hub:
    """Looks at the backend while viewers listen, and tells all of them what changed since the last look."""

    def __init__(
        self,
        pool: BackendPool,
        *,
        every_s: float = 0.5,
        snapshots: Snapshots | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._pool, self._every = pool, every_s
        self._snapshots, self._journal = snapshots or Snapshots(), journal or Journal(None)
        past = self._journal.past()
        self.epoch = past.epoch
        self._number = past.number
        self._ring: deque[Event] = deque(past.events, maxlen=RING)
        self._jobs: dict[str, dict[str, Any]] = past.known.get("job", {})
        #: The last timeline entry that was told of each job.
        self._told: dict[str, dict[str, Any]] = past.known.get("told", {})
        self._nodes: dict[str, dict[str, Any]] = past.known.get("node", {})
        self._notices: dict[str, dict[str, Any]] = past.known.get("notice", {})
        self._stamp = 0
        self._trouble = ""
        self._looked = bool(past.known)
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._text: tuple[int, str] = (-1, "")
        self.listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self.closing = asyncio.Event()

    def id(self, number: int) -> str:
        return f"{self.epoch}.{number}"

    # -- looking ---------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """One look; every difference becomes an event. One at a time: an older look must not undo a newer."""
        async with self._looking:
            loop = asyncio.get_running_loop()
            if loop.time() - self._looked_at < self._every / 2:
                return
            told: list[tuple[str, dict[str, Any]]] = []
            known: dict[tuple[str, str], Any] = {}
            try:
                seen = await self._pool.ask(self._look)
            except RecoveryError as exc:
                if str(exc) != self._trouble:
                    self._trouble = str(exc)
                    told.append(("trouble", {"detail": self._trouble}))
            else:
                if self._trouble:
                    self._trouble = ""
                    told.append(("well", {}))
                self._compare_jobs(seen, told, known)
                self._compare_nodes(seen, told, known)
                self._compare_notices(seen, told, known)
                self._looked = True
            await self._publish(told, known)
            self._looked_at = loop.time()

    def _look(self, side: RecordsBackend) -> dict[str, Any]:
        """Everything a look needs, in a handful of reads however many jobs there are."""
        notices = self._snapshots.notices(side)
        fleet = self._snapshots.fleet(side)
        lines = {line.id: job_line(line) for line in side.jobs(None, JOBS, "").jobs}
        # Jobs that are older than the list and have not ended, as far as we know.
        open_ids = [job_id for job_id, line in self._jobs.items() if not line["final"]]
        if not self._looked:
            open_ids += side.live_jobs()
        for job in side.some_jobs([job_id for job_id in dict.fromkeys(open_ids) if job_id not in lines]):
            lines[job.id] = job_line(JobLine.of(job))
        moved = [job_id for job_id, line in lines.items() if self._jobs.get(job_id) != line]
        wanted = [job_id for job_id in moved if self._looked or not lines[job_id]["final"]]
        return {
            "jobs": lines,
            "moved": moved,
            "records": {job.id: job for job in side.some_jobs(wanted)},
            "fleet": fleet,
            "notices": notices,
        }

    def _compare_jobs(
        self, seen: dict[str, Any], told: list[tuple[str, dict[str, Any]]], known: dict[tuple[str, str], Any]
    ) -> None:
        lines = seen["jobs"]
        for job_id in reversed(seen["moved"]):  # oldest first
            line = lines[job_id]
            job = seen["records"].get(job_id)
            news = self._news(job) if job is not None else []
            if self._looked:
                told.append(("job", {**line, "entries": news}))
            known["job", job_id] = line
            if job is not None:
                known["told", job_id] = self._told.get(job_id)
        for job_id in [old for old in self._jobs if old not in lines]:
            known["job", job_id] = known["told", job_id] = None
            self._told.pop(job_id, None)
        self._jobs = lines

    def _compare_nodes(
        self, seen: dict[str, Any], told: list[tuple[str, dict[str, Any]]], known: dict[tuple[str, str], Any]
    ) -> None:
        fleet = seen["fleet"]
        if fleet.stamp == self._stamp:
            return
        self._stamp = fleet.stamp
        for view in fleet.nodes:
            node = _node_line(view)
            if self._nodes.get(node["name"]) != node:
                self._nodes[node["name"]] = known["node", node["name"]] = node
                if self._looked:
                    told.append(("node", node))

    def _compare_notices(
        self, seen: dict[str, Any], told: list[tuple[str, dict[str, Any]]], known: dict[tuple[str, str], Any]
    ) -> None:
        now = {notice["key"]: notice for notice in seen["notices"]}
        for key in reversed(list(now)):
            if key not in self._notices:
                known["notice", key] = now[key]
                if self._looked:
                    told.append(("notice", now[key]))
        known.update({("notice", key): None for key in self._notices if key not in now})
        self._notices = now

    def _news(self, job: Job) -> list[dict[str, Any]]:
        """The timeline entries since the last look: a quick pass through three states is told as three."""
        entries = [whole(entry) for entry in job.timeline]
        last = self._told.get(job.id)
        fresh = entries[entries.index(last) + 1 :] if last in entries else entries
        if entries:
            self._told[job.id] = entries[-1]
        return fresh

    async def _publish(
        self, told: list[tuple[str, dict[str, Any]]], known: dict[tuple[str, str], Any]
    ) -> None:
        """Written down first: a number that a viewer has seen is never given to something else."""
        if not told and not known:
            return
        first = self._number + 1
        events = [Event(first + i, kind, json.dumps(data)) for i, (kind, data) in enumerate(told)]
        await asyncio.to_thread(self._journal.add, events, known)
        self._ring.extend(events)
        self._number += len(events)
        if events:
            async with self._changed:
                self._changed.notify_all()

    async def _run(self) -> None:
        while self.listeners and not self.closing.is_set():
            await self.look()
            await asyncio.sleep(self._every)
        self._task = None

    def snapshot(self) -> dict[str, Any]:
        return {
            "jobs": list(self._jobs.values()),
            "nodes": list(self._nodes.values()),
            "notices": list(self._notices.values()),
            "trouble": self._trouble,
        }

    def _snapshot_frame(self) -> str:
        """The same for everyone who comes at this number."""
        if self._text[0] != self._number:
            text = frame(json.dumps(self.snapshot()), event="snapshot", id=self.id(self._number))
            self._text = (self._number, text)
        return self._text[1]

    # -- telling ---------------------------------------------------------------------------------------------

    async def stream(self, last: str, still: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """Everything since `last`, then what comes, for as long as the viewer may look."""
        self.listeners += 1
        try:
            await self.look()
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            at = self._resume(last)
            patience = Patience(still)
            while not self.closing.is_set() and patience.lasts():
                if at is None or at + 1 < self._oldest:  # new here, or too slow for the ring
                    at = self._number
                    yield self._snapshot_frame()
                    continue
                fresh = self._since(at)
                if fresh:
                    at = fresh[-1].number
                    yield "".join(frame(e.data, event=e.kind, id=self.id(e.number)) for e in fresh)
                elif not await self._wait(at):
                    yield ": still here\n\n"
        finally:
            self.listeners -= 1

    @property
    def _oldest(self) -> int:
        return self._ring[0].number if self._ring else self._number + 1

    def _since(self, at: int) -> list[Event]:
        return list(islice(self._ring, at + 1 - self._oldest, None)) if at < self._number else []

    def _resume(self, last: str) -> int | None:
        epoch, _, number = last.partition(".")
        if epoch != self.epoch or not (number.isascii() and number.isdigit() and len(number) < 19):
            return None
        at = int(number)
        return at if self._oldest - 1 <= at <= self._number else None

    async def _wait(self, at: int) -> bool:
        try:
            async with self._changed:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: self._number > at or self.closing.is_set()), DOUBT_S
                )
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self.closing.set()
        async with self._changed:
            self._changed.notify_all()


class Patience:
    """How long a stream lasts: a quarter of an hour, and no longer than its viewer may look."""

    def __init__(self, still: Callable[[], bool]) -> None:
        self._still = still
        self._now = asyncio.get_running_loop().time
        self._end, self._asked = self._now() + LONGEST_S, self._now()

    def lasts(self) -> bool:
        now = self._now()
        if now - self._asked >= DOUBT_S:
            self._asked = now
            if not self._still():
                return False
        return now < self._end


def _node_line(view: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": view["name"],
        "status": view["status"],
        "job": view["job_id"],
        "gpus": view["gpus"],
        "free": view["free"],
        "refusal": view["refusal"],
        "standing": view["standing"]["word"],
        "version": view["version"],
    }


# -- the streams of pages ---------------------------------------------------------------------------------


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Part(str):
    """A region's HTML that knows its digest: fifty viewers share one, and it is counted once."""

    __slots__ = ("digest",)

    def __init__(self, text: str) -> None:
        self.digest = digest(text)


async def page_stream(
    build: Callable[[], Awaitable[tuple[dict[str, str], dict[str, Any]]]],
    *,
    trouble: Callable[[str], str],
    last: str,
    closing: asyncio.Event,
    every_s: float = 1.0,
    csrf: str = "",
    still: Callable[[], bool] = lambda: True,
) -> AsyncIterator[str]:
    """Fragments of a page as they change. `build` gives regions and named facts; nothing is sent again.

    A frame holds whole regions, so there is nothing to miss: its id is the digest of all of them, and a viewer who
    comes back with the current one, even after a restart, is sent nothing.
    """
    sent: dict[str, str] = {}
    told: dict[str, str] = {}
    quiet = 0.0
    patience = Patience(still)
    while not closing.is_set() and patience.lasts():
        try:
            regions, facts = await build()
            regions["trouble"] = trouble("")
        except NotFound:
            yield frame("", event="gone")
            return
        except RecoveryError as exc:
            regions, facts = {"trouble": trouble(str(exc))}, {}
        now = {
            name: html.digest if isinstance(html, Part) else digest(html) for name, html in regions.items()
        }
        whole = digest("".join(now.values()))
        changed = [name for name in regions if sent.get(name) != now[name]]
        if not sent and last == whole:
            changed = []
        sent.update(now)
        if changed:
            parts = (
                f'<hx-partial hx-target="#{n}" hx-swap="innerMorph">{regions[n]}</hx-partial>'
                for n in changed
            )
            yield frame("\n".join(parts).replace(CSRF, csrf), id=whole)
        for name, fact in facts.items():
            text = json.dumps(fact)
            if told.get(name) != text:
                told[name] = text
                yield frame(text, event=name)
        quiet = 0.0 if changed else quiet + every_s
        if quiet >= BREATH_S:
            quiet = 0.0
            yield ": still here\n\n"
        try:
            await asyncio.wait_for(closing.wait(), every_s)
        except TimeoutError:
            continue
