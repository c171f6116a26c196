"""What all handlers share: made at the first call, never at import, and kept for the life of the process."""

from __future__ import annotations

import gc
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.config import Config

    from ..aws.intake import Intake

SERVICE = "ecs-gpu-recovery"
LOG = logging.getLogger("ecs_gpu_recovery")


class EventClock:
    """Now is the time of the event in hand: so the story is told. What is waited for counts from the real time."""

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


def real_time() -> datetime:
    return datetime.now(UTC)


@cache
def intake() -> Intake:
    from ..aws.wiring import build, in_threads
    from . import metrics

    _log_as_json()
    side = build(
        os.environ,
        now=CLOCK.now,
        on_commit=metrics.job_moved,
        session=Session(),
        clock=real_time,
        spread=in_threads,
    )
    metrics.of(side.settings.STACK_NAME, side.settings.ECS_CLUSTER_NAME)
    return side.intake


def _log_as_json() -> None:
    """One structured line per transition."""
    from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(LambdaPowertoolsFormatter(service=SERVICE))
    LOG.handlers[:] = [handler]
    LOG.setLevel(os.environ.get("LOG_LEVEL", "INFO").upper())
    LOG.propagate = False


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


def receive(event: object) -> Mapping[str, Any]:
    """Take what a queue delivers, or one event by itself.

    To the queue it is answered which messages shall come again; the answer to a bare event is for a person who invokes
    the function by hand.
    """
    with _start_up():
        from . import metrics

        messages = _messages(event)
        try:
            if messages is not None:
                return _take_all(messages)
            CLOCK.set(event)
            answer = intake().take(event)
            metrics.events_taken([answer])
            if answer.report is not None:
                metrics.swept(answer.report)
                answer.report.raise_unforeseen()
        finally:
            metrics.flush()
    return {"kind": str(answer.kind), "taken": answer.taken, "why": answer.why, "record": answer.record}


def _messages(event: object) -> dict[str, object] | None:
    """The events in a batch of SQS, by message. None if it is no batch; what is no JSON is no event either."""
    from ..aws.event_fields import member

    records = member(event).get("Records")
    if not isinstance(records, list):
        return None
    found: dict[str, object] = {}
    for record in map(member, records):
        body = record.get("body")
        try:
            found[str(record.get("messageId"))] = json.loads(body) if isinstance(body, str) else body
        except (ValueError, RecursionError):
            found[str(record.get("messageId"))] = body
    return found


def _take_all(messages: Mapping[str, object]) -> Mapping[str, Any]:
    """Where nothing at all could be taken, the function itself has failed, and the platform counts it."""
    from . import metrics

    CLOCK.set(newest(messages.values()))
    answers = intake().take_all(list(messages.values()))
    metrics.events_taken(answers)
    failed = {
        message: answer
        for message, answer in zip(messages, answers, strict=True)
        if isinstance(answer, Exception)
    }
    for message, error in failed.items():
        LOG.error("event failed", extra={"message_id": message}, exc_info=error)
    if failed and len(failed) == len(messages):
        raise next(iter(failed.values()))
    return {"batchItemFailures": [{"itemIdentifier": message} for message in failed]}


def newest(events: Iterable[object]) -> object:
    """The event of a batch that happened last: it is as late as that."""
    from ..aws.event_fields import member, moment

    first = datetime.min.replace(tzinfo=UTC)
    return max(events, key=lambda event: moment(member(event).get("time")) or first, default=None)
