"""Numbers of nodes over time, for the charts: from the embedded history; on AWS they are in CloudWatch."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from ...control.records import RecordsBackend
from ...core.errors import Transient
from ...core.model import Job
from ...health.watch.node_metrics import NAMESPACE
from ...metrics.catalogue import PREFIX
from ...metrics.series import FILE, Series, read_series
from ..context import ConsoleArg
from ..problems import RESPONSES
from .models import Answer

router = APIRouter(prefix="/api", responses=RESPONSES)
Name = Annotated[str, InPath(min_length=1, max_length=128)]
Seconds = Annotated[int, Query(ge=60, le=86_400, description="how far back to look")]
#: A chart shows about so many points of each line.
POINTS = 240


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: a metric, its unit as people read it, and what to multiply with to get there."""

    key: str
    metric: str
    unit: str
    scale: float = 1.0


_UTILISATION = Chart("GPU utilisation", "gpu_utilization_ratio", "%", 100.0)
_POWER = Chart("GPU power", "gpu_power_watts", "W")
_PROCESSORS = Chart("Processors in use", "node_cpu_cores", "")
CHARTS = (
    _UTILISATION,
    Chart("GPU memory", "gpu_memory_used_bytes", "GiB", 1 / (1 << 30)),
    Chart("GPU temperature", "gpu_temperature_celsius", "°C"),
    _POWER,
    _PROCESSORS,
    Chart("Memory", "node_memory_bytes", "GiB", 1 / (1 << 30)),
)
JOB_CHARTS = (_UTILISATION, _POWER, _PROCESSORS)


class LineView(Answer):
    """One line of a chart; null where there is no number."""

    label: str
    values: list[float | None]


class ChartView(Answer):
    """One chart: moments in seconds since 1970, and a value of every line for each."""

    title: str
    unit: str
    at: list[float]
    lines: list[LineView]


class ChartList(Answer):
    """`elsewhere` says where the numbers are if they are not here."""

    charts: list[ChartView]
    elsewhere: str


_SHAPE: dict[str, Any] = {"response_model": None, "responses": {200: {"model": ChartList}}}


Span = tuple[float, float | None]


def _last(seconds: int) -> Span:
    return time.time() - seconds, None


def _span(job: Job, seconds: int) -> Span:
    """Of a job that has ended its own time: what its nodes do now says nothing about it."""
    if job.status.final:
        return job.created_at.timestamp(), job.updated_at.timestamp()
    return _last(seconds)


def _read(state: Path, chart: Chart, labels: Mapping[str, str], span: Span) -> list[Series]:
    since, until = span
    seconds = (until or time.time()) - since
    try:
        return read_series(
            state / FILE,
            PREFIX + chart.metric,
            labels,
            since=since,
            until=until,
            step=max(10.0, seconds / POINTS),
        )
    except sqlite3.Error as exc:
        raise Transient(f"the history of metrics can't be read: {exc}") from exc


def _drawn(chart: Chart, lines: Iterable[tuple[str, Mapping[float, float]]]) -> dict[str, Any]:
    """All lines over one list of moments; where a line has no number, it has none."""
    found = [(label, points) for label, points in lines if points]
    moments = sorted({at for _, points in found for at in points})
    return {
        "title": chart.key,
        "unit": chart.unit,
        "at": moments,
        "lines": [
            {
                "label": label,
                "values": [round(points[at] * chart.scale, 3) if at in points else None for at in moments],
            }
            for label, points in found
        ],
    }


def _mean(series: Iterable[Series]) -> dict[float, float]:
    sums: dict[float, list[float]] = {}
    for line in series:
        for at, value in line.points:
            sums.setdefault(at, []).append(value)
    return {at: sum(values) / len(values) for at, values in sums.items()}


def power(state: Path | None, job: Job, since: datetime, until: datetime) -> dict[str, dict[float, float]]:
    """The mean power of each node's GPUs; nothing where no history is kept, or it can't be read now."""
    if state is None:
        return {}
    try:
        series = _read(state, _POWER, {}, (since.timestamp(), until.timestamp()))
    except Transient:
        return {}
    by_node: dict[str, list[Series]] = {}
    for line in series:
        by_node.setdefault(line.labels["node"], []).append(line)
    return {rank.node: _mean(by_node.get(rank.node, ())) for rank in job.ranks}


def _elsewhere(state: Path | None) -> str:
    return "" if state is not None else f"CloudWatch: {NAMESPACE}"


@router.get("/nodes/{name}/metrics", tags=["nodes"], **_SHAPE)
async def node_metrics(name: Name, console: ConsoleArg, seconds: Seconds = 3600) -> dict[str, Any]:
    """GPU and host numbers of a node over the last time, one line per GPU."""
    state = console.state

    def read(side: RecordsBackend) -> list[dict[str, Any]]:
        node = side.node(name).name
        if state is None:
            return []
        return [
            _drawn(
                chart,
                [
                    (f"GPU {line.labels['gpu']}" if "gpu" in line.labels else node, dict(line.points))
                    for line in _read(state, chart, {"node": node}, _last(seconds))
                ],
            )
            for chart in CHARTS
        ]

    return {"charts": await console.pool.ask(read), "elsewhere": _elsewhere(state)}


@router.get("/jobs/{job_id}/metrics", tags=["jobs"], **_SHAPE)
async def job_metrics(job_id: Name, console: ConsoleArg, seconds: Seconds = 3600) -> dict[str, Any]:
    """GPU numbers of the job's nodes, one line per node: over the last time, or over the time of a job that ended."""
    state = console.state

    def read(side: RecordsBackend) -> list[dict[str, Any]]:
        job = side.job(job_id)
        ranks, span = job.ranks[:32], _span(job, seconds)
        if state is None:
            return []
        found = []
        for chart in JOB_CHARTS:
            series = _read(state, chart, {}, span)
            lines = [(r.node, _mean(s for s in series if s.labels["node"] == r.node)) for r in ranks]
            found.append(_drawn(chart, lines))
        return found

    return {"charts": await console.pool.ask(read), "elsewhere": _elsewhere(state)}
