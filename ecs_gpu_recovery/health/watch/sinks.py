"""Where the watch tells what it saw: a file, or EventBridge. What could not be told is offered again."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

Event = Mapping[str, object]
Place = dict[str, str]

SOURCE = "gpu-recovery.watch"
DETAIL_TYPE = "GPU fault seen"
PULSE, PULSE_TYPE = "gpu-pulse/1", "GPU pulse"
"""The schema of what is told of GPUs that stand still, and the kind of event it travels as."""
ECS_AGENT = "http://127.0.0.1:51678/v1/metadata"
"""Where the ECS agent answers questions of its own host."""
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


class EcsAgent:
    """The node's own ECS agent, which knows what the node is called in its cluster.

    A task can't know that by itself: it is asked once, on the host's own address, when there is news to send.
    """

    def __init__(self, url: str = ECS_AGENT) -> None:
        self._url = url
        self._place: Place = {}

    def __call__(self) -> Place:
        """Cluster and container instance. Raises NotTold while the agent does not answer: it may be starting."""
        if not self._place:
            import urllib.request  # costs more to load than a check takes, and only this needs it

            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                with direct.open(self._url, timeout=3) as answer:
                    said = json.loads(answer.read(1 << 16))
                instance = str(said["ContainerInstanceArn"])
                cluster = str(said["Cluster"]).rpartition("/")[2]
            except (OSError, ValueError, LookupError, TypeError) as error:
                raise NotTold(f"the ECS agent at {self._url}: {type(error).__name__}: {error}") from error
            if not instance.startswith("arn:") or not cluster:
                raise NotTold(f"the ECS agent at {self._url} has not joined a cluster yet")
            self._place = {"cluster": cluster, "containerInstanceArn": instance}
        return self._place


class EventBridgeSink:
    """PutEvents, with short patience: the watch must not hang on a network."""

    def __init__(self, bus: str, place: Callable[[], Place]) -> None:
        """`place` tells where in a cluster this node is, and may raise NotTold."""
        self._bus = bus
        self._place = place
        self._client: Any = None

    def tell(self, events: Sequence[Event]) -> None:
        """Some may be refused and others taken; then all are offered again, and their ids tell them apart."""
        place = self._place()
        entries = [self._entry({**event, **place}) for event in events]
        try:
            client = self._connected()
            for start in range(0, len(entries), _AT_ONCE):
                answer = client.put_events(Entries=entries[start : start + _AT_ONCE])
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
        instance = event.get("containerInstanceArn")
        return {
            "Source": SOURCE,
            "DetailType": PULSE_TYPE if event.get("schema") == PULSE else DETAIL_TYPE,
            "Detail": json.dumps(event),
            "EventBusName": self._bus,
            "Time": event["at"],
            "Resources": [instance] if instance else [],
        }
