"""Numbers of nodes over time, for the charts: from the embedded history, or, on AWS, from CloudWatch."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query

from ...control.backend import NotAllowed
from ...control.records import RecordsBackend
from ...core.errors import Transient
from ...core.model import Job
from ...health.watch.node_metrics import NAMESPACE
from ...metrics.catalogue import PREFIX
from ...metrics.series import FILE, Series, read_series
from ..context import ConsoleArg
from ..problems import RESPONSES
from .models import Answer
from .routes import Name, _shape

router = APIRouter(prefix="/api", responses=RESPONSES)
Seconds = Annotated[int, Query(ge=60, le=86_400, description="how far back to look")]
#: A chart shows about so many points of each line.
POINTS = 240
#: And so many lines.
MOST_LINES = 32


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
_MIB = 1 / (1 << 20)
#: What the watch tells CloudWatch: one number for all GPUs of a node, and shares where the history has amounts.
_AWS_POWER = Chart("GPU power", "GpuPower", "W")
AWS_CHARTS = (
    Chart("GPU utilisation", "GpuUtilization", "%"),
    Chart("GPU memory", "GpuMemory", "%"),
    Chart("GPU temperature", "GpuTemperature", "°C"),
    _AWS_POWER,
    Chart("Processors in use", "Cpu", "%"),
    Chart("Memory", "Memory", "%"),
    Chart("Disk in use", "Disk", "%"),
    Chart("Network received", "NetworkReceived", "MiB/min", _MIB),
    Chart("Network sent", "NetworkSent", "MiB/min", _MIB),
)
AWS_JOB_CHARTS = tuple(chart for chart in AWS_CHARTS if chart.key in {one.key for one in JOB_CHARTS})


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


def power(
    state: Path | None, side: RecordsBackend, job: Job, since: datetime, until: datetime
) -> Mapping[str, Mapping[float, float]]:
    """The power of each node's GPUs; nothing where none is kept, or it can't be read now."""
    span = since.timestamp(), until.timestamp()
    try:
        if state is None:
            found = _from_service(side, (_AWS_POWER,), _places(job), span)
            return found[0] if found else {}
        series = _read(state, _POWER, {}, span)
    except (NotAllowed, Transient):
        return {}
    by_node: dict[str, list[Series]] = {}
    for line in series:
        by_node.setdefault(line.labels["node"], []).append(line)
    return {rank.node: _mean(by_node.get(rank.node, ())) for rank in job.ranks}


def _from_service(
    side: RecordsBackend, charts: Sequence[Chart], nodes: Mapping[str, str], span: Span
) -> list[dict[str, Mapping[float, float]]] | None:
    """For each chart a line per node, from the service that keeps them for this side; None if there is none."""
    begin, end = span[0], span[1] or time.time()
    since, until = (datetime.fromtimestamp(at, UTC) for at in (begin, end))
    found = side.numbers([chart.metric for chart in charts], nodes, since, until)
    if found is None:
        return None
    return [{name: found[chart.metric].get(name, {}) for name in nodes} for chart in charts]


def _on_aws(
    side: RecordsBackend, charts: Sequence[Chart], nodes: Mapping[str, str], span: Span
) -> dict[str, Any]:
    """Who may not read the numbers is told where they are."""
    try:
        lines = _from_service(side, charts, nodes, span)
    except NotAllowed:
        lines = None
    if lines is None:
        return {"charts": [], "elsewhere": f"CloudWatch: {NAMESPACE}"}
    drawn = [_drawn(chart, of_nodes.items()) for chart, of_nodes in zip(charts, lines, strict=True)]
    return {"charts": drawn, "elsewhere": ""}


@router.get("/nodes/{name}/metrics", tags=["nodes"], **_shape(ChartList))
async def node_metrics(name: Name, console: ConsoleArg, seconds: Seconds = 3600) -> dict[str, Any]:
    """GPU and host numbers of a node over the last time; one line per GPU where each GPU's are kept."""
    state = console.state

    def read(side: RecordsBackend) -> dict[str, Any]:
        node = side.node(name)
        if state is None:
            return _on_aws(side, AWS_CHARTS, {node.name: node.instance}, _last(seconds))
        drawn = [
            _drawn(
                chart,
                [
                    (f"GPU {line.labels['gpu']}" if "gpu" in line.labels else node.name, dict(line.points))
                    for line in _read(state, chart, {"node": node.name}, _last(seconds))
                ],
            )
            for chart in CHARTS
        ]
        return {"charts": drawn, "elsewhere": ""}

    return await console.pool.ask(read)


@router.get("/jobs/{job_id}/metrics", tags=["jobs"], **_shape(ChartList))
async def job_metrics(job_id: Name, console: ConsoleArg, seconds: Seconds = 3600) -> dict[str, Any]:
    """GPU numbers of the job's nodes, one line per node: over the last time, or over the time of a job that ended."""
    state = console.state

    def read(side: RecordsBackend) -> dict[str, Any]:
        job = side.job(job_id)
        ranks, span = job.ranks[:MOST_LINES], _span(job, seconds)
        if state is None:
            return _on_aws(side, AWS_JOB_CHARTS, _places(job), span)
        found = []
        for chart in JOB_CHARTS:
            series = _read(state, chart, {}, span)
            lines = [(r.node, _mean(s for s in series if s.labels["node"] == r.node)) for r in ranks]
            found.append(_drawn(chart, lines))
        return {"charts": found, "elsewhere": ""}

    return await console.pool.ask(read)


def _places(job: Job) -> dict[str, str]:
    return {rank.node: rank.instance for rank in job.ranks[:MOST_LINES]}
