"""What people can do, once for the API and the pages: carried out, written down, refused alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request

from ..cli.backend import new_job_id
from ..core.errors import NotFound, RecoveryError
from ..core.model import Job, Node
from . import desk, forms
from .auth import Identity
from .context import Console, note
from .desk import Backend
from .problems import BadField

T = TypeVar("T")


class Actions:
    """One person's actions in one request."""

    def __init__(self, console: Console, who: Identity, request: Request) -> None:
        self._console, self._who, self._request = console, who, request

    async def _do(self, action: str, subject: str, act: Callable[[Backend], T], why: str = "") -> T:
        try:
            result = await self._console.desk.ask(act)
        except RecoveryError as exc:
            await self._note(action, subject, why, f"refused: {exc}")
            raise
        await self._note(action, subject or f"job/{getattr(result, 'id', '')}", why, "done")
        return result

    async def _note(self, action: str, subject: str, why: str, outcome: str) -> None:
        await note(self._console, self._who, self._request, action, subject, why=why, outcome=outcome)

    async def submit(self, data: Mapping[str, Any], key: str = "") -> tuple[Job, bool]:
        """The job, and whether it is new. The same key with the same request is the same job."""
        if not key:
            job = await self._do(
                "submit", "", lambda side: forms.submit(side, data, self._console.desktop, by=self._who.name)
            )
            return job, True
        if len(key) > 200:
            raise BadField({"Idempotency-Key": ["use up to 200 characters"]})
        scoped = f"{self._who.name}/{key}"
        asked = hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()
        wish = str(data.get("id") or new_job_id(str(data.get("name") or "job")))
        first, job_id = self._console.memory.reserve(scoped, asked, wish)
        if first != asked:
            raise BadField({"Idempotency-Key": ["this key was used for another request"]})

        def once(side: Backend) -> tuple[Job, bool]:
            try:
                return side.job(job_id), False
            except NotFound:
                return forms.submit(
                    side, {**data, "id": job_id}, self._console.desktop, by=self._who.name
                ), True

        try:
            job, new = await self._console.desk.ask(once)
        except BadField as exc:
            self._console.memory.forget(scoped)
            await self._note("submit", f"job/{job_id}", "", f"refused: {exc}")
            raise
        if new:
            await self._note("submit", f"job/{job.id}", "", "done")
        return job, new

    async def stop(self, job_id: str, why: str) -> Job:
        return await self._do(
            "stop", f"job/{job_id}", lambda side: desk.stop_job(side, job_id, by=self._who.name, why=why), why
        )

    async def retry(self, job_id: str, nodes: Sequence[str] = ()) -> Job:
        def act(side: Backend) -> Job:
            return desk.retry_job(side, job_id, by=self._who.name, nodes=nodes)

        return await self._do("retry", f"job/{job_id}", act)

    async def ask_node(self, name: str, ask: str, why: str, level: str) -> Node:
        def act(side: Backend) -> Node:
            return desk.ask_node(side, name, ask, by=self._who.name, why=why, level=level)

        return await self._do(ask, f"node/{name}", act, why)

    async def send_again(self, record: str, key: str) -> None:
        await self._do(
            "send again", record, lambda side: desk.send_again(side, record, key, by=self._who.name), key
        )
