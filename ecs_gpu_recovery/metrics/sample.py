"""One sample: every number at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .catalogue import METRICS, PREFIX

Labels = tuple[tuple[str, str], ...]
#: A metric's full name, and its labels in the catalogue's order.
Key = tuple[str, Labels]


@dataclass(slots=True)
class Sample:
    """Filled by the readers, then only read. `at` is in seconds since 1970."""

    at: float
    values: dict[Key, float] = field(default_factory=dict)

    def put(self, name: str, value: float | None, /, **labels: str) -> None:
        """Note a number. None means that it is not known, which is not the same as zero."""
        metric = METRICS[PREFIX + name]
        if set(labels) != set(metric.labels):
            raise ValueError(f"{metric.name} has the labels {metric.labels}, not {tuple(labels)}")
        if value is not None:
            self.values[metric.name, tuple((label, labels[label]) for label in metric.labels)] = float(value)

    def get(self, name: str, /, **labels: str) -> float | None:
        metric = METRICS[PREFIX + name]
        return self.values.get((metric.name, tuple((label, labels[label]) for label in metric.labels)))

    def by_metric(self) -> Iterator[tuple[str, list[tuple[Labels, float]]]]:
        """Every metric that has a value, in the catalogue's order."""
        groups: dict[str, list[tuple[Labels, float]]] = {}
        for (name, labels), value in self.values.items():
            groups.setdefault(name, []).append((labels, value))
        for name in METRICS:
            if name in groups:
                yield name, sorted(groups[name])


def matches(labels: Labels, wanted: Mapping[str, str]) -> bool:
    """Whether these labels have all the wanted values."""
    have = dict(labels)
    return all(have.get(name) == value for name, value in wanted.items())
