"""Where the time went, in the API: the account of one job or of all."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from ...control.accounts import ledger_of
from ...ledger import Loss, view
from ...slow_nodes import Slow
from ..context import ConsoleArg
from ..problems import RESPONSES
from .models import Answer
from .routes import _said, _shape

router = APIRouter(prefix="/api/report", responses=RESPONSES, tags=["report"])


class Between(Answer):
    """Hours, with the ends of the 95 % interval; null where no failure gives one."""

    mean: float | None
    low: float
    high: float | None


class LedgerView(Answer):
    """`gpu_hours` by what they were spent on; `spares` cover the repairs 99 % of the time."""

    jobs: int
    gpu_hours: dict[str, float]
    effective: float | None
    failures: int
    causes: list[Loss]
    node_hours_between_failures: Between
    checkpoint_every_s: float | None
    spares: int
    slow: list[Slow]


@router.get("", **_shape(LedgerView))
async def report(
    console: ConsoleArg,
    job: Annotated[str, Query(max_length=200)] = "",
    since: Annotated[str, Query(pattern=r"^([1-9][0-9]{0,3}[hdw])?$")] = "",
    checkpoint_seconds: Annotated[float, Query(ge=0.01, le=86400)] = 60.0,
) -> Response:
    """Where the time went: of one job in its whole life, or of all jobs within `since` (12h, 7d, 4w; 7d by default)."""
    ledger = await console.pool.ask(lambda side: ledger_of(side, job, since))
    return _said(view(ledger, checkpoint_seconds))
