"""Things that are no events, and events with every field spoiled."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any

NOT_EVENTS: list[Any] = [
    None,
    [],
    {},
    "",
    "text",
    7,
    1.5,
    True,
    {"detail": None},
    {"detail-type": "ECS Task State Change"},
    {"source": "aws.ecs"},
    {"source": 5, "detail-type": []},
    [{"source": "aws.ecs"}],
    {"source": "aws.ecs", "detail-type": "ECS Task State Change"},
]
JUNK: list[Any] = [
    None,
    "",
    [],
    {},
    7,
    -1.5,
    True,
    "x" * 5000,
    "\ud800",
    ["a", None, {}],
    {"a": {"b": []}},
    10**400,
    "2026-13-45T99:99:99Z",
]


def one_of_each(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last of each kind and status."""
    kinds: dict[tuple[str, str], dict[str, Any]] = {}
    for event in events:
        status = event["detail"].get("lastStatus") or event["detail"].get("status") or ""
        kinds[event["detail-type"], status] = event
    return list(kinds.values())


def spoiled(event: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every field missing, empty, and of every wrong type; then in parts of `detail`; then from elsewhere."""
    places: list[list[Any]] = [[key] for key in event]
    if isinstance(event["detail"], dict):
        places += [["detail", key] for key in event["detail"]]
        for key in ("containers", "overrides", "registeredResources", "healthChecks", "parameters"):
            places += [["detail", key, *path] for path in _paths(event["detail"].get(key))]
    for path in places:
        for value in JUNK:
            made = copy.deepcopy(event)
            _at(made, path[:-1])[path[-1]] = value
            yield f"{path} is {str(value)[:20]!r}", made
        made = copy.deepcopy(event)
        del _at(made, path[:-1])[path[-1]]
        yield f"no {path}", made
    yield "another account", json.loads(json.dumps(event).replace("123456789012", "999999999999"))
    yield "another cluster", json.loads(json.dumps(event).replace("gpus", "gpuz"))


def noisy(event: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The same event with things around it that nobody asked for, up to the size that EventBridge takes."""
    full = 256 * 1024 - 10_000
    yield "a large field", event | {"detail": event["detail"] | {"noise": "x" * full}}
    yield "many fields", event | {"detail": event["detail"] | {f"noise-{i}": i for i in range(5000)}}
    yield "many resources", event | {"resources": [*event["resources"], *["arn:aws:s3:::noise"] * 2000]}
    yield "a deep field", event | {"detail": event["detail"] | {"noise": json.loads("[" * 900 + "]" * 900)}}
    yield "odd characters", event | {"noise": "\x00\u202e\ud83d\ude00 \\" * 100}
    for version in ("1", "99", "2.0-beta"):
        yield f"an envelope of version {version}", event | {"version": version}


def _paths(value: Any) -> Iterator[list[Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield [key]
        yield from ([key, *path] for path in _paths(inner))


def _at(thing: Any, path: list[Any]) -> Any:
    for key in path:
        thing = thing[key]
    return thing
