"""A message as a webhook takes it: Slack's and Teams' own forms, or a plain object for any other program.

All three carry the job, a link to its page, and the same thread key for all messages about one job or node.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

from ..core import keys
from ..core.effects import Notify
from ..core.errors import Refused
from .reads import as_dict

FORMS = ("plain", "slack", "teams")
_HOSTS = {
    "slack": (".slack.com",),
    "teams": (".office.com", ".logic.azure.com", ".powerplatform.com", ".azure-apim.net"),
}
#: Slack refuses a longer part, and a longer title.
_LONGEST_PART, _LONGEST_TITLE = 2900, 150


def form_of(address: str, chosen: str = "") -> str:
    """What was chosen, else what the address is known to take."""
    if chosen and chosen not in FORMS:
        raise Refused(f"GPU_RECOVERY_WEBHOOK_FORM is {chosen!r}: use one of {', '.join(FORMS)}")
    if chosen:
        return chosen
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        return FORMS[0]
    return next((form for form, ends in _HOSTS.items() if host.endswith(ends)), FORMS[0])


def payload(message: Notify, form: str, console: str = "") -> dict[str, Any]:
    """`console`: its address, if people can reach one."""
    said = keys.parse(message.key)
    job = said.job if said is not None else ""
    thread = f"job/{job}" if job else f"node/{message.node}" if message.node else message.key
    page = f"/jobs/{quote(job)}" if job else f"/nodes/{quote(message.node)}" if message.node else "/alerts"
    link = f"{console.rstrip('/')}{page}" if console else ""
    if form == "slack":
        return _slack(message, link, thread)
    if form == "teams":
        return _teams(message, link, thread)
    more = {"job": job, "link": link, "thread": thread, "status": "resolved" if message.resolved else "open"}
    return {**as_dict(message), **more, "text": _text(message, link)}


def _text(message: Notify, link: str) -> str:
    return "\n".join([message.happened, *(f"{n}: {t}" for n, t in message.parts), *([link] if link else [])])


def _slack(message: Notify, link: str, thread: str) -> dict[str, Any]:
    """Blocks, with a text for notifications. What looks like Slack's own signs in a text is none."""
    lines = [_escaped(message.happened), *(f"*{name}:* {_escaped(text)}" for name, text in message.parts)]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": message.subject[:_LONGEST_TITLE]}},
        *({"type": "section", "text": {"type": "mrkdwn", "text": line[:_LONGEST_PART]}} for line in lines),
    ]
    if link:
        button = {"type": "button", "text": {"type": "plain_text", "text": "Open"}, "url": link}
        blocks.append({"type": "actions", "elements": [button]})
    blocks.append({"type": "context", "elements": [{"type": "plain_text", "text": thread[:_LONGEST_TITLE]}]})
    return {"text": _escaped(message.subject), "blocks": blocks}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(message: Notify, link: str, thread: str) -> dict[str, Any]:
    """An adaptive card, as workflows and connectors take it."""
    body: list[dict[str, Any]] = [
        {"type": "TextBlock", "text": message.subject, "weight": "Bolder", "size": "Medium", "wrap": True},
        {"type": "TextBlock", "text": message.happened, "wrap": True},
        {"type": "FactSet", "facts": [{"title": name, "value": text} for name, text in message.parts]},
        {"type": "TextBlock", "text": thread, "isSubtle": True, "size": "Small", "wrap": True},
    ]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": body,
    }
    if link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open", "url": link}]
    kind = "application/vnd.microsoft.card.adaptive"
    return {
        "type": "message",
        "summary": message.subject,
        "attachments": [{"contentType": kind, "content": card}],
    }
