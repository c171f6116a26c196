"""What all handlers share: made at the first call, never at import, and kept for the life of the process."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.config import Config

    from ..aws.intake import Intake

SERVICE = "ecs-gpu-recovery"


class EventClock:
    """Now is the time of the event in hand, so that a night can be replayed in a second."""

    def __init__(self) -> None:
        self._at = datetime.now(UTC)

    def set(self, event: object) -> None:
        from ..aws.event_fields import member, moment

        at = moment(member(event).get("time"))
        if at is not None:
            self._at = at

    def now(self) -> datetime:
        return self._at


class Session:
    """Makes clients as boto3 would, without it: what it adds to botocore is not needed here, and it is slow to load."""

    def __init__(self) -> None:
        import botocore.session

        self._session = botocore.session.get_session()

    def client(self, name: str, config: Config) -> Any:
        return self._session.create_client(name, config=config)


CLOCK = EventClock()


@cache
def intake() -> Intake:
    from ..aws.wiring import build
    from . import metrics

    _log_as_json()
    side = build(os.environ, now=CLOCK.now, on_commit=metrics.job_moved, session=Session())
    metrics.of(side.settings.STACK_NAME, side.settings.ECS_CLUSTER_NAME)
    return side.intake


def _log_as_json() -> None:
    """One structured line per transition."""
    from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(LambdaPowertoolsFormatter(service=SERVICE))
    logger = logging.getLogger("ecs_gpu_recovery")
    logger.handlers[:] = [handler]
    logger.setLevel(os.environ.get("LOG_LEVEL", "INFO").upper())
    logger.propagate = False


@contextmanager
def _start_up() -> Iterator[None]:
    """While the first event is taken, code and clients are loaded. None of that is garbage, and looking for some among
    it costs a tenth of the start."""
    if intake.cache_info().currsize or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def receive(event: object, handler: str) -> Mapping[str, Any]:
    """Take one event. The answer is for a person who invokes the function by hand; EventBridge ignores it."""
    with _start_up():
        from . import metrics

        CLOCK.set(event)
        try:
            answer = intake().take(event)
            metrics.event_taken(handler, taken=answer.taken)
            if answer.report is not None:
                metrics.swept(answer.report)
        finally:
            metrics.flush()
    return {"kind": str(answer.kind), "taken": answer.taken, "why": answer.why, "record": answer.record}
