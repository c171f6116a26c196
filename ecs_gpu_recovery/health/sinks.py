"""Where the watch tells what it saw: a file, or EventBridge. What could not be told is offered again."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

Event = Mapping[str, object]

SOURCE = "gpu-recovery.watch"
DETAIL_TYPE = "GPU fault seen"
_AT_ONCE = 10
_TAIL = 1 << 20


class NotTold(Exception):
    """The events are to be offered again later."""


class Sink(Protocol):
    """Takes events whole; raises NotTold if it could not."""

    def tell(self, events: Sequence[Event]) -> None: ...


class FileSink:
    """One line of JSON per event, appended. An event that is in the file already is not written again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids = self._known()

    def _known(self) -> set[str]:
        try:
            with open(self._path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                lines = file.read().splitlines()
        except OSError:  # not there yet, or not to be read: `tell` will say so
            return set()
        found = set()
        for line in lines:
            try:
                found.add(str(json.loads(line)["id"]))
            except (ValueError, KeyError, TypeError):
                continue  # a line of someone else, or the torn end of a full disk
        return found

    def tell(self, events: Sequence[Event]) -> None:
        new = [event for event in events if event["id"] not in self._ids]
        text = "".join(json.dumps(event) + "\n" for event in new).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                view = memoryview(text)
                while view:
                    view = view[os.write(file, view) :]
            finally:
                os.close(file)
        except OSError as error:
            raise NotTold(f"{self._path}: {error.strerror or error}") from error
        self._ids.update(str(event["id"]) for event in new)


class EventBridgeSink:
    """PutEvents, with short patience: the watch must not hang on a network."""

    def __init__(self, bus: str) -> None:
        self._bus = bus
        self._client: Any = None

    def tell(self, events: Sequence[Event]) -> None:
        """Some may be refused and others taken; then all are offered again, and their ids tell them apart."""
        try:
            client = self._connected()
            for start in range(0, len(events), _AT_ONCE):
                answer = client.put_events(Entries=[self._entry(e) for e in events[start : start + _AT_ONCE]])
                if answer.get("FailedEntryCount"):
                    codes = {str(e.get("ErrorCode")) for e in answer.get("Entries", []) if e.get("ErrorCode")}
                    raise NotTold(
                        f"EventBridge refused events: {', '.join(sorted(codes)) or 'no reason given'}"
                    )
        except NotTold:
            raise
        except Exception as error:  # no credentials, no network, no boto3: all mean "later"
            raise NotTold(f"EventBridge: {type(error).__name__}: {error}") from error

    def _connected(self) -> Any:
        if self._client is None:
            config = importlib.import_module("botocore.config").Config(
                connect_timeout=3, read_timeout=5, retries={"max_attempts": 2}
            )
            self._client = importlib.import_module("boto3").client("events", config=config)
        return self._client

    def _entry(self, event: Event) -> dict[str, object]:
        return {
            "Source": SOURCE,
            "DetailType": DETAIL_TYPE,
            "Detail": json.dumps(event),
            "EventBusName": self._bus,
            "Time": event["at"],
        }
