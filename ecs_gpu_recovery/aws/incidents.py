"""A message to people as an event on the bus, for whatever a team listens with: PagerDuty, a chat, a rule of its own.

`chatbot` in it is the message as Amazon Q in chat applications (AWS Chatbot) takes it, with one thread for each job or
node. Mail comes from the topic and does not depend on any of this.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from ..core.effects import Notify
from ..core.errors import Transient
from ..engine.webhook import payload
from .errors import translated

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient

log = logging.getLogger("ecs_gpu_recovery")
SOURCE, TYPE = "gpu-recovery", "GPU recovery incident"
#: Where in an event the chat's form of it is.
CHAT = "chatbot"
#: A chat cuts what is longer.
_LONGEST = 8000


class IncidentBus:
    """Puts one event for each message. It stands beside the message: what goes wrong with it holds up nobody's mail."""

    def __init__(self, events: EventBridgeClient, bus: str, *, cluster: str, stack: str) -> None:
        self._eventbridge, self._bus, self._cluster, self._stack = events, bus, cluster, stack

    def put(self, message: Notify) -> None:
        if not self._bus:
            return
        from botocore.exceptions import ClientError

        detail = {"stack": self._stack, "cluster": self._cluster, **told(message)}
        entry = {
            "Source": SOURCE,
            "DetailType": TYPE,
            "Detail": json.dumps(detail),
            "EventBusName": self._bus,
        }
        try:
            with translated("putting an incident on the bus"):
                reply = self._eventbridge.put_events(Entries=[entry])  # type: ignore[list-item]
        except (ClientError, Transient) as exc:
            log.warning("no incident on the bus", extra={"key": message.key, "why": str(exc)})
            return
        if reply.get("FailedEntryCount"):
            why = reply["Entries"][0].get("ErrorMessage", "")
            log.warning("no incident on the bus", extra={"key": message.key, "why": why})


def told(message: Notify) -> dict[str, Any]:
    """What the event says: the message's parts, whose it is, and the same for a chat."""
    parts = payload(message, "plain")
    del parts["text"], parts["link"]
    return {**parts, CHAT: for_chat(message, str(parts["thread"]))}


def for_chat(message: Notify, thread: str) -> dict[str, Any]:
    """The schema of custom notifications, version 1.0."""
    lines = [message.happened, *(f"*{n}:* {t}" for n, t in message.parts if t and n != "Next")]
    return {
        "version": "1.0",
        "source": "custom",
        "id": message.key,
        "content": {
            "textType": "client-markdown",
            "title": message.subject,
            "description": "\n".join(lines)[:_LONGEST],
            "nextSteps": [message.next] if message.next else [],
            "keywords": [word for word in (message.team, message.node) if word],
        },
        "metadata": {"threadId": thread, "summary": message.subject, "eventType": TYPE},
    }
