"""Permits in the API: whether the fleet is frozen, what waits, and a person's word on it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field, StrictStr
from starlette.responses import Response

from ..actions import ActionsArg
from ..context import ConsoleArg
from ..problems import RESPONSES
from .bodies import ReasonBody
from .models import Answer
from .routes import _said, _shape

router = APIRouter(prefix="/api/fleet", responses=RESPONSES, tags=["fleet"])


class FleetBody(ReasonBody):
    """A word on the whole fleet, or on one order: then `name` is its key, its node or its job."""

    name: Annotated[StrictStr, Field(max_length=400)] = ""


class Since(Answer):
    """Who did it, when and why; nobody where the control plane did."""

    at: str
    by: str
    why: str


class Waiting(Answer):
    """An order that waits for a permit, with its evidence."""

    key: str
    what: str
    node: str
    job: str
    at: str
    why: str
    waits_for: str


class Fleet(Answer):
    """`repairs` is the setting REPAIRS; `waiting` is oldest first."""

    repairs: Literal["auto", "ask"]
    frozen: Since | None
    thawed: Since | None
    waiting: list[Waiting]


@router.get("", **_shape(Fleet))
async def fleet(console: ConsoleArg) -> Response:
    """Whether the fleet is frozen, and what waits for a permit."""
    return _said(await console.pool.ask(lambda side: side.fleet()))


@router.post("/{ask}", **_shape(Fleet))
async def ask_fleet(
    ask: Literal["freeze", "thaw", "allow", "refuse"], body: FleetBody, do: ActionsArg
) -> Response:
    """Freeze or thaw the fleet; allow or refuse one order. All but a yes need a reason."""
    return _said(await do.ask_fleet(ask, body.name, body.why))
