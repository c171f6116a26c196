"""The door: every request passes here first. Headers, host, size, who it is, and whether they may.

One place decides, so that a new page can't forget to ask.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.errors import RecoveryError
from ..problems import of_error, problem
from .audit import Audit, AuditEntry
from .auth import Attempts, Identity, Proxy, Users, is_loopback
from .owner import Owner
from .sessions import Sessions, session_token

LARGEST_BODY = 1 << 20
#: A client that sends a body sends it within this time.
BODY_S = 30.0
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = SAFE | {"POST", "PUT", "PATCH", "DELETE"}
#: A form of ours has a few dozen fields, and one for each node.
MOST_FIELDS = 5000
#: How many passwords are checked at once: each takes a core's time and 16 MiB.
CHECKS_AT_ONCE = 4
#: A program that sends its password with every request does not wait for the check every time.
REMEMBER_S = 60.0
#: What is shown to people who have not signed in.
OPEN_PATHS = ("/signin", "/static/", "/health", "/lang/")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; font-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How people are let in."""

    users: Callable[[], Users]
    sessions: Sessions
    audit: Audit
    proxy: Proxy | None = None
    owner: Owner | None = None  #: without users, on loopback: the only one who is let in
    hosts: frozenset[str] = frozenset()  #: names the console answers to; empty: any
    attempts: Attempts = field(default_factory=Attempts)
    passwords: Passwords = field(default_factory=lambda: Passwords())

    def address(self, scope: Scope, headers: Headers) -> str:
        """Where the request comes from. A load balancer's word on that is believed, and no other header."""
        here = peer(scope)
        return self.proxy.client(here, headers.get("x-forwarded-for", "")) if self.proxy else here

    def csrf_for(self, name: str) -> str:
        return hmac.new(self.sessions.secret(), name.encode(), hashlib.sha256).hexdigest()[:40]


class Passwords:
    """Checks passwords, a few at once, and remembers those that were right for a minute."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[str, float] = OrderedDict()

    async def right(self, users: Users, name: str, password: str) -> bool:
        """A changed users file counts at once: what it says of the name is part of what is remembered."""
        stored = users.known.get(name, ("", ""))[1]
        text = "\0".join((name, stored, password)).encode(errors="replace")
        known = hmac.new(self._key, text, hashlib.sha256).hexdigest()
        if self._right.get(known, 0.0) > time.monotonic():
            return True
        async with self._turns:
            if not await asyncio.to_thread(users.check, name, password):
                return False
        self._right[known] = time.monotonic() + REMEMBER_S
        while len(self._right) > 100:
            self._right.popitem(last=False)
        return True


class _Refusal(Exception):
    """The request ends here, with this response."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def _refused(status: int, title: str, detail: str, **headers: str) -> _Refusal:
    return _Refusal(problem(status, title, detail, headers=headers))


def peer(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def fields(body: bytes) -> dict[str, list[str]]:
    """The fields of a form; none where there are too many of them."""
    try:
        return parse_qs(
            body.decode(errors="replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS, separator="&"
        )
    except ValueError:
        return {}


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the console speaks no other protocol
            await send({"type": "websocket.close", "code": 1003})
            return
        headers, path, method = Headers(scope=scope), str(scope["path"]), str(scope["method"])
        send = _with_headers(send, path)
        try:
            body = await self._heard(headers, method, receive)
            await self._judge(scope, headers, path, method, body or b"")
        except _Refusal as refusal:
            await refusal.response(scope, receive, send)
            return
        except RecoveryError as exc:
            status, title, _ = of_error(exc)
            await problem(status, title, str(exc))(scope, receive, send)
            return
        await self._app(scope, receive if body is None else _replay(body, receive), send)

    async def _judge(self, scope: Scope, headers: Headers, path: str, method: str, body: bytes) -> None:
        owner = self._door.owner
        if owner and method in SAFE and (response := owner.by_link(scope, headers, path)):
            raise _Refusal(response)
        who = await self._identify(scope, headers)
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["identity"] = who
        state["address"] = self._door.address(scope, headers)
        state["still"] = lambda: who is not None and self._still(who, scope, headers)
        if path.startswith(OPEN_PATHS):
            return
        if who is None:
            raise _Refusal(self._ask_to_sign_in(path, method, headers))
        if method not in SAFE:
            self._may_change(who, headers, body, path, scope)

    async def _heard(self, headers: Headers, method: str, receive: Receive) -> bytes | None:
        """Whether it is a request for us at all, from a person or a stranger; and its body, if it may have one."""
        if method not in METHODS:
            raise _refused(405, "not possible", "no such method", allow=", ".join(sorted(METHODS)))
        if not self._knows_host(headers):
            raise _refused(421, "wrong host", "the console does not answer to this name")
        if method in SAFE:
            return None
        if not _same_origin(headers):
            raise _refused(403, "another site asked", "the request came from another site")
        if "transfer-encoding" in headers and "content-length" in headers:
            # Two lengths: a proxy in front of us may believe the other one.
            raise _refused(400, "bad request", "a body has one length, not two")
        try:
            return await asyncio.wait_for(_body(headers, receive), BODY_S)
        except TimeoutError:
            raise _refused(408, "too slow", "the body did not arrive") from None

    def _knows_host(self, headers: Headers) -> bool:
        if not self._door.hosts:
            return True
        name = urlsplit("//" + headers.get("host", "")).hostname or ""
        return name in self._door.hosts or (self._door.owner is not None and is_loopback(name))

    async def _identify(self, scope: Scope, headers: Headers) -> Identity | None:
        door = self._door
        if door.owner is not None:
            return door.owner.identity(scope, headers, door.csrf_for(door.owner.name))
        if door.proxy is not None:
            named = await asyncio.to_thread(door.proxy.identity, peer(scope), headers, door.csrf_for)
            if named is not None:
                return named
        token = session_token(headers)
        session = door.sessions.find(token) if token else None
        if session is not None and (role := door.users().role(session.who)):
            return Identity(name=session.who, role=role, csrf=session.csrf, session=True)
        kind, _, word = headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            return await self._basic(word.strip(), door.address(scope, headers))
        if kind.lower() == "bearer":
            return self._bearer(word.strip(), door.address(scope, headers))
        return None

    def _still(self, who: Identity, scope: Scope, headers: Headers) -> bool:
        """Whether a person who was let in would be let in now; asked while a stream is open."""
        door = self._door
        if door.owner is not None:
            return not who.session or door.owner.session(scope, headers) is not None
        if who.session:
            session = door.sessions.find(session_token(headers))
            return session is not None and door.users().role(session.who) == who.role
        if who.ambient:  # a load balancer named them
            return not who.until or time.time() < who.until
        return door.users().role(who.name) == who.role

    async def _basic(self, word: str, address: str) -> Identity:
        """For programs: a name and a password with every request. Guesses are counted as at the page."""
        try:
            name, _, password = base64.b64decode(word, validate=True).decode().partition(":")
        except (ValueError, UnicodeDecodeError):
            raise _refused(400, "bad request", "the Authorization header can't be read") from None
        keys = (f"address {address}", f"name {name[:64]}")
        self._not_too_often(*keys)
        users = self._door.users()
        if not await self._door.passwords.right(users, name, password[:1024]):
            self._door.attempts.failed(*keys)
            raise _refused(401, "not signed in", "the name or the password is wrong")
        return Identity(name=name, role=users.role(name), ambient=False)

    def _bearer(self, token: str, address: str) -> Identity:
        """For programs: a token of the users file."""
        self._not_too_often(f"address {address}")
        users = self._door.users()
        name = users.of_token(token)
        if not name:
            self._door.attempts.failed(f"address {address}")
            raise _refused(401, "not signed in", "the token is not known")
        return Identity(name=name, role=users.role(name), ambient=False)

    def _not_too_often(self, *keys: str) -> None:
        wait = self._door.attempts.wait_s(*keys)
        if wait > 0:
            retry = {"retry-after": str(int(wait) + 1)}
            raise _refused(429, "too many tries", "wait before trying again", **retry)

    def _may_change(self, who: Identity, headers: Headers, body: bytes, path: str, scope: Scope) -> None:
        if not self._has_token(who, headers, body):
            self._note(who, path, "refused: no CSRF token", scope)
            told = "the request carries no valid CSRF token; load the page again"
            raise _refused(403, "not from this page", told)
        if not who.may_act and path != "/signout":
            self._note(who, path, "refused: a viewer may only look", scope)
            raise _refused(403, "not allowed", "a viewer may look at everything and change nothing")

    def _note(self, who: Identity, path: str, outcome: str, scope: Scope) -> None:
        entry = AuditEntry(
            who=who.name,
            role=who.role,
            action="request",
            subject=path,
            outcome=outcome,
            address=scope["state"]["address"],
        )
        self._door.audit.note(entry)

    def _has_token(self, who: Identity, headers: Headers, body: bytes) -> bool:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        given = headers.get("x-csrf-token", "")
        if not given and kind == "application/x-www-form-urlencoded":
            given = fields(body).get("csrf", [""])[0]
        if given:
            return bool(who.csrf) and hmac.compare_digest(given.encode(), who.csrf.encode())
        # No other site can make a browser send this type without asking us first, and we never say yes.
        return kind == "application/json" and not who.ambient

    def _ask_to_sign_in(self, path: str, method: str, headers: Headers) -> Response:
        if path.startswith("/api/") or method not in SAFE or "text/event-stream" in headers.get("accept", ""):
            how = "sign in first, or send a name and password with the request"
            if self._door.owner is not None:
                how = "this console is for the person who started it: send the token of the link it printed"
            return problem(401, "not signed in", how)
        return RedirectResponse(f"/signin?next={quote(path)}", status_code=303)


def _same_origin(headers: Headers) -> bool:
    """Browsers tell where a request comes from; programs don't, and need no protection from other sites."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin", "")
    return not origin or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


async def _body(headers: Headers, receive: Receive) -> bytes:
    too_large = _refused(413, "too large", f"the console takes up to {LARGEST_BODY >> 20} MiB")
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > LARGEST_BODY:
        raise too_large
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise too_large
        if not message.get("more_body", False):
            break
    return body


def _replay(body: bytes, receive: Receive) -> Receive:
    """The application reads what the guard has read already."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send, path: str) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if not path.startswith("/static/"):
                headers["cache-control"] = "no-store"
        await send(message)

    return wrapped
