"""Lists in pages: nothing that can grow is ever given whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from ...control.records import RecordsBackend
from ...core.model import Job
from ...core.node_record import Node
from ...engine.reads import BEGINNING, place
from ...metrics.series import FILE, read_series
from .. import incidents
from ..context import Console
from ..live.snapshot import Snapshots

#: So many lines, of so many points each, are drawn at once.
MOST_SERIES, MOST_POINTS = 200, 720


def by_place(key: str, found: Sequence[Any], limit: int, after: int) -> dict[str, Any]:
    """A part of a list that only grows at its end."""
    end = after + limit
    return {key: list(found[after:end]), "next": end if end < len(found) else 0}


def by_name(
    key: str,
    found: Sequence[Any],
    limit: int,
    after: str,
    *,
    name: Callable[[Any], str],
    order: Callable[[str], Any] = str,
) -> dict[str, Any]:
    """A part of a list that is in the order of its names, after one of them, whether it is still there or not."""
    rest = [item for item in found if order(name(item)) > order(after)] if after else list(found)
    return {key: rest[:limit], "next": name(rest[limit - 1]) if len(rest) > limit else ""}


def plain(value: Any) -> Any:
    """What JSON can carry: a report may hold numbers that are none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def alerts(side: RecordsBackend, console: Console, limit: int, after: str) -> dict[str, Any]:
    """Messages, newest first. A place in the list is a time and a key, so new ones don't shift it."""
    found = side.notices(limit + 1, after or BEGINNING)
    nodes = console.snapshots.fleet(side).nodes
    told = incidents.with_states(side, found[:limit], nodes, console.acknowledged)
    return {"alerts": told, "next": place(found[limit - 1]) if len(found) > limit else ""}


def pending_orders(side: RecordsBackend) -> list[dict[str, Any]]:
    """Orders that are committed and not yet known to be carried out, by record and key."""
    nodes, jobs = side.waiting()
    records: list[tuple[str, Job | Node]] = [(f"node/{node.name}", node) for node in nodes]
    records += [(f"job/{job.id}", job) for job in jobs]
    found = [
        {
            "record": record,
            "key": order.key,
            "do": type(order.effect).__name__,
            "due": order.due.isoformat(),
            "tries": order.tries,
            "error": order.error,
        }
        for record, holder in records
        for order in holder.outbox
    ]
    return sorted(found, key=lambda order: (order["record"], order["key"]))


def numbers(side: RecordsBackend, snapshots: Snapshots) -> dict[str, Any]:
    """Counts of now."""
    nodes: dict[str, int] = {}
    gpus = {"all": 0, "free": 0, "in_use": 0, "out_of_use": 0}
    for node in snapshots.fleet(side).nodes:
        nodes[node["status"]] = nodes.get(node["status"], 0) + 1
        gpus["all"] += node["gpus"]
        gpus["in_use" if node["job_id"] else "free" if node["free"] else "out_of_use"] += node["gpus"]
    jobs = {status.value: count for status, count in side.count_live().items()}
    return {"nodes": nodes, "gpus": gpus, "jobs": jobs}


def history(
    side: RecordsBackend, console: Console, name: str, node: str, job: str, minutes: int
) -> dict[str, Any]:
    """Lines of one metric from the embedded control plane's own file."""
    if console.state is None:
        return {"name": name, "series": [], "more": False}
    labels = {key: value for key, value in (("node", node), ("job", job)) if value}
    now: datetime = side.now()
    found = read_series(
        console.state / FILE,
        name,
        labels,
        since=now.timestamp() - minutes * 60,
        step=max(10.0, minutes * 60 / MOST_POINTS),
    )
    shown = [
        {
            "labels": dict(one.labels),
            "points": [list(point) for point in one.points if math.isfinite(point[1])],
        }
        for one in found[:MOST_SERIES]
    ]
    return {"name": name, "series": shown, "more": len(found) > MOST_SERIES}
