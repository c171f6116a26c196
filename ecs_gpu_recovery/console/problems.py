"""Errors as RFC 9457 problem documents, whatever went wrong."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from ..core.errors import JobExists, NodesTaken, NotFound, RecoveryError, Refused, Transient
from .live.stream_limits import TooManyStreams

log = logging.getLogger("ecs_gpu_recovery.console")
MEDIA_TYPE = "application/problem+json"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class BadField(Refused):
    """What is wrong, field by field; '' is the form as a whole."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self.fields = {key: list(texts) for key, texts in fields.items()}
        super().__init__(
            "; ".join(
                f"{key}: {text}" if key else text for key, texts in self.fields.items() for text in texts
            )
        )


def by_field(message: str, known: Sequence[str]) -> dict[str, list[str]]:
    """A refusal's lines, each under the field it speaks of."""
    found: dict[str, list[str]] = {}
    for line in message.splitlines():
        text = line.strip()
        if not text or text.endswith("was not submitted:"):
            continue
        text = re.sub(r"^the job was not submitted: ", "", text)
        key, sep, rest = text.partition(": ")
        name = key.partition(".")[0]
        if sep and name in known:
            found.setdefault(name, []).append(f"{key}: {rest}" if "." in key else rest)
        else:
            found.setdefault("port" if text.startswith("port ") else "", []).append(text)
    return found


def problem(
    status: int, title: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> JSONResponse:
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def of_error(exc: RecoveryError) -> tuple[int, str, dict[str, Any]]:
    """The status and title an error of ours is told with."""
    if isinstance(exc, BadField):
        errors = [{"field": key, "message": text} for key, texts in exc.fields.items() for text in texts]
        return 422, "not valid", {"errors": errors}
    if isinstance(exc, NotFound):
        return 404, "not found", {}
    if isinstance(exc, JobExists | NodesTaken | Refused):
        return 409, "refused", {}
    if isinstance(exc, TooManyStreams):
        return 503, "too many viewers", {}
    if isinstance(exc, Transient):
        return 503, "the control plane did not answer", {}
    return 500, "internal error", {}


def allowed(app: FastAPI, request: Request) -> str:
    """Every method this path knows: the framework alone names those of the first route only."""
    found: set[str] = set()
    for method in _METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in app.router.routes):
            found.add(method)
    return ", ".join(name for name in _METHODS if name in found)


def install(app: FastAPI, page: Callable[[Request, int, str], Response]) -> None:
    """Turn every kind of error into a problem document, or into a page where a person looks at it."""

    def for_person(request: Request) -> bool:
        machines = request.url.path.startswith(("/api/", "/live/"))
        return not machines and "text/html" in request.headers.get("accept", "")

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, exc: RequestValidationError) -> Response:
        unreadable = any(error["type"] == "json_invalid" for error in exc.errors())
        # What was sent is not sent back: it may hold a secret.
        errors = [
            {"field": ".".join(str(part) for part in error["loc"][1:]), "message": str(error["msg"])}
            for error in exc.errors()
        ]
        if unreadable:
            return problem(400, "not readable", "the body is not valid JSON", errors=errors)
        return problem(
            422, "not valid", "; ".join(f"{e['field']}: {e['message']}" for e in errors)[:500], errors=errors
        )

    @app.exception_handler(RecoveryError)
    async def ours(request: Request, exc: RecoveryError) -> Response:
        status, title, more = of_error(exc)
        if for_person(request):
            return page(request, status, str(exc))
        headers = {"retry-after": "5"} if status == 503 else {}
        return problem(status, title, str(exc), headers=headers, **more)

    @app.exception_handler(HTTPException)
    async def http(request: Request, exc: HTTPException) -> Response:
        if for_person(request):
            return page(request, exc.status_code, str(exc.detail))
        headers = {name: value for name, value in (exc.headers or {}).items() if name.lower() != "allow"}
        if exc.status_code == 405:
            headers["allow"] = allowed(app, request)
        return problem(
            exc.status_code,
            "not possible" if exc.status_code != 404 else "not found",
            str(exc.detail),
            headers=headers,
        )

    @app.exception_handler(Exception)
    async def bug(request: Request, exc: Exception) -> Response:
        log.error("request failed", exc_info=exc, extra={"what": f"{request.method} {request.url.path}"})
        return problem(500, "internal error", "the console met an error of its own; its log has the details")


#: For every operation's documentation.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, text in {
        400: "The request can't be read.",
        401: "No one is signed in.",
        403: "Not allowed for this person, or not sent from this console.",
        404: "No such thing.",
        405: "This path does not know this method; `Allow` names those it knows.",
        408: "The body did not arrive in time.",
        409: "Refused: the detail says why.",
        413: "The body is too large.",
        421: "The console does not answer to this host name.",
        422: "A field is not valid; `errors` names each.",
        429: "Too many tries; `Retry-After` says how long to wait.",
        503: "The control plane did not answer, or too many watch already; `Retry-After` says when to try again.",
    }.items()
}
PROBLEM_SCHEMA = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
