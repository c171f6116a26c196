"""The last day at ten-second resolution, in a file of its own: one row for each metric and moment.

A row holds the metric's numbers of that moment, one after the other: every series of a metric has a place. Most
numbers are like their neighbours, so a row is compressed: a day of 64 nodes with 8 GPUs each takes about 40 MB. One row
for each number would take 850 MB.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, groupby, zip_longest
from pathlib import Path

from ..scratch import open_scratch
from .catalogue import METRICS, Kind
from .sample import Labels, Sample, matches

FILE = "metrics.db"
RESOLUTION_S = 10
KEEP_S = 24 * 3600
#: Samples in an hour. Once in so many the store looks for what is too old.
HOUR = 3600 // RESOLUTION_S
MAX_SERIES = 50_000
MAX_BYTES = 512 * 1024 * 1024
_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS metric (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS series (
  metric INTEGER NOT NULL, place INTEGER NOT NULL, labels TEXT NOT NULL, seen INTEGER NOT NULL,
  PRIMARY KEY (metric, place), UNIQUE (metric, labels)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS frame (
  slot INTEGER NOT NULL, metric INTEGER NOT NULL, numbers BLOB NOT NULL, PRIMARY KEY (slot, metric))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a graph: seconds since 1970 and values, oldest first."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class SeriesStore:
    """One writer, any number of readers, in this process or another."""

    def __init__(
        self, path: Path, *, keep_s: int = KEEP_S, max_series: int = MAX_SERIES, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path, self._keep, self._max_series, self._max_bytes = path, keep_s, max_series, max_bytes
        self._metrics: dict[str, int] = {}
        self._places: dict[str, dict[Labels, int]] = {}
        self._conn = open_scratch(path, _VERSION, _SCHEMA)
        try:
            self._reload()
            self._last = self._newest()
        except BaseException:
            self._conn.close()
            raise
        self.refused = 0  #: numbers that were not kept because there were too many series

    def close(self) -> None:
        self._conn.close()

    @property
    def count(self) -> int:
        """How many series are known."""
        return sum(map(len, self._places.values()))

    def size(self) -> int:
        """Bytes in use: what the file would be without its free pages."""
        (pages,) = self._conn.execute("PRAGMA page_count").fetchone()
        (free,) = self._conn.execute("PRAGMA freelist_count").fetchone()
        (page,) = self._conn.execute("PRAGMA page_size").fetchone()
        return int((pages - free) * page)

    def add(self, sample: Sample) -> bool:
        """Keep a sample, unless one of the same ten seconds is kept already."""
        slot = int(sample.at // RESOLUTION_S)
        if self._last - slot > HOUR:  # the clock was set back: what lies in the future is no help to anyone
            self._conn.execute("DELETE FROM frame WHERE slot>=?", (slot,))
            self._last = self._newest()
        if slot <= self._last:
            return False
        self._conn.execute("BEGIN IMMEDIATE")
        try:
            for name, values in sample.by_metric():
                numbers = self._numbers(name, values, slot)
                row = (slot, self._metrics[name], zlib.compress(numbers.tobytes()))
                self._conn.execute("INSERT INTO frame VALUES (?,?,?)", row)
            if slot // HOUR != self._last // HOUR:
                self._prune(sample, slot)
            self._conn.execute("COMMIT")
        except BaseException:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
            self._reload()
            raise
        self._last = slot
        return True

    def _numbers(self, name: str, values: Sequence[tuple[Labels, float]], slot: int) -> array[float]:
        """Each number at the place of its series; "not a number" where a series has none now."""
        if name not in self._metrics:
            made = self._conn.execute("INSERT INTO metric (name) VALUES (?) RETURNING id", (name,))
            (self._metrics[name],) = made.fetchone()
        places = self._places.setdefault(name, {})
        if new := [labels for labels, _ in values if labels not in places]:
            self._add_series(name, new, slot)
        found = {places[labels]: value for labels, value in values if labels in places}
        return array("d", [found.get(place, math.nan) for place in range(max(found, default=-1) + 1)])

    def _add_series(self, name: str, new: Sequence[Labels], slot: int) -> None:
        """Each gets the first free place of its metric, while there is room for more series."""
        places = self._places[name]
        taken, room = set(places.values()), max(0, self._max_series - self.count)
        free = (place for place in count() if place not in taken)
        for labels, place in zip(new[:room], free, strict=False):
            row = (self._metrics[name], place, json.dumps(labels), slot)
            self._conn.execute("INSERT INTO series VALUES (?,?,?,?)", row)
            places[labels] = place
        self.refused += len(new[room:])

    def _prune(self, sample: Sample, slot: int) -> None:
        """What is older than a day goes; and the oldest goes earlier if the file would grow too large."""
        seen = [(slot, self._metrics[name], self._places[name].get(labels)) for name, labels in sample.values]
        self._conn.executemany("UPDATE series SET seen=? WHERE metric=? AND place=?", seen)
        horizon = slot - self._keep // RESOLUTION_S
        self._conn.execute("DELETE FROM frame WHERE slot<?", (horizon,))
        while self.size() > self._max_bytes:
            (oldest,) = self._conn.execute("SELECT min(slot) FROM frame").fetchone()
            if oldest is None:
                break
            self._conn.execute("DELETE FROM frame WHERE slot<?", (oldest + HOUR,))
        # A series may have lived on for an hour after it was last noted. Its place is free once no row holds it.
        if self._conn.execute("DELETE FROM series WHERE seen<?", (horizon - HOUR,)).rowcount:
            self._reload()

    def _newest(self) -> int:
        (slot,) = self._conn.execute("SELECT max(slot) FROM frame").fetchone()
        return -1 if slot is None else int(slot)

    def _reload(self) -> None:
        self._metrics = dict(self._conn.execute("SELECT name, id FROM metric"))
        self._places = {name: {} for name in self._metrics}
        rows = self._conn.execute("SELECT name, labels, place FROM series JOIN metric ON id=metric")
        for name, text, place in rows:
            self._places[name][_labels(text)] = place


def read_series(
    path: Path,
    name: str,
    labels: Mapping[str, str] | None = None,
    since: float | None = None,
    until: float | None = None,
    step: float | None = None,
) -> list[Series]:
    """Every series of a metric that has these labels, from `since` up to and with `until`.

    With `step`, each point stands for so many seconds: a gauge's mean, a counter's last value. Any thread or
    process may call it; there is nothing where no file is, or one without its tables yet.
    """
    if name not in METRICS:
        raise ValueError(f"no metric {name}")
    if not path.exists():
        return []
    low = 0 if since is None else math.ceil(since / RESOLUTION_S)
    high = sys.maxsize // 2 if until is None else int(until // RESOLUTION_S)
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as conn:
        conn.execute("BEGIN")  # one moment, whatever is written meanwhile
        if conn.execute("SELECT 1 FROM sqlite_master WHERE name='frame'").fetchone() is None:
            return []  # its writer is about to make the tables, this one last
        rows = conn.execute("SELECT place, labels FROM series JOIN metric ON id=metric WHERE name=?", (name,))
        known = ((_labels(text), place) for place, text in rows)
        wanted = sorted((have, place) for have, place in known if matches(have, labels or {}))
        points: dict[int, list[tuple[float, float]]] = {place: [] for _, place in wanted}
        for at, columns in _columns(conn, name, low, high, max(step or 0.0, RESOLUTION_S)):
            for place, found in points.items():
                values = columns[place] if place < len(columns) else ()
                if math.isnan(sum(values)):  # some are missing
                    values = tuple(value for value in values if not math.isnan(value))
                if values:
                    last = METRICS[name].kind is Kind.COUNTER
                    found.append((at, values[-1] if last else sum(values) / len(values)))
    return [
        Series(name=name, labels=dict(have), points=tuple(points[place]))
        for have, place in wanted
        if points[place]
    ]


def _columns(
    conn: sqlite3.Connection, name: str, low: int, high: int, step: float
) -> Iterator[tuple[float, list[tuple[float, ...]]]]:
    """For each step, the numbers of each place in it."""
    rows = conn.execute(
        "SELECT slot, numbers FROM frame JOIN metric ON id=metric"
        " WHERE name=? AND slot BETWEEN ? AND ? ORDER BY slot",
        (name, low, high),
    )
    for at, some in groupby(rows, key=lambda row: row[0] * RESOLUTION_S // step * step):
        frames = [array("d", zlib.decompress(numbers)) for _, numbers in some]
        yield at, list(zip_longest(*frames, fillvalue=math.nan))


def _labels(text: str) -> Labels:
    return tuple((str(name), str(value)) for name, value in json.loads(text))
