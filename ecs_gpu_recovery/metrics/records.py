"""Jobs, nodes and the control plane itself, as the records tell."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .. import __version__
from ..core.model import Job, JobStatus, NodeStatus
from ..core.node_record import Node
from ..engine.ports import Store
from ..ledger import Ledger, account
from ..local.attic import reboots_ordered
from ..local.controller import Looks
from ..local.reads import SqliteReads
from ..local.views import NodeView
from ..progress import WHOLE, Progress, Share, Step, effective_ratio, read_step
from ..report import phases
from .sample import Sample

#: How long a job that has ended stays on the page, so that its end is seen.
_AFTERGLOW = timedelta(minutes=15)
#: At most so many jobs have series of their own; the newest come first.
_MOST_JOBS = 200
#: A record that waits for anything at all waits for something before this.
_SOME_DAY = timedelta(days=3650)
#: The account of the last week, and how often it is made anew; of so many jobs at most.
_LEDGER_SPAN, _LEDGER_EVERY, _MOST_COUNTED = timedelta(days=7), timedelta(minutes=1), 2000
_MOST_BYTES = 4 * 1024 * 1024


class ProgressTail:
    """A job's progress.jsonl, read on as it grows: the report's numbers without reading it all again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._offset = 0
        self._rest = b""
        self._gaps: deque[float] = deque(maxlen=501)
        self._last: Step | None = None
        self._steps = self._lost = self._base = 0

    def read(self, share: Share = WHOLE) -> Progress:
        """`share`: which of the steps are the job's own."""
        try:
            with open(self._path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._forget()  # the file was begun anew
                file.seek(self._offset)
                data = file.read(_MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return Progress()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for step in filter(None, map(read_step, lines)):
            if share.has(step):
                self._take(step)
            elif share.before(step):
                self._base = step.number
        gaps = sorted(self._gaps)
        step_s = gaps[len(gaps) // 2] if gaps else 0.0
        loss = self._last.loss if self._last is not None else None
        return Progress(steps=self._steps, loss=loss, lost_steps=self._lost, step_s=step_s, base=self._base)

    def _take(self, step: Step) -> None:
        last = self._last
        if last is None and self._base:
            self._base = step.number - 1
        if last is not None and last.attempt == step.attempt and step.number > last.number:
            self._gaps.append((step.at - last.at).total_seconds() / (step.number - last.number))
        self._lost += step.number <= self._steps
        self._steps, self._last = max(self._steps, step.number), step


class RecordReader:
    """Reads what the control plane has written. It holds no lock and changes nothing."""

    def __init__(self, store: Store, reads: SqliteReads, looks: Looks) -> None:
        self._store, self._reads, self._looks = store, reads, looks
        self._tails: dict[str, ProgressTail] = {}
        self._ledger: tuple[datetime, Ledger] | None = None

    def read(self, sample: Sample) -> None:
        now = datetime.fromtimestamp(sample.at, UTC)
        nodes = self._store.nodes()
        jobs = self._jobs(now)
        for node in nodes:
            sample.put("node_status", 1, node=node.name, status=node.status.value)
        for job in jobs[:_MOST_JOBS]:
            self._read_job(sample, job, now)
        kept = {job.id for job in jobs}
        self._tails = {job_id: tail for job_id, tail in self._tails.items() if job_id in kept}
        self._read_counts(sample, nodes)
        _read_outbox(sample, [*jobs, *nodes], now)
        self._read_ledger(sample, now)

    def _read_ledger(self, sample: Sample, now: datetime) -> None:
        """Where the last week went. It reads every job of the week, so it is done once a minute."""
        if self._ledger is None or now - self._ledger[0] >= _LEDGER_EVERY:
            since = now - _LEDGER_SPAN
            lines = self._store.jobs(limit=_MOST_COUNTED).jobs
            ids = [line.id for line in lines if not line.status.final or line.updated_at >= since]
            self._ledger = now, account(self._reads.some_jobs(ids), now, since)
        ledger = self._ledger[1]
        for kind, hours in ledger.hours.items():
            sample.put("week_gpu_hours", hours, kind=kind)
        sample.put("week_failures", len(ledger.failures))

    def _jobs(self, now: datetime) -> list[Job]:
        """Those that live, that ended a moment ago, or that still have something to send. Newest first."""
        open_jobs = {*self._store.live_jobs(), *self._store.due_jobs(now + _SOME_DAY)}
        newest = self._store.jobs(limit=_MOST_JOBS).jobs
        ended = [line.id for line in newest if line.updated_at >= now - _AFTERGLOW]
        jobs = self._reads.some_jobs(open_jobs.union(ended))
        return sorted(jobs, key=lambda job: (job.created_at, job.id), reverse=True)

    def _read_job(self, sample: Sample, job: Job, now: datetime) -> None:
        sample.put("job_info", 1, job=job.id, name=job.spec.name)
        sample.put("job_status", 1, job=job.id, status=job.status.value)
        sample.put("job_attempt", job.attempt, job=job.id)
        spent: dict[str, float] = {}
        for phase in phases(job, now):
            spent[phase.name] = spent.get(phase.name, 0.0) + phase.seconds
        for name, seconds in spent.items():
            sample.put("job_phase_seconds", seconds, job=job.id, phase=name)
        if not job.spec.checkpoint_dir:
            return
        path = Path(job.spec.checkpoint_dir) / "progress.jsonl"
        done = self._tails.setdefault(job.id, ProgressTail(path)).read(Share.of(job))
        if done.steps:
            sample.put("job_step", done.steps, job=job.id)
            sample.put("job_loss", done.loss, job=job.id)
            sample.put("job_lost_steps", done.lost_steps, job=job.id)
            sample.put("job_effective_training_ratio", effective_ratio(job, done, now), job=job.id)

    def _read_counts(self, sample: Sample, nodes: Sequence[Node]) -> None:
        sample.put("build_info", 1, version=__version__)
        for job_status, count in self._reads.job_counts(JobStatus).items():
            sample.put("jobs", count, status=job_status.value)
        for node_status in NodeStatus:
            count = sum(node.status is node_status for node in nodes)
            sample.put("nodes", count, status=node_status.value)
        sample.put("held_reboots", sum(node.held for node in nodes))
        sample.put("job_restarts_total", self._reads.job_restarts())
        sample.put("notices_total", self._reads.notice_count())
        sample.put("sweeps_total", self._looks.count)
        sample.put("sweep_seconds_total", self._looks.seconds)
        sample.put("sweep_slowest_seconds", self._looks.take_slowest())


def _read_outbox(sample: Sample, records: Sequence[Job | Node], now: datetime) -> None:
    orders = [order for record in records for order in record.outbox]
    held = {record.reboot_key for record in records if isinstance(record, Node) and record.held}
    late = [(now - order.due).total_seconds() for order in orders if order.key not in held]
    sample.put("outbox_orders", len(orders))
    sample.put("outbox_overdue_seconds", max([0.0, *late]))


def read_views(sample: Sample, views: list[NodeView]) -> None:
    """What the folders of the nodes show."""
    for view in views:
        sample.put("node_connected", view.connected, node=view.name)
        sample.put("node_gpus_expected", view.gpus_expected, node=view.name)
        sample.put("node_gpus_seen", view.gpus_seen, node=view.name)
        if (view.folder / "reboots").is_dir():
            sample.put("node_reboots_total", reboots_ordered(str(view.folder)), node=view.name)
