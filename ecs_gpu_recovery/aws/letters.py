"""How a dead letter reads: an event that nobody could handle, who left it, and what went wrong.

Four senders leave letters in the one queue. A rule and a schedule leave the event as it is and tell the rest in
attributes. A queue leaves what its function failed on each time, and bears the function's name. A function that was
called with a bare event leaves an account of the call, with the event inside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..core import keys
from ..core.effects import Notify
from .event_fields import line, member, moment, sort_of
from .parse import parse_event

_LONGEST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One message of the queue. Text is empty where the message does not tell."""

    id: str
    at: datetime | None  #: when it was left
    sender: str  #: "queue NAME", "rule NAME", "schedule NAME" or "function NAME"
    function: str  #: the name of the function that was to take the event
    error: str
    event: object  #: the event; the body as it came where it is no JSON
    understood: str  #: what the event says, in a few words
    receipt: str = field(default="", repr=False, compare=False)  #: for as long as we hold it

    def to_json(self) -> dict[str, str | None]:
        """All but the event, which may hold variables of a job that are secret."""
        return {
            "id": self.id,
            "at": self.at.isoformat() if self.at else None,
            "sender": self.sender,
            "function": self.function,
            "error": self.error,
            "understood": self.understood,
        }


def read_letter(message: Mapping[str, Any], *, cluster: str = "", check_family: str = "") -> Letter:
    """Whatever is in the queue, the answer is a letter; nothing raises or is guessed."""
    body = _json(message.get("Body"))
    told = {
        str(name): line(member(value).get("StringValue"), _LONGEST)
        for name, value in member(message.get("MessageAttributes")).items()
    }
    if isinstance(body, dict) and "requestPayload" in body and "requestContext" in body:
        sender, function, error, event = _of_function(body)
        at = moment(body.get("timestamp"))
    elif source := line(member(message.get("Attributes")).get("DeadLetterQueueSourceArn"), _LONGEST):
        function, event, at = function_name(source), body, None
        sender, error = f"queue {function}", f"{function} failed on it each time: its log says why"
    else:
        sender, function, error, event = (*_of_target(told), body)
        at = moment(told.get("SCHEDULED_TIME"))
    seen = parse_event(event, cluster=cluster, check_family=check_family)
    return Letter(
        id=str(message.get("MessageId", "")),
        at=_sent(message) or at,
        sender=sender,
        function=function,
        error=error,
        event=event,
        understood=f"{seen.kind.value}: {line(seen.why, _LONGEST)}",
        receipt=str(message.get("ReceiptHandle", "")),
    )


def _of_function(body: Mapping[Any, Any]) -> tuple[str, str, str, object]:
    """A function failed on the event each time, or the event grew too old before it could be called."""
    context, answer = member(body.get("requestContext")), member(body.get("responsePayload"))
    function = function_name(context.get("functionArn"))
    said = [line(answer.get(key), _LONGEST) for key in ("errorType", "errorMessage")]
    error = ": ".join(filter(None, said)) or line(context.get("condition"), _LONGEST)
    return f"function {function}".strip(), function, error, body["requestPayload"]


def _of_target(told: Mapping[str, str]) -> tuple[str, str, str]:
    """A rule could not reach the queue of its function, or a schedule its function."""
    sender = ""
    if rule := told.get("RULE_ARN", "").partition(":rule/")[2]:
        sender = f"rule {rule}"
    elif schedule := told.get("SCHEDULE_ARN", "").partition(":schedule/")[2]:
        sender = f"schedule {schedule}"
    said = [told.get(key, "") for key in ("ERROR_CODE", "ERROR_MESSAGE")]
    error = ": ".join(filter(None, said)) or told.get("EXHAUSTED_RETRY_CONDITION", "")
    return sender, function_name(told.get("TARGET_ARN")), error


def function_name(arn: object) -> str:
    """The name in a function's ARN, with or without a version; or in that of its queue, which has the same name."""
    parts = arn.split(":") if isinstance(arn, str) else []
    if len(parts) == 6 and parts[2] == "sqs":
        return parts[5]
    return parts[6] if len(parts) in (7, 8) and parts[2] == "lambda" and parts[5] == "function" else ""


def why_not(letter: Letter, ours: frozenset[str]) -> str:
    """Why a letter can't be given to its function; empty if it can. A letter may be written by anybody who can reach
    the queue, so its word about whom to call is held against the deployment's own functions."""
    if not letter.function:
        return "the letter does not say which function was to take it"
    if letter.function not in ours:
        return f"{letter.function} is no function of this deployment; if the stack has another name, set STACK_NAME"
    if not isinstance(letter.event, dict):
        return f"the letter holds no event: its content is {sort_of(letter.event)}"
    return ""


def put_away(letter: Letter, by: str, why: str) -> Notify:
    """What the others are told of a letter that somebody puts away. Not the event: it may hold secrets of a job."""
    return Notify(
        key=keys.dead_letter(letter.id),
        subject=f"A dead letter was put away by {by}",
        happened=f"{by} put the dead letter {letter.id} away unhandled: {why}",
        evidence=f"{letter.understood}; left by {letter.sender or 'an unknown sender'}: {letter.error or '-'}",
        done="The event is deleted. What it told is found by the sweeper where a record still waits for it.",
        next="Nothing, if you agree. If not, look at the job or node it names, and ask who put it away.",
    )


def _json(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text


def _sent(message: Mapping[str, Any]) -> datetime | None:
    stamp = str(member(message.get("Attributes")).get("SentTimestamp", ""))
    return datetime.fromtimestamp(int(stamp) / 1000, UTC) if stamp.isdigit() and len(stamp) <= 13 else None
