"""The thread that takes samples. The recovery never waits for it; what goes wrong here is only logged."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..local.controller import Looks
from ..local.views import NodeView
from ..local.wiring import Embedded
from .gpus import GpuReader
from .host import HostReader, NodeUse
from .records import RecordReader, read_views
from .sample import Sample
from .series import FILE, SeriesStore

log = logging.getLogger("ecs_gpu_recovery")
INTERVAL_S = 5.0
#: How long the end of the control plane waits for a sample that is being taken.
_PATIENCE_S = 5.0


class Collector:
    """Use it as a context manager around the time in which the control plane runs."""

    def __init__(self, parts: Embedded, looks: Looks, *, interval_s: float = INTERVAL_S) -> None:
        self.path: Path = parts.state / FILE
        self.latest: Sample | None = None  #: replaced whole, never changed
        self._parts, self._interval_s = parts, interval_s
        self._host = HostReader(parts.state)
        self._use = NodeUse(parts.state / "nodes")
        self._gpus = GpuReader()
        self._records = RecordReader(parts.store, parts.reads, looks)
        self._store: SeriesStore | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._failures: dict[str, int] = {}
        self._said: dict[str, str] = {}
        self._took_s: float | None = None

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self.latest = self.sample()
                self._try("store", partial(self._keep, self.latest))
                self._took_s = time.monotonic() - began
                self._stop.wait(max(0.1, self._interval_s - self._took_s))
        finally:
            self._gpus.close()
            if self._store is not None:
                self._store.close()

    def sample(self) -> Sample:
        """Everything that can be told now. A part that fails leaves the others alone."""
        sample = Sample(time.time())
        views: list[NodeView] = []
        self._try("views", lambda: views.extend(self._parts.cluster.nodes()))
        self._try("host", lambda: self._host.read(sample))
        self._try("nodes", lambda: read_views(sample, views))
        self._try("use", lambda: self._use.read(sample, [view.name for view in views]))
        self._try("gpus", lambda: self._gpus.read(sample, views))
        self._try("records", lambda: self._records.read(sample))
        sample.put("sample_seconds", self._took_s)
        sample.put("series_kept", self._store.count if self._store else None)
        for part, count in self._failures.items():
            sample.put("sample_failures_total", count, part=part)
        return sample

    def _keep(self, sample: Sample) -> None:
        """The file is opened here, so that a slow disk delays no start."""
        if self._store is None:
            self._store = SeriesStore(self.path)
        try:
            self._store.add(sample)
        except sqlite3.DatabaseError as exc:
            if not isinstance(exc, sqlite3.OperationalError):  # damaged: the next sample begins a new one
                self._store.close()
                self._store = None
            raise

    def _try(self, part: str, work: Callable[[], None]) -> None:
        """A fault is told once, until it is another. Neither a bad gauge nor a full disk ends the thread."""
        try:
            work()
            self._said.pop(part, None)
        except Exception as exc:
            self._failures[part] = self._failures.get(part, 0) + 1
            if self._said.get(part) != str(exc):
                log.warning("metrics left out", extra={"what": part, "why": str(exc)}, exc_info=True)
            self._said[part] = str(exc)
