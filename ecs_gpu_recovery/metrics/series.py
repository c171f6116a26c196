"""The last day at ten-second resolution, in a file of its own.

A sample is first kept whole, as one row. When an hour is over, its samples are turned into one block per
metric: a column per series, bytes of equal weight side by side, compressed. A day of 64 nodes with 8 GPUs
each is some tens of megabytes.

The file is no record: nothing is decided from it. So it is written without waiting for the disk
(`synchronous=OFF`): a loss of power may cost it, and then a new one is begun. It never makes the disk flush,
which is what the recovery's own database waits for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sqlite3
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .blocks import Columns, Tick, packed, transposed, unpacked
from .catalogue import METRICS, Kind
from .sample import Key, Labels, Sample, matches

log = logging.getLogger("ecs_gpu_recovery")
FILE = "metrics.db"
RESOLUTION_S = 10
KEEP_S = 24 * 3600
#: Samples in one block: an hour of them.
BLOCK = 360
MAX_SERIES = 50_000
MAX_BYTES = 512 * 1024 * 1024
_VERSION = 1
_SCHEMA = (
    "CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT NOT NULL, labels TEXT NOT NULL,"
    " seen INTEGER NOT NULL, UNIQUE (name, labels))",
    "CREATE TABLE layout (digest TEXT PRIMARY KEY, ids BLOB NOT NULL)",
    "CREATE TABLE tick (slot INTEGER PRIMARY KEY, digest TEXT NOT NULL, frame BLOB NOT NULL)",
    "CREATE TABLE block (id INTEGER PRIMARY KEY, name TEXT NOT NULL, start INTEGER NOT NULL,"
    " body BLOB NOT NULL, UNIQUE (name, start))",
    f"PRAGMA user_version={_VERSION}",
)


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
        self._ids: dict[Key, int] = {}
        self._layout = ""
        self._conn = self._open()
        try:
            self._reload()
            self._last = self._newest()
        except BaseException:
            self._conn.close()
            raise
        self.refused = 0  #: numbers that were not kept because there were too many series

    def _open(self) -> sqlite3.Connection:
        """A file that is damaged, or of another version, makes room for a new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            conn = _connect(self.path)
            try:
                (version,) = conn.execute("PRAGMA user_version").fetchone()
                if version == _VERSION and conn.execute("PRAGMA quick_check(1)").fetchone() == ("ok",):
                    return conn
                if version == 0 and not conn.execute("SELECT 1 FROM sqlite_master").fetchone():
                    _make(conn)
                    return conn
            except BaseException:
                conn.close()
                raise
            conn.close()
            why = "it is damaged or of another version"
        except sqlite3.OperationalError:
            raise  # the disk, or a lock: no reason to throw anything away
        except sqlite3.DatabaseError as exc:
            why = str(exc)
        log.warning("the history of metrics starts anew", extra={"why": f"{self.path}: {why}"})
        for name in (self.path.name, f"{self.path.name}-wal", f"{self.path.name}-shm"):
            self.path.with_name(name).unlink(missing_ok=True)
        conn = _connect(self.path)
        _make(conn)
        return conn

    def close(self) -> None:
        self._conn.close()

    @property
    def count(self) -> int:
        """How many series are known."""
        return len(self._ids)

    def size(self) -> int:
        """Bytes in use: what the file would be without its free pages."""
        (pages,) = self._conn.execute("PRAGMA page_count").fetchone()
        (free,) = self._conn.execute("PRAGMA freelist_count").fetchone()
        (page,) = self._conn.execute("PRAGMA page_size").fetchone()
        return int((pages - free) * page)

    # -- writing --------------------------------------------------------------------------------

    def add(self, sample: Sample) -> bool:
        """Keep a sample, unless one of the same ten seconds is kept already."""
        slot = int(sample.at // RESOLUTION_S)
        if self._last - slot > BLOCK:  # the clock was set back: what lies in the future is no help to anyone
            self._forget_after(slot)
        if slot <= self._last:
            return False
        self._conn.execute("BEGIN IMMEDIATE")
        try:
            ids, values = self._columns(sample, slot)
            digest = self._layout_of(ids)
            frame = zlib.compress(values.tobytes(), 1)
            self._conn.execute("INSERT INTO tick VALUES (?,?,?)", (slot, digest, frame))
            (oldest,) = self._conn.execute("SELECT min(slot) FROM tick").fetchone()
            if oldest // BLOCK < slot // BLOCK:
                self._compact(slot // BLOCK * BLOCK)
                self._expire(slot)
            self._conn.execute("COMMIT")
        except BaseException:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
            self._reload()
            raise
        self._last = slot
        return True

    def _columns(self, sample: Sample, slot: int) -> tuple[array[int], array[float]]:
        found: list[tuple[int, float]] = []
        for key, value in sample.values.items():
            number = self._ids.get(key)
            if number is None:
                if len(self._ids) >= self._max_series:
                    self.refused += 1
                    continue
                number = self._new_series(key, slot)
            found.append((number, value))
        found.sort()
        return array("I", [number for number, _ in found]), array("d", [value for _, value in found])

    def _new_series(self, key: Key, slot: int) -> int:
        row = (key[0], json.dumps(key[1]), slot)
        number = self._conn.execute("INSERT INTO series (name, labels, seen) VALUES (?,?,?)", row).lastrowid
        assert number is not None
        self._ids[key] = number
        return number

    def _layout_of(self, ids: array[int]) -> str:
        """Most samples have the same series as the one before, so the list of them is kept once."""
        digest = hashlib.blake2b(ids.tobytes(), digest_size=12).hexdigest()
        if digest != self._layout:
            row = (digest, zlib.compress(ids.tobytes()))
            self._conn.execute("INSERT OR IGNORE INTO layout VALUES (?,?)", row)
            self._layout = digest
        return digest

    def _compact(self, before: int) -> None:
        """Turn every whole hour of samples into blocks."""
        names = {number: key[0] for key, number in self._ids.items()}
        (oldest,) = self._conn.execute("SELECT min(slot) FROM tick").fetchone()
        for start in range(oldest // BLOCK * BLOCK, before, BLOCK):
            ticks = list(_ticks(self._conn, start, start + BLOCK))
            if not ticks:
                continue
            slots, columns = transposed(ticks)
            by_name: dict[str, list[int]] = {}
            for number in columns:
                by_name.setdefault(names[number], []).append(number)
            for name, numbers in by_name.items():
                exact = name not in METRICS or METRICS[name].kind is Kind.COUNTER
                body = packed(start, slots, numbers, columns, exact=exact)
                self._conn.execute(
                    "INSERT OR REPLACE INTO block (name, start, body) VALUES (?,?,?)", (name, start, body)
                )
            seen = [(slots[-1], number) for number in columns]
            self._conn.executemany("UPDATE series SET seen=max(seen, ?) WHERE id=?", seen)
        self._conn.execute("DELETE FROM tick WHERE slot<?", (before,))
        self._conn.execute("DELETE FROM layout WHERE digest NOT IN (SELECT digest FROM tick)")
        self._layout = ""

    def _expire(self, slot: int) -> None:
        """What is older than a day goes; and the oldest goes earlier if the file would grow too large."""
        horizon = slot - self._keep // RESOLUTION_S
        self._conn.execute("DELETE FROM block WHERE start<?", (horizon - BLOCK + 1,))
        while self.size() > self._max_bytes:
            (oldest,) = self._conn.execute("SELECT min(start) FROM block").fetchone()
            if oldest is None:
                break
            self._conn.execute("DELETE FROM block WHERE start=?", (oldest,))
        gone = self._conn.execute("DELETE FROM series WHERE seen<?", (horizon - BLOCK,)).rowcount
        if gone:
            self._reload()

    def _forget_after(self, slot: int) -> None:
        self._conn.execute("DELETE FROM tick WHERE slot>=?", (slot,))
        self._conn.execute("DELETE FROM block WHERE start>=?", (slot // BLOCK * BLOCK,))
        self._last = self._newest(slot)

    def _newest(self, most: int = sys.maxsize) -> int:
        (tick,) = self._conn.execute("SELECT max(slot) FROM tick").fetchone()
        (block,) = self._conn.execute("SELECT max(start) FROM block").fetchone()
        ends = [tick, None if block is None else min(block + BLOCK - 1, most - 1)]
        return max((end for end in ends if end is not None), default=-1)

    def _reload(self) -> None:
        rows = self._conn.execute("SELECT id, name, labels FROM series")
        self._ids = {(name, _labels(text)): number for number, name, text in rows}
        self._layout = ""

    # -- reading --------------------------------------------------------------------------------

    def series(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        since: float | None = None,
        until: float | None = None,
        step: float | None = None,
    ) -> list[Series]:
        return read_series(self.path, name, labels, since, until, step)


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
    process may call it; there is nothing where no file is.
    """
    if name not in METRICS:
        raise ValueError(f"no metric {name}")
    if not path.exists():
        return []
    low = 0 if since is None else math.ceil(since / RESOLUTION_S)
    high = sys.maxsize // 2 if until is None else int(until // RESOLUTION_S)
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as conn:
        conn.execute("BEGIN")  # one moment, whatever is written meanwhile
        rows = conn.execute("SELECT id, labels FROM series WHERE name=?", (name,))
        wanted = {number: _labels(text) for number, text in rows if matches(_labels(text), labels or {})}
        sums: dict[int, dict[float, _Sum]] = {number: {} for number in wanted}
        for slots, columns in _stored(conn, name, wanted, low, high):
            stretches = _stretches(slots, low, high, max(step or 0.0, RESOLUTION_S))
            for number, column in columns.items():
                _add_up(sums[number], stretches, column)
    last = METRICS[name].kind is Kind.COUNTER
    return [
        Series(
            name=name,
            labels=dict(wanted[number]),
            points=tuple((at, one[2] if last else one[0] / one[1]) for at, one in found.items()),
        )
        for number, found in sorted(sums.items(), key=lambda item: wanted[item[0]])
        if found
    ]


def _stored(
    conn: sqlite3.Connection, name: str, wanted: Mapping[int, Labels], low: int, high: int
) -> Iterator[tuple[list[int], Columns]]:
    blocks = "SELECT body FROM block WHERE name=? AND start>? AND start<=? ORDER BY start"
    for (body,) in conn.execute(blocks, (name, low - BLOCK, high)):
        yield unpacked(body, wanted)
    ticks = list(_ticks(conn, low, high + 1))
    if ticks:
        yield transposed(ticks, wanted)


#: Of the values in one step: their sum, their number, the last.
_Sum = tuple[float, int, float]


def _stretches(slots: Sequence[int], low: int, high: int, step: float) -> list[tuple[float, int, int]]:
    """Which places of a column belong to which step: its time, its first place, the place behind its last."""
    found: list[tuple[float, int, int]] = []
    for place, slot in enumerate(slots):
        if low <= slot <= high:
            at = slot * RESOLUTION_S // step * step
            if found and found[-1][0] == at:
                found[-1] = (at, found[-1][1], place + 1)
            else:
                found.append((at, place, place + 1))
    return found


def _add_up(
    sums: dict[float, _Sum], stretches: Sequence[tuple[float, int, int]], column: array[float]
) -> None:
    """A step may begin in one block and end in the next."""
    for at, begin, end in stretches:
        values: Sequence[float] = column[begin:end]
        total = sum(values)
        if math.isnan(total):  # some are missing
            values = [value for value in values if not math.isnan(value)]
            if not values:
                continue
            total = sum(values)
        before = sums.get(at, (0.0, 0, 0.0))
        sums[at] = (before[0] + total, before[1] + len(values), values[-1])


# -- the format ---------------------------------------------------------------------------------


def _ticks(conn: sqlite3.Connection, low: int, high: int) -> Iterator[Tick]:
    layouts: dict[str, array[int]] = {}
    for slot, digest, frame in conn.execute(
        "SELECT * FROM tick WHERE slot>=? AND slot<? ORDER BY slot", (low, high)
    ):
        if digest not in layouts:
            (ids,) = conn.execute("SELECT ids FROM layout WHERE digest=?", (digest,)).fetchone()
            layouts[digest] = array("I", zlib.decompress(ids))
        yield slot, layouts[digest], array("d", zlib.decompress(frame))


def _connect(path: Path) -> sqlite3.Connection:
    conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    try:
        conn.execute("PRAGMA journal_mode=WAL")
        conn.execute("PRAGMA synchronous=OFF")
        conn.execute("PRAGMA journal_size_limit=4194304")
    except sqlite3.Error:
        conn.close()
        raise
    return conn


def _make(conn: sqlite3.Connection) -> None:
    conn.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        conn.execute(statement)
    conn.execute("COMMIT")


def _labels(text: str) -> Labels:
    return tuple((str(name), str(value)) for name, value in json.loads(text))
