"""What a task is started with, on top of its definition: our variables, and what was asked for with the job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

#: How the ranks of an adopted job find each other is its own business.
_THEIRS = frozenset({"MASTER_ADDR", "MASTER_PORT", "NNODES", "CHECKPOINT_DIR", "IB_DEVICES", "NCCL_IB_HCA"})
#: An adopted job whose tasks were started without these has them from its image, or needs none.
_PROCESSES = frozenset({"WORLD_SIZE", "RANK", "LOCAL_RANK"})


def commanded(container: str, command: Sequence[str]) -> str:
    """A command that was given with the job runs instead of the one in the task definition."""
    given = {"containerOverrides": [{"name": container, "command": list(command)}]}
    return json.dumps(given) if command else ""


def overrides_of(first: str, container: str, env: Mapping[str, str], *, adopted: bool) -> dict[str, Any]:
    """Our variables on top of what a task is started with anyway, or was first started with by another tool."""
    overrides: dict[str, Any] = json.loads(first) if first else {}
    containers: list[dict[str, Any]] = overrides.setdefault("containerOverrides", [])
    mine = next((c for c in containers if c.get("name") == container), None)
    if mine is None:
        mine = {"name": container}
        containers.append(mine)
    merged = {pair["name"]: pair["value"] for pair in mine.get("environment", [])}
    for key, value in env.items():
        if not (adopted and (key in _PROCESSES or (key in _THEIRS and key in merged))):
            merged[key] = value
    mine["environment"] = [{"name": key, "value": value} for key, value in merged.items()]
    return overrides
