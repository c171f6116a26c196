"""What containers write, as CloudWatch Logs keeps it: a stream for each task whose definition sends its log there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .model import Task
from .requests import ApiError

#: Group, stream and lines.
Write = Callable[[str, str, list[str]], None]
_VERDICTS = {1: "reboot", 2: "replace", 3: "inconclusive"}


def place_of(task: Task) -> tuple[str, str] | None:
    """Group and stream, named as the awslogs driver names them."""
    for row in task.definition["containerDefinitions"]:
        options = row.get("logConfiguration", {}).get("options", {})
        if row["name"] == task.main.name and "awslogs-group" in options:
            prefix = options.get("awslogs-stream-prefix", row["name"])
            return options["awslogs-group"], f"{prefix}/{row['name']}/{task.id}"
    return None


def report(task: Task, code: int) -> str:
    """The last line of a health check that found something: its report."""
    uuid = task.node.gpus[0] if task.node.gpus else ""
    fault = {"gpu": "0000:3b:00", "action": _VERDICTS.get(code, "inconclusive"), "rule": "xid-79"}
    found = {
        "schema": "gpu-health-report/1",
        "verdict": _VERDICTS.get(code, "inconclusive"),
        "exit_code": code,
        "why": "Xid 79 on 0000:3b:00: the GPU has fallen off the bus" if code < 3 else "no GPU was tested",
        "gpus": [{"index": 0, "uuid": uuid, "bus_id": "0000:3b:00"}],
        "findings": [fault] if code < 3 else [],
    }
    return json.dumps(found)


class Streams:
    """The streams of one account, in process."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "GetLogEvents": self.get_log_events,
            "FilterLogEvents": self.filter_log_events,
        }

    def write(self, group: str, stream: str, lines: list[str]) -> None:
        at = round(self._now() * 1000)
        written = self._lines.setdefault((group, stream), [])
        written.extend({"timestamp": at, "message": line} for line in lines)

    def _of(self, data: dict[str, Any], stream: str) -> list[dict[str, Any]]:
        lines = self._lines.get((data["logGroupName"], stream))
        if lines is None:
            raise ApiError("ResourceNotFoundException", "The specified log stream does not exist.")
        begin, end = data.get("startTime", 0), data.get("endTime", float("inf"))
        return [line for line in lines if begin <= line["timestamp"] < end]

    def get_log_events(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"events": self._of(data, data["logStreamName"])[-int(data.get("limit", 10_000)) :]}

    def filter_log_events(self, data: dict[str, Any]) -> dict[str, Any]:
        """Of some streams together, oldest first; whole in one page."""
        found = [line for stream in data["logStreamNames"] for line in self._of(data, stream)]
        found.sort(key=lambda line: int(line["timestamp"]))
        return {"events": found[: int(data.get("limit", 10_000))]}
