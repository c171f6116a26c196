"""Every metric that there is, with its kind, its labels and a sentence. All else is held against this.

The list itself is `catalogue.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

PREFIX = "gpu_recovery_"


class Kind(StrEnum):
    """How a metric behaves over time."""

    GAUGE = "gauge"  # goes up and down
    COUNTER = "counter"  # only grows, until its source starts again


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. Its name ends in its unit, and in `_total` if it is a counter."""

    name: str
    labels: tuple[str, ...]
    help: str

    @property
    def kind(self) -> Kind:
        return Kind.COUNTER if self.name.endswith("_total") else Kind.GAUGE


_LISTED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GROUPS = {
    title: [
        Metric(name=PREFIX + name, labels=tuple(row["labels"]), help=row["help"])
        for name, row in rows.items()
    ]
    for title, rows in _LISTED.items()
}
METRICS: dict[str, Metric] = {metric.name: metric for group in GROUPS.values() for metric in group}


def table() -> str:
    """The list of docs/metrics.md. What each means stands beside it at /metrics, so the page only names them."""
    lines = ["| of (labels) | metrics (more labels) |", "|---|---|"]
    for title, group in GROUPS.items():
        shared = [label for label in group[0].labels if all(label in metric.labels for metric in group)]
        named = [f"`{m.name}`" + _labels([one for one in m.labels if one not in shared]) for m in group]
        lines.append(f"| {title}{_labels(shared)} | {', '.join(named)} |")
    return "\n".join(lines) + "\n"


def _labels(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
