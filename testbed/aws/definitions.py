"""Task definitions and clusters, kept here or by a local AWS; and what a definition asks of a node."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

from .requests import ApiError, short
from .shapes import Place


class Definitions(Protocol):
    def find(self, reference: str) -> dict[str, Any] | None:
        """By ARN, family:revision, or family alone, which is its newest."""

    def has_cluster(self, name: str) -> bool: ...


class OwnDefinitions:
    """The few actions on task definitions and clusters that a fleet needs."""

    def __init__(self, place: Place, now: Callable[[], float]) -> None:
        self._place, self._now = place, now
        self._families: dict[str, list[dict[str, Any]]] = {}
        self._clusters: set[str] = {"default"}

    def find(self, reference: str) -> dict[str, Any] | None:
        family, _, revision = short(reference).partition(":")
        known = self._families.get(family, [])
        if revision:
            return next((one for one in known if str(one["revision"]) == revision), None)
        return next((one for one in reversed(known) if one["status"] == "ACTIVE"), None)

    def has_cluster(self, name: str) -> bool:
        return name in self._clusters

    def create_cluster(self, data: dict[str, Any]) -> dict[str, Any]:
        name = data.get("clusterName", "default")
        self._clusters.add(name)
        return {"cluster": {"clusterArn": self._place.cluster(name), "clusterName": name, "status": "ACTIVE"}}

    def register(self, data: dict[str, Any]) -> dict[str, Any]:
        rows = data.get("containerDefinitions") or []
        if not rows:
            raise ApiError(
                "ClientException", "TaskDefinition must contain at least one container definition."
            )
        known = self._families.setdefault(data["family"], [])
        revision = len(known) + 1
        defaults = {
            "networkMode": "bridge",
            "volumes": [],
            "placementConstraints": [],
            "compatibilities": ["EXTERNAL", "EC2"],
        }
        definition = {
            **defaults,
            **{name: copy.deepcopy(value) for name, value in data.items() if name != "tags"},
            "containerDefinitions": [{"cpu": 0, "essential": True, **copy.deepcopy(row)} for row in rows],
            "taskDefinitionArn": self._place.arn("task-definition", f"{data['family']}:{revision}"),
            "revision": revision,
            "status": "ACTIVE",
            "registeredAt": self._now(),
        }
        known.append(definition)
        return {"taskDefinition": copy.deepcopy(definition), "tags": data.get("tags", [])}

    def describe(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"taskDefinition": copy.deepcopy(self._known(data)), "tags": []}

    def deregister(self, data: dict[str, Any]) -> dict[str, Any]:
        definition = self._known(data)
        definition["status"] = "INACTIVE"
        return {"taskDefinition": copy.deepcopy(definition)}

    def _known(self, data: dict[str, Any]) -> dict[str, Any]:
        found = self.find(data["taskDefinition"])
        if found is None:
            raise ApiError("ClientException", "Unable to describe task definition.")
        return found


class Needs:
    """What a task definition with its overrides asks of a node."""

    def __init__(self, definition: dict[str, Any], overrides: dict[str, Any]) -> None:
        changes = {one.get("name"): one for one in overrides.get("containerOverrides", ())}
        rows = definition["containerDefinitions"]
        self.awsvpc = definition.get("networkMode") == "awsvpc"
        self.per_container = [_gpus(changes.get(row["name"], {}), row) for row in rows]
        self.gpus = sum(self.per_container)
        self.cpu = int(
            overrides.get("cpu") or definition.get("cpu") or sum(int(row.get("cpu") or 0) for row in rows)
        )
        own = sum(int(row.get("memoryReservation") or row.get("memory") or 0) for row in rows)
        self.memory = int(overrides.get("memory") or definition.get("memory") or own)
        host = definition.get("networkMode") == "host"
        ports = [mapping for row in rows for mapping in row.get("portMappings", ())]
        fixed = [p.get("hostPort") or (p.get("containerPort") if host else None) for p in ports]
        self.ports = frozenset(str(port) for port in fixed if port)


def _gpus(change: dict[str, Any], row: dict[str, Any]) -> int:
    asked = change.get("resourceRequirements") or row.get("resourceRequirements") or ()
    return sum(int(one["value"]) for one in asked if one.get("type") == "GPU")
