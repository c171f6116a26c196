"""What the pages say, in English and, by way of `chinese`, in Chinese. The English text is the key.

What records say (reasons, evidence) stays as it was written.
"""

from __future__ import annotations

from collections.abc import Callable

from .chinese import ZH

LANGUAGES = {"en": "English", "zh": "中文"}
JOB_LABELS = {
    "IN_PROGRESS": "Running",
    "PENDING_HEALTHCHECK": "Checking nodes",
    "PENDING_RESTART": "Waiting for nodes",
    "RESTARTING": "Restarting",
    "COMPLETE": "Complete",
    "FAILED": "Failed",
    "USER_STOPPED": "Stopped",
    "TERMINATED": "Terminated",  # of a task
}
NODE_LABELS = {
    "AVAILABLE": "Available",
    "UNKNOWN": "Not heard from",
    "ASSIGNED": "Assigned",
    "IN_PROGRESS": "Running",
    "PENDING": "Stopping",
    "PENDING_HEALTHCHECK": "Under check",
    "REBOOTING": "Rebooting",
    "FAILED": "Failed",
}

#: How deep a node is examined.
LEVELS = {
    "quick": "quick: what the driver and the kernel log say",
    "1": "1: and DCGM's short tests",
    "2": "2: and DCGM's tests of some minutes",
    "3": "3: and DCGM's long tests under load",
    "4": "4: and DCGM's longest tests",
    "none": "none: skip the check",
}
#: Titles of charts; `charts` draws them.
CHARTS = (
    "GPU utilisation",
    "GPU memory",
    "GPU temperature",
    "GPU power",
    "Processors in use",
    "Memory",
)
#: Orders that wait to be carried out, by their kind.
ORDERS = {
    "StartTask": "start a rank",
    "StopTask": "stop a rank",
    "CheckNode": "check the node",
    "RebootNode": "reboot the node",
    "WriteRows": "write the tables",
    "Notify": "send a message",
    "Archive": "keep old history",
}
#: What the check of a node said, as people say it.
VERDICTS = {
    "healthy": "healthy",
    "reboot": "needs a reboot",
    "replace": "must be replaced",
    "inconclusive": "inconclusive",
    "lost": "lost",
}


def translator(language: str) -> Callable[[str], str]:
    if language == "zh":
        return lambda text: ZH.get(text, text)
    return lambda text: text


def choose(cookie: str, accept: str) -> str:
    """The person's own choice, or what their browser asks for."""
    if cookie in LANGUAGES:
        return cookie
    wishes: list[tuple[float, str]] = []
    for part in accept.split(",")[:20]:
        name, _, quality = part.strip().partition(";q=")
        try:
            weight = float(quality) if quality else 1.0
        except ValueError:
            weight = 0.0
        wishes.append((weight, name.lower()[:2]))
    for _, name in sorted(wishes, key=lambda wish: -wish[0]):
        if name in LANGUAGES:
            return name
    return "en"
