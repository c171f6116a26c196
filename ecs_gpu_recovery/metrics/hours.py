"""What the GPUs of nodes did in each hour of the last day, in the measures by which a gang is compared."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from statistics import fmean

from ..core.errors import Transient
from ..slow_nodes import BUSY, CLOCK, HOUR, POWER, Hours
from .catalogue import PREFIX
from .series import FILE, read_series

#: Each measure with its metric, and what to multiply with to get there.
_METRICS = {
    BUSY: ("gpu_utilization_ratio", 100.0),
    POWER: ("gpu_power_watts", 1.0),
    CLOCK: ("gpu_clock_hertz", 1e-6),
}


def node_hours(state: Path, nodes: Collection[str], since: datetime, until: datetime, busy: float) -> Hours:
    """Of all GPUs of a node the power and the use; of those that are used, the slowest clock."""
    told = {measure: _by_node(state, measure, nodes, since, until) for measure in _METRICS}
    found: dict[str, dict[str, dict[float, float]]] = {measure: {} for measure in _METRICS}
    for node, hours in told[BUSY].items():
        for at, use in hours.items():
            watts, clocks = (told[measure].get(node, {}).get(at, {}) for measure in (POWER, CLOCK))
            used = [clock for gpu, clock in clocks.items() if use.get(gpu, 0.0) >= busy]
            found[BUSY].setdefault(node, {})[at] = fmean(use.values())
            if watts:
                found[POWER].setdefault(node, {})[at] = sum(watts.values())
            if used:
                found[CLOCK].setdefault(node, {})[at] = min(used)
    return found


def _by_node(
    state: Path, measure: str, nodes: Collection[str], since: datetime, until: datetime
) -> dict[str, dict[float, dict[str, float]]]:
    """By node and hour, the mean of each GPU."""
    metric, scale = _METRICS[measure]
    begin, end = (at.timestamp() // HOUR * HOUR for at in (since, until))
    try:
        series = read_series(state / FILE, PREFIX + metric, since=begin, until=end - 1, step=HOUR)
    except sqlite3.Error as exc:
        raise Transient(f"the history of metrics can't be read: {exc}") from exc
    found: defaultdict[str, dict[float, dict[str, float]]] = defaultdict(dict)
    for line in series:
        if line.labels["node"] in nodes:
            for at, value in line.points:
                found[line.labels["node"]].setdefault(at, {})[line.labels["gpu"]] = value * scale
    return found
