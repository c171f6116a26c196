"""The third side: a console somewhere, over its HTTP API. `--backend https://console.example` is enough.

Who you are comes from the environment: a token, or a name and a password; for a console of your own without users, from
the file it keeps. The standard library does the talking, so that a command needs nothing more than it does for the
embedded mode.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import os
import secrets
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from .. import __version__
from ..aws.dead_letters import Letter, Seen, Sent
from ..core import codec
from ..core.errors import BadRecord, JobExists, NotFound, RecoveryError, Refused, Transient, Unreadable
from ..core.model import Job, JobStatus
from ..core.node_record import Node
from ..engine.ports import JobLine, Page
from ..engine.reads import Notice
from ..jobfile import JobRequest, body_of
from ..slow_nodes import Slow
from .backend import Bundle, Enough, LogSource, never
from .console_link import token_of

TOKEN_VARIABLE = "GPU_RECOVERY_CONSOLE_TOKEN"  # noqa: S105 (a name)
USER_VARIABLE = "GPU_RECOVERY_CONSOLE_USER"
PASSWORD_VARIABLE = "GPU_RECOVERY_CONSOLE_PASSWORD"  # noqa: S105 (a name)
CA_VARIABLE = "GPU_RECOVERY_CONSOLE_CA"
INSECURE_VARIABLE = "GPU_RECOVERY_CONSOLE_INSECURE"
TIMEOUT_S = 30.0
#: How long to wait before a request is sent again; after the last it counts as not answered.
WAITS_S = (0.3, 0.6)
LARGEST_ANSWER = 64 << 20


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An answer from elsewhere is none: the password must not travel there."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


class RemoteBackend:
    """What the commands need, asked of a console."""

    poll_s = 1.0

    def __init__(
        self, address: str, env: Mapping[str, str] = os.environ, *, state: Path | None = None
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise Refused(
                f"{address!r} is not the address of a console: use https://HOST or http://HOST:PORT"
            )
        self.name = self._base = address.rstrip("/")
        self.remark = ""
        self._headers = {"accept": "application/json", "user-agent": f"gpu-recovery/{__version__}"}
        if word := _authorization(env) or _owners(self._base, state):
            if parts.scheme == "http" and not _here(parts.hostname) and env.get(INSECURE_VARIABLE) != "1":
                raise Refused(
                    f"a password or token is not sent to {parts.hostname} without TLS: use https, or set"
                    f" {INSECURE_VARIABLE}=1 if no one can listen in between"
                )
            self._headers["authorization"] = word
        handlers: list[Any] = [_NoRedirects()]
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=_trust(env.get(CA_VARIABLE, ""))))
        if _here(parts.hostname):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    # -- talking ---------------------------------------------------------------------------------------------

    def _get(self, path: str, **query: object) -> Any:
        asked = urlencode({key: value for key, value in query.items() if value not in ("", None)})
        return _patiently(lambda: self._ask("GET", f"{path}?{asked}" if asked else path))

    def _post(self, path: str, body: Mapping[str, Any], **headers: str) -> Any:
        return self._ask("POST", path, json.dumps(body).encode(), **headers)

    def _ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
        try:
            return json.loads(self._fetch(method, path, body, **headers))
        except ValueError as exc:
            raise Refused(f"{self._base} does not answer as a console does") from exc

    def _fetch(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        more = {"content-type": "application/json"} if body is not None else {}
        request = urllib.request.Request(  # noqa: S310 (http or https, as checked)
            self._base + path, body, {**self._headers, **more, **headers}, method=method
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as reply:
                return bytes(reply.read(LARGEST_ANSWER))
        except urllib.error.HTTPError as exc:
            with exc:
                raise _refusal(exc, self._base) from None
        except (OSError, http.client.HTTPException) as exc:
            why = getattr(exc, "reason", exc)
            raise Transient(
                f"the console at {self._base} can't be reached: {why}. Is the address right, and does it run?"
            ) from exc

    # -- what the commands ask for -----------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing is kept open."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def warning(self) -> str:
        return ""

    def submit(self, request: JobRequest) -> Job:
        """Sent with a key: an answer that got lost on the way does not become a second job."""
        if request.spec.retry_of:  # the console has the variables; here some are hidden
            path = f"/api/jobs/{quote(request.spec.retry_of, safe='')}/retry"
            return codec.told_job(self._post(path, {"nodes": list(request.nodes)}))
        key = {"Idempotency-Key": secrets.token_urlsafe(16)}
        return codec.told_job(_patiently(lambda: self._post("/api/jobs", body_of(request), **key)))

    def job(self, job_id: str) -> Job:
        return codec.told_job(self._get(f"/api/jobs/{quote(job_id, safe='')}"))

    def jobs(self, status: JobStatus | None, limit: int, after: str) -> Page:
        found: list[JobLine] = []
        bad: list[BadRecord] = []
        while True:
            wanted = min(limit - len(found), 200)
            page = self._get("/api/jobs", status=status and status.value, limit=wanted, after=after)
            found += [JobLine.read(*(line[each.name] for each in fields(JobLine))) for line in page["jobs"]]
            bad += [Unreadable("job", one["id"], one["why"]) for one in page.get("bad", ())]
            after = str(page["next"])
            if not after or len(found) >= limit:
                return Page(jobs=tuple(found), next=after, bad=tuple(bad))

    def stop(self, job_id: str, *, why: str, by: str = "") -> Job:
        """The console knows who asks."""
        if (found := self.job(job_id)).status.final:
            return found
        return codec.told_job(self._post(f"/api/jobs/{quote(job_id, safe='')}/stop", {"why": why}))

    def nodes(self) -> Sequence[Node]:
        return [codec.told_node(data) for data in self._pages("/api/nodes", "nodes", limit=1000)]

    def node(self, name: str) -> Node:
        return codec.told_node(self._get(f"/api/nodes/{quote(name, safe='')}"))

    def slow_nodes(self, jobs: Sequence[Job], since: datetime, until: datetime) -> Sequence[Slow]:
        """As its report tells them: of one job, or of all."""
        hours = max(1, math.ceil((until - since) / timedelta(hours=1)))
        only = jobs[0].id if len(jobs) == 1 else ""
        told = self._get("/api/report", job=only, since=f"{min(hours, 9999)}h")["slow"]
        return [Slow(**{**each, "until": datetime.fromisoformat(each["until"])}) for each in told]

    def ask_node(self, name: str, ask: str, *, why: str, level: str = "quick", by: str = "") -> Node:
        return codec.told_node(
            self._post(f"/api/nodes/{quote(name, safe='')}/{ask}", {"why": why, "level": level})
        )

    def log_sources(self, job: Job) -> Sequence[LogSource]:
        found = self._pages(f"/api/jobs/{quote(job.id, safe='')}/logs", "logs", limit=1000)
        return [
            LogSource(rank=one["rank"], attempt=one["attempt"], node=one["node"], task_id=one["task"])
            for one in found
        ]

    def read_log(
        self, job: Job, source: LogSource, position: str, *, enough: Enough = never
    ) -> tuple[list[str], str]:
        """New lines, and where to go on; a few parts at a time."""
        path = f"/api/jobs/{quote(job.id, safe='')}/logs/{quote(source.task_id, safe='')}"
        at, text = int(position or 0), ""
        for _ in range(16):
            part = self._get(path, offset=at, limit=256 * 1024)
            text += part["text"]
            moved, at = int(part["next"]) > at, int(part["next"])
            if not moved or at >= int(part["size"]) or enough(len(text)):
                break
        return text.removesuffix("\n").split("\n") if text else [], str(at)

    def log_since(self, source: LogSource, at: datetime) -> str:
        raise Refused(
            "a console does not tell when lines were written: leave --since out, or ask on its machine"
        )

    def fleet(self) -> Mapping[str, Any]:
        return dict(self._get("/api/fleet"))

    def ask_fleet(self, ask: str, *, name: str = "", why: str, by: str = "") -> Mapping[str, Any]:
        return dict(self._post(f"/api/fleet/{quote(ask, safe='')}", {"name": name, "why": why}))

    def evidence(self, node: str) -> Sequence[Bundle]:
        kept = self._get(f"/api/nodes/{quote(node, safe='')}/evidence")["evidence"]
        return [Bundle.from_json(one) for one in kept]

    def fetch_evidence(self, node: str, name: str) -> bytes:
        path = f"/api/nodes/{quote(node, safe='')}/evidence/{quote(name, safe='')}"
        return bytes(_patiently(lambda: self._fetch("GET", path)))

    def notices(self, limit: int) -> Sequence[Notice]:
        return list(islice(self._pages("/api/alerts", "alerts", limit=min(limit, 200)), limit))

    # -- events that no function could handle -----------------------------------------------------------------------

    def whoami(self) -> dict[str, str]:
        """Name and role as the console knows them, and its backend and version."""
        return {key: str(value) for key, value in self._get("/api/whoami").items()}

    def who(self) -> str:
        return self.whoami()["name"]

    def letters(self) -> Seen:
        """As the console last saw them, within a minute. It keeps the events themselves to itself."""
        found = self._get("/api/letters")
        return Seen(letters=tuple(_letter(one) for one in found["letters"]), more=int(found["more"]))

    def send_letters_again(self, *ids: str) -> Sequence[Sent]:
        """These, or all, one after the other. One whose function fails again is refused by the console, and stays."""
        return [self._send_letter(one) for one in ids or [letter.id for letter in self.letters().letters]]

    def _send_letter(self, letter_id: str) -> Sent:
        try:
            sent = self._post("/api/letters/again", {"id": letter_id})
        except Refused as exc:
            if "stays in the queue" not in str(exc):
                raise
            return Sent(letter=_letter({"id": letter_id}), done=False, said=str(exc))
        return Sent(letter=_letter(sent), done=True, said=sent["said"])

    def discard_letter(self, name: str, *, why: str, by: str) -> Letter:
        """The console writes down who it was."""
        return _letter(self._post("/api/letters/discard", {"id": name, "why": why}))

    def _pages(self, path: str, key: str, *, limit: int) -> Iterator[dict[str, Any]]:
        after: object = ""
        while True:
            page = self._get(path, limit=limit, after=after)
            yield from page[key]
            after = page["next"]
            if not after:
                return


def _patiently(ask: Callable[[], Any]) -> Any:
    """Ask again what is safe to ask twice."""
    for wait_s in WAITS_S:
        try:
            return ask()
        except Transient:
            time.sleep(wait_s)
    return ask()


def _letter(data: Mapping[str, Any]) -> Letter:
    at = data.get("at")
    return Letter(
        id=data["id"],
        at=datetime.fromisoformat(at) if at else None,
        sender=data.get("sender", ""),
        function=data.get("function", ""),
        error=data.get("error", ""),
        event=None,
        understood=data.get("understood", ""),
    )


def _authorization(env: Mapping[str, str]) -> str:
    """A token before a password; nothing where neither is set."""
    token, user = env.get(TOKEN_VARIABLE, "").strip(), env.get(USER_VARIABLE, "").strip()
    if token:
        if not token.isascii() or not token.isprintable():
            raise Refused(f"{TOKEN_VARIABLE} holds no token")
        return f"Bearer {token}"
    if user:
        return "Basic " + base64.b64encode(f"{user}:{env.get(PASSWORD_VARIABLE, '')}".encode()).decode()
    return ""


def _trust(path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path or None)
    except (OSError, ssl.SSLError) as exc:
        raise Refused(f"{CA_VARIABLE}={path}: {exc}") from exc


def _owners(address: str, state: Path | None) -> str:
    """The token of a console of our own, which it keeps where only we can read it."""
    token = token_of(state, address) if state is not None and _here(urlsplit(address).hostname or "") else ""
    return f"Bearer {token}" if token else ""


def _here(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _refusal(exc: urllib.error.HTTPError, base: str) -> RecoveryError:
    """The console's problem document as the error it was made from."""
    try:
        problem = json.loads(exc.read(1 << 20))
        detail = str(problem["detail"])
        errors = [
            f"  {e['field']}: {e['message']}" if e["field"] else f"  {e['message']}"
            for e in problem.get("errors", [])
        ]
    except (OSError, ValueError, KeyError, TypeError):
        detail, errors = f"{base} answered {exc.code} {exc.reason}", []
    if exc.code == 401:
        return Refused(
            f"{base} does not know you: {detail}. Set {TOKEN_VARIABLE}, or {USER_VARIABLE} and {PASSWORD_VARIABLE}"
        )
    if 300 <= exc.code < 400:
        return Refused(
            f"{base} sends you elsewhere: it wants a person to sign in with a browser."
            " On AWS use --backend aws with your own credentials"
        )
    if exc.code == 404:
        return NotFound(detail)
    if exc.code in (408, 429, 502, 503, 504):
        return Transient(detail)
    if exc.code == 409 and "exists already" in detail:
        return JobExists(detail)
    return Refused("\n".join(["the console refused it:", *errors]) if errors else detail)
