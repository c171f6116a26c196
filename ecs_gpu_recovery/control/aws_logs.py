"""What the ranks wrote, read from CloudWatch."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..aws.errors import translated
from ..core.errors import Refused
from .backend import Enough, never

#: Pages of a log that are read before they are handed on.
_PAGES = 100
#: A place that is a time; CloudWatch's own begin with f/ or b/.
_SINCE = "since:"


def since(at: datetime) -> str:
    """The place in any log at which this moment begins."""
    return f"{_SINCE}{int(at.timestamp() * 1000)}"


def read(
    client: Any, place: tuple[str, str], position: str, region: str, enough: Enough = never
) -> tuple[list[str], str]:
    """New lines of a stream, and where to go on; a few pages at a time."""
    from botocore.exceptions import ClientError

    group, stream = place
    lines: list[str] = []
    size = 0
    for _ in range(_PAGES):
        begin = {"startTime": int(position.removeprefix(_SINCE))} if position.startswith(_SINCE) else {}
        head = begin or not position
        more: dict[str, Any] = {"startFromHead": True, **begin} if head else {"nextToken": position}
        try:
            with translated(f"reading {stream}"):
                reply = client.get_log_events(logGroupName=group, logStreamName=stream, **more)
        except ClientError as exc:
            error = exc.response.get("Error", {})
            if error.get("Code") != "ResourceNotFoundException":
                raise
            if "log group" in str(error.get("Message", "")):
                raise Refused(
                    f"there is no log group {group} in {region}: tasks can't write to it, or its time is over."
                    f" To make it:  aws logs create-log-group --log-group-name {group}"
                ) from exc
            return lines, position  # the task has not written anything yet
        lines += [str(event["message"]) for event in reply["events"]]
        size += sum(len(event["message"]) for event in reply["events"])
        if reply["nextForwardToken"] == position:
            break
        position = str(reply["nextForwardToken"])
        if enough(size):
            break
    return lines, position
