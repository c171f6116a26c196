"""What people can do, once for the API and the pages: carried out, written down, refused alike."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from ..control.permits import FleetView
from ..control.records import RecordsBackend
from ..control.submission import retry
from ..core.errors import NotFound, RecoveryError, Refused, Transient
from ..core.model import Job
from ..core.node_record import Node
from . import dead_letters, forms
from .access.audit import AuditEntry
from .access.auth import Identity
from .context import Console, ConsoleArg, IdentityArg, address_of
from .problems import BadField

T = TypeVar("T")


class Actions:
    """One person's actions in one request."""

    def __init__(self, console: Console, who: Identity, request: Request) -> None:
        self._console, self._who, self._request = console, who, request

    async def _do(self, action: str, subject: str, act: Callable[[RecordsBackend], T], why: str = "") -> T:
        try:
            result = await self._console.pool.ask(act)
        except RecoveryError as exc:
            await self._note(action, subject, why, f"refused: {exc}")
            raise
        self._console.moved()
        await self._note(action, subject or f"job/{getattr(result, 'id', '')}", why, "done")
        return result

    async def _note(self, action: str, subject: str, why: str, outcome: str) -> None:
        """Every action is written down with who, what, why and how it ended."""
        entry = AuditEntry(
            who=self._who.name,
            role=self._who.role,
            action=action,
            subject=subject,
            why=why,
            outcome=outcome,
            address=address_of(self._request),
        )
        await asyncio.to_thread(self._console.audit.note, entry)

    async def submit(self, data: Mapping[str, Any], key: str = "") -> tuple[Job, bool]:
        """The job, and whether it is new. The same key with the same request is the same job.

        The job's id is made from the key. So the store itself refuses a second one: after a restart, from another
        console, or when two requests race.
        """
        if not key:
            job = await self._do(
                "submit", "", lambda side: forms.submit(side, data, self._console.desktop, by=self._who.name)
            )
            return job, True
        if len(key) > 200:
            raise BadField({"Idempotency-Key": ["use up to 200 characters"]})
        scoped = f"{self._who.name}/{key}"
        asked = hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()
        token = hashlib.sha256(scoped.encode(errors="replace")).hexdigest()[:12]
        name = str(data.get("name") or "job")[:40]
        wish = str(data.get("id") or f"{name}-{token}")
        first, job_id, fresh = self._console.submissions.reserve(scoped, asked, wish)
        if first != asked:
            raise BadField({"Idempotency-Key": ["this key was used for another request"]})
        try:
            chosen = bool(data.get("id")) and fresh  # another person may have a job of this very name
            job, new = await self._console.pool.ask(lambda side: self._once(side, data, job_id, chosen))
        except RecoveryError as exc:
            if not isinstance(exc, Transient):  # nothing was made, so the key is free again
                self._console.submissions.forget(scoped)
            await self._note("submit", f"job/{job_id}", "", f"refused: {exc}")
            raise
        if new:
            self._console.moved()
            await self._note("submit", f"job/{job.id}", "", "done")
        return job, new

    def _once(
        self, side: RecordsBackend, data: Mapping[str, Any], job_id: str, chosen: bool
    ) -> tuple[Job, bool]:
        """The job with this id: the one that is there, or a new one."""
        if not chosen and (found := _found(side, job_id)):
            return found, False
        wish = {**data, "id": job_id}
        try:
            return forms.submit(side, wish, self._console.desktop, by=self._who.name), True
        except BadField:
            raise
        except Refused:
            # The same request may have been faster, and may hold the very nodes.
            if not chosen and (found := _found(side, job_id)):
                return found, False
            raise

    async def stop(self, job_id: str, why: str) -> Job:
        def act(side: RecordsBackend) -> Job:
            if (found := side.job(job_id)).status.final:
                raise Refused(f"{job_id} has ended already: it is {found.status}")
            return side.stop(job_id, by=self._who.name, why=why)

        return await self._do("stop", f"job/{job_id}", act, why)

    async def retry(self, job_id: str, nodes: Sequence[str] = ()) -> Job:
        def act(side: RecordsBackend) -> Job:
            return retry(side, job_id, by=self._who.name, nodes=nodes)

        return await self._do("retry", f"job/{job_id}", act)

    async def ask_node(self, name: str, ask: str, why: str, level: str) -> Node:
        def act(side: RecordsBackend) -> Node:
            return side.ask_node(name, ask, by=self._who.name, why=why, level=level)

        return await self._do(ask, f"node/{name}", act, why)

    async def ask_fleet(self, ask: str, name: str, why: str) -> FleetView:
        def act(side: RecordsBackend) -> FleetView:
            return side.ask_fleet(ask, name=name, by=self._who.name, why=why)

        return await self._do(ask, f"fleet/{name[:100]}", act, why)

    async def send_again(self, record: str, key: str) -> None:
        def act(side: RecordsBackend) -> None:
            side.send_again(record, key, by=self._who.name)

        await self._do("send again", record, act, key)

    async def acknowledge(self, told: Sequence[str]) -> None:
        """These messages, by their keys: a person has seen to them."""

        def act(side: RecordsBackend) -> None:
            self._console.acknowledged.add(told, self._who.name)

        await self._do("acknowledge", told[0] if told else "", act)

    async def send_letter(self, letter_id: str) -> dict[str, str]:
        return await self._do_letter(
            "send again", letter_id, lambda side: dead_letters.send_again(side, letter_id)
        )

    async def discard_letter(self, letter_id: str, why: str) -> dict[str, Any]:
        def act(side: RecordsBackend) -> dict[str, Any]:
            return dead_letters.discard(side, letter_id, by=self._who.name, why=why)

        return await self._do_letter("discard", letter_id, act, why)

    async def _do_letter(
        self, action: str, letter_id: str, act: Callable[[RecordsBackend], T], why: str = ""
    ) -> T:
        try:
            return await self._do(action, f"letter/{letter_id[:100]}", act, why)
        finally:
            self._console.letters.forget()


def _found(side: RecordsBackend, job_id: str) -> Job | None:
    try:
        return side.job(job_id)
    except NotFound:
        return None


async def _actions(request: Request, console: ConsoleArg, who: IdentityArg) -> Actions:
    return Actions(console, who, request)


ActionsArg = Annotated[Actions, Depends(_actions)]
