"""Server-sent events: what changed, with ids that survive a lost connection and a restarted console.

An id is EPOCH.NUMBER. The epoch is the life of this process: a number of another life means nothing, so
whoever comes back with one gets a whole snapshot instead of a gap.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..core.errors import NotFound, RecoveryError
from .desk import Backend, Desk
from .views import entry_view, job_line

RING = 2000
#: A stream that says nothing for longer than this is taken for dead by proxies.
BREATH_S = 15.0
JOBS = 200


def frame(data: str, *, event: str = "", id: str = "") -> str:
    """One message. Every line of the data gets its own `data:`."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return head + "".join(f"data: {line}\n" for line in data.splitlines() or [""]) + "\n"


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    kind: str
    data: dict[str, Any]


class Hub:
    """Looks at the backend while anybody listens, and tells all of them what changed since the last look."""

    def __init__(self, desk: Desk, *, every_s: float = 0.5) -> None:
        self._desk, self._every = desk, every_s
        self.epoch = secrets.token_hex(4)
        self._number = 0
        self._ring: deque[Event] = deque(maxlen=RING)
        self._jobs: dict[str, dict[str, Any]] = {}
        self._told: dict[str, dict[str, Any]] = {}  # the last timeline entry that was told of each job
        self._nodes: dict[str, dict[str, Any]] = {}
        self._notices: list[dict[str, Any]] = []
        self._trouble = ""
        self._looked = False
        self._looking = asyncio.Lock()
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self.closing = asyncio.Event()

    def id(self, number: int) -> str:
        return f"{self.epoch}.{number}"

    def _add(self, kind: str, data: dict[str, Any]) -> None:
        self._number += 1
        self._ring.append(Event(self._number, kind, data))

    async def look(self) -> None:
        """One look; every difference becomes an event. One at a time: an older look must not undo a newer."""
        async with self._looking:
            try:
                seen = await self._desk.ask(_look)
            except RecoveryError as exc:
                if str(exc) != self._trouble:
                    self._trouble = str(exc)
                    self._add("trouble", {"detail": self._trouble})
                return
            if self._trouble:
                self._trouble = ""
                self._add("well", {})
            await self._compare(seen)
            self._looked = True

    async def _compare(self, seen: dict[str, Any]) -> None:
        for line in seen["jobs"]:
            if self._jobs.get(line["id"]) == line:
                continue
            self._jobs[line["id"]] = line
            if self._looked or not line["final"]:
                news = await self._news(line["id"])
                self._tell("job", {**line, "entries": news})
        for node in seen["nodes"]:
            if self._nodes.get(node["name"]) != node:
                self._nodes[node["name"]] = node
                self._tell("node", node)
        known = {notice["key"] for notice in self._notices}
        for notice in reversed(seen["notices"]):
            if notice["key"] not in known:
                self._tell("notice", notice)
        self._notices = seen["notices"]

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        """The first look finds everything new; that is what the snapshot is for."""
        if self._looked:
            self._add(kind, data)

    async def _news(self, job_id: str) -> list[dict[str, Any]]:
        """The timeline entries since the last look: a quick pass through three states is told as three."""
        try:
            job = await self._desk.ask(lambda side: side.job(job_id))
        except RecoveryError:
            return []
        entries = [entry_view(entry) for entry in job.timeline]
        last = self._told.get(job_id)
        fresh = entries[entries.index(last) + 1 :] if last in entries else entries
        if entries:
            self._told[job_id] = entries[-1]
        return fresh

    async def _run(self) -> None:
        while self._listeners and not self.closing.is_set():
            before = self._number
            await self.look()
            if self._number != before:
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(self._every)
        self._task = None

    def snapshot(self) -> dict[str, Any]:
        return {
            "jobs": list(self._jobs.values()),
            "nodes": list(self._nodes.values()),
            "notices": self._notices,
            "trouble": self._trouble,
        }

    async def stream(self, last: str) -> AsyncIterator[str]:
        """Everything since `last`, then what comes."""
        self._listeners += 1
        try:
            await self.look()
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            at = self._resume(last)
            if at is None:
                at = self._number
                yield frame(json.dumps(self.snapshot()), event="snapshot", id=self.id(at))
            while not self.closing.is_set():
                fresh = [event for event in self._ring if event.number > at]
                for event in fresh:
                    at = event.number
                    yield frame(json.dumps(event.data), event=event.kind, id=self.id(at))
                if not fresh and not await self._wait(at):
                    yield ": still here\n\n"
        finally:
            self._listeners -= 1

    def _resume(self, last: str) -> int | None:
        epoch, _, number = last.partition(".")
        if epoch != self.epoch or not number.isdigit():
            return None
        at = int(number)
        oldest = self._ring[0].number if self._ring else self._number + 1
        return at if oldest - 1 <= at <= self._number else None

    async def _wait(self, at: int) -> bool:
        try:
            async with self._changed:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: self._number > at or self.closing.is_set()), BREATH_S
                )
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self.closing.set()
        async with self._changed:
            self._changed.notify_all()


def _look(side: Backend) -> dict[str, Any]:
    try:
        notices = list(side.notices(50))
    except RecoveryError:
        notices = []  # on AWS they go to the topic
    nodes = [
        {
            "name": n.name,
            "status": n.status.value,
            "job": n.job_id,
            "gpus": n.gpus,
            "free": n.claimable,
            "refusal": n.refusal,
            "version": n.version,
        }
        for n in side.nodes()
    ]
    return {
        "jobs": [job_line(line) for line in side.jobs(None, JOBS, "").jobs],
        "nodes": nodes,
        "notices": notices,
    }


class Shared:
    """A result that several streams ask for in the same moment is made once."""

    def __init__(self, keep_s: float = 0.4) -> None:
        self._keep = keep_s
        self._made: dict[tuple[str, ...], tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: tuple[str, ...], make: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        found = self._made.get(key)
        if found is not None and found[0] > loop.time():
            return await asyncio.shield(found[1])
        self._made = {k: v for k, v in self._made.items() if v[0] > loop.time()}
        work = asyncio.ensure_future(make())
        self._made[key] = (loop.time() + self._keep, work)
        return await asyncio.shield(work)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def page_stream(
    build: Callable[[], Awaitable[tuple[dict[str, str], dict[str, Any]]]],
    *,
    trouble: Callable[[str], str],
    last: str,
    closing: asyncio.Event,
    every_s: float = 1.0,
) -> AsyncIterator[str]:
    """Regions of a page as they change. `build` gives regions and named facts; nothing is sent again.

    A frame holds whole regions, so there is nothing to miss: its id is the digest of all of them, and whoever
    comes back with the current one, even after a restart, is sent nothing.
    """
    sent: dict[str, str] = {}
    told: dict[str, str] = {}
    quiet = 0.0
    while not closing.is_set():
        try:
            regions, facts = await build()
            regions["trouble"] = trouble("")
        except NotFound:
            yield frame("", event="gone")
            return
        except RecoveryError as exc:
            regions, facts = {"trouble": trouble(str(exc))}, {}
        now = {name: digest(html) for name, html in regions.items()}
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
            yield frame("\n".join(parts), id=whole)
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
