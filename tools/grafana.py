"""Makes docs/grafana.json, the dashboard for Grafana (`make docs`).

The page is data: rows of panels, each with its questions to Prometheus. It names no server: the data source
is a variable, so the file can be imported anywhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

UID = "ecs-gpu-recovery"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_P = "gpu_recovery_"
_NODES = '{node=~"$node"}'
_JOBS = '{job=~"$job"}'
_WIDE = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture. `queries` are pairs of a question and the legend of its answers."""

    title: str
    text: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    stacked: bool = False
    text_mode: str = "auto"  #: of a single number: `name` shows the legend in its place
    #: From this value on it is yellow, from that on red.
    warn: float | None = None
    bad: float | None = None


def _stat(title: str, text: str, query: str, **more: Any) -> Panel:
    return Panel(title=title, text=text, queries=((query, ""),), kind="stat", width=4, height=4, **more)


FLEET = (
    _stat("Jobs that run", "Jobs in the state IN_PROGRESS.", f'{_P}jobs{{status="IN_PROGRESS"}}'),
    _stat(
        "Jobs in recovery",
        "Jobs that are checked, rebooted or restarted now.",
        f'sum({_P}jobs{{status=~"PENDING_HEALTHCHECK|PENDING_RESTART|RESTARTING"}})',
        warn=1,
    ),
    _stat("Jobs that failed", "Jobs that a person must look at.", f'{_P}jobs{{status="FAILED"}}', bad=1),
    _stat("Nodes free", "Nodes that a job can have now.", f'{_P}nodes{{status="AVAILABLE"}}'),
    _stat("Nodes that failed", "Nodes that a person must look at.", f'{_P}nodes{{status="FAILED"}}', bad=1),
    _stat("Nodes silent", "Nodes whose agent does not answer.", f"sum(1 - {_P}node_connected)", warn=1),
    Panel(
        title="Nodes by state",
        text="Every node is in exactly one state.",
        stacked=True,
        queries=((f"{_P}nodes > 0", "{{status}}"),),
    ),
    Panel(
        title="CPU of the machine",
        text="The machine that the control plane runs on.",
        unit="percentunit",
        queries=((f"{_P}host_cpu_ratio", "{{host}}"),),
    ),
    Panel(
        title="Memory and disk of the machine",
        text="Shares in use.",
        unit="percentunit",
        queries=(
            (f"{_P}host_memory_used_bytes / {_P}host_memory_total_bytes", "memory of {{host}}"),
            (f"{_P}host_disk_used_bytes / {_P}host_disk_total_bytes", "disk of {{host}}"),
        ),
    ),
    Panel(
        title="Disk traffic",
        text="All disks of the machine.",
        unit="Bps",
        queries=(
            (f"rate({_P}host_disk_read_bytes_total[1m])", "read on {{host}}"),
            (f"rate({_P}host_disk_written_bytes_total[1m])", "written on {{host}}"),
        ),
    ),
    Panel(
        title="Network traffic",
        text="All interfaces of the machine but loopback.",
        unit="Bps",
        queries=(
            (f"rate({_P}host_network_received_bytes_total[1m])", "received by {{host}}"),
            (f"rate({_P}host_network_sent_bytes_total[1m])", "sent by {{host}}"),
        ),
    ),
    Panel(
        title="Cores in use by node",
        text="What the processes of each node use.",
        queries=((f"{_P}node_cpu_cores{_NODES}", "{{node}}"),),
    ),
)
JOBS = (
    Panel(
        title="State of each job",
        text="One line per job that lives or ended a moment ago.",
        kind="table",
        queries=((f"{_P}job_status{_JOBS} * on(job) group_left(name) {_P}job_info", ""),),
    ),
    Panel(
        title="Step",
        text="A fall back is a restart from a checkpoint.",
        queries=((f"{_P}job_step{_JOBS}", "{{job}}"),),
    ),
    Panel(title="Loss", text="As the training reports it.", queries=((f"{_P}job_loss{_JOBS}", "{{job}}"),)),
    Panel(
        title="Effective training time",
        text="Time of the steps that count over all time so far.",
        unit="percentunit",
        queries=((f"{_P}job_effective_training_ratio{_JOBS}", "{{job}}"),),
    ),
    Panel(
        title="Where the time went",
        text="Time in each phase of the job.",
        unit="s",
        stacked=True,
        queries=((f"{_P}job_phase_seconds{_JOBS}", "{{job}} {{phase}}"),),
    ),
    Panel(
        title="Where the last week went",
        text="GPU hours of all jobs by what they were spent on, and how often a gang was stopped by a failure.",
        queries=(
            (f"{_P}week_gpu_hours", "{{kind}}"),
            (f"{_P}week_failures", "failures"),
        ),
    ),
    Panel(
        title="Attempts and lost steps",
        text="Restarts, and the steps they cost.",
        queries=(
            (f"{_P}job_attempt{_JOBS}", "attempt of {{job}}"),
            (f"{_P}job_lost_steps{_JOBS}", "steps lost by {{job}}"),
        ),
    ),
)
HEALTH = (
    _stat("GPUs missing", "GPUs that are off the bus.", f"count({_P}gpu_present == 0) or vector(0)", bad=1),
    _stat(
        "GPUs that ask for help",
        "The driver wants a reset, a reboot or a drain.",
        f"sum({_P}gpu_action_wanted)",
        bad=1,
    ),
    _stat("GPUs throttled", "The hardware holds their clocks down.", f"sum({_P}gpu_throttled)", warn=1),
    _stat(
        "Memory errors",
        "Uncorrectable errors since the drivers started.",
        f"sum({_P}gpu_ecc_uncorrectable_errors)",
        bad=1,
    ),
    _stat(
        "GPUs registered and not seen",
        "Expected less seen at the last boot.",
        f"sum({_P}node_gpus_expected - {_P}node_gpus_seen)",
        bad=1,
    ),
    _stat("Drivers that hang", "They answer no question.", f"sum(1 - {_P}node_driver_answers)", bad=1),
    Panel(
        title="Xid messages",
        text="In the kernel log, by code, within five minutes.",
        queries=((f"increase({_P}gpu_xid_errors_total{_NODES}[5m]) > 0", "{{node}} {{gpu}} Xid {{xid}}"),),
    ),
    Panel(
        title="GPU utilisation",
        text="Share of the time in which a kernel ran.",
        unit="percentunit",
        queries=((f"{_P}gpu_utilization_ratio{_NODES}", "{{node}} GPU {{gpu}}"),),
    ),
    Panel(
        title="GPU memory",
        text="Share in use.",
        unit="percentunit",
        queries=(
            (
                f"{_P}gpu_memory_used_bytes{_NODES} / {_P}gpu_memory_total_bytes{_NODES}",
                "{{node}} GPU {{gpu}}",
            ),
        ),
    ),
    Panel(
        title="GPU temperature",
        text="As the driver tells it.",
        unit="celsius",
        warn=80,
        bad=90,
        queries=((f"{_P}gpu_temperature_celsius{_NODES}", "{{node}} GPU {{gpu}}"),),
    ),
    Panel(
        title="GPU power",
        text="As the driver tells it.",
        unit="watt",
        queries=((f"{_P}gpu_power_watts{_NODES}", "{{node}} GPU {{gpu}}"),),
    ),
    Panel(
        title="GPU clock",
        text="One that is held down slows its whole gang.",
        unit="hertz",
        queries=((f"{_P}gpu_clock_hertz{_NODES}", "{{node}} GPU {{gpu}}"),),
    ),
    Panel(
        title="Memory of node processes",
        text="Resident memory.",
        unit="bytes",
        queries=((f"{_P}node_memory_bytes{_NODES}", "{{node}}"),),
    ),
)
RECOVERY = (
    _stat("Restarts", "Automatic restarts of all jobs so far.", f"{_P}job_restarts_total"),
    _stat("Reboots", "Reboots that were ordered so far.", f"sum({_P}node_reboots_total)"),
    _stat("Messages to people", "Everything that was sent so far.", f"{_P}notices_total"),
    _stat("Orders not carried out", "Committed and not yet known to be done.", f"{_P}outbox_orders"),
    _stat("Reboots that wait for a permit", "A person lets them go.", f"{_P}held_reboots", warn=1),
    _stat(
        "Oldest order is late by",
        "More than a minute means that something is stuck.",
        f"{_P}outbox_overdue_seconds",
        unit="s",
        warn=30,
        bad=60,
    ),
    Panel(
        title="Version",
        text="The version of the control plane.",
        kind="stat",
        width=4,
        height=4,
        queries=((f"{_P}build_info", "{{version}}"),),
        text_mode="name",
    ),
    Panel(
        title="Reboots by node",
        text="A node that is rebooted again and again should be taken out.",
        queries=((f"increase({_P}node_reboots_total{_NODES}[1h]) > 0", "{{node}}"),),
    ),
    Panel(
        title="How long a look at everything takes",
        text="Mean and slowest.",
        unit="s",
        queries=(
            (f"rate({_P}sweep_seconds_total[1m]) / rate({_P}sweeps_total[1m])", "mean"),
            (f"{_P}sweep_slowest_seconds", "slowest"),
        ),
    ),
    Panel(
        title="The metrics themselves",
        text="What sampling costs, and what it left out.",
        unit="s",
        queries=(
            (f"{_P}sample_seconds", "time to sample"),
            (f"{_P}sample_age_seconds", "age"),
            (f"rate({_P}sample_failures_total[5m])", "failures in {{part}}"),
        ),
    ),
    Panel(
        title="Series kept",
        text="Time series in the store of the last day.",
        height=6,
        queries=((f"{_P}series_kept", "series"),),
    ),
    Panel(
        title="State of each node",
        text="One line per node.",
        kind="table",
        height=6,
        width=16,
        queries=((f"{_P}node_status{_NODES}", ""),),
    ),
)
ROWS = {"Fleet": FLEET, "Jobs": JOBS, "GPU health": HEALTH, "Recovery": RECOVERY}


def dashboard() -> dict[str, Any]:
    """The file's content."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": _WIDE, "x": 0, "y": y}
        head = {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place}
        panels.append({**head, "collapsed": False, "panels": []})
        x, y, tall = 0, y + 1, 0
        for panel in row:
            if x + panel.width > _WIDE:
                x, y, tall = 0, y + tall, 0
            place = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            panels.append(_panel(panel, len(panels) + 1, place))
            x, tall = x + panel.width, max(tall, panel.height)
        y += tall
    return {
        "uid": UID,
        "title": "GPU recovery",
        "description": "Jobs, nodes and GPUs under the care of ECS GPU Recovery.",
        "tags": ["gpu", "training", "recovery"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    source: dict[str, Any] = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    source |= {"label": "Prometheus", "hide": 0, "current": {}}
    every = {"selected": True, "text": "All", "value": "$__all"}
    return [source] + [
        {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _SOURCE,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "hide": 0,
            "current": every,
            "definition": f"label_values({metric}, {name})",
            "query": {"query": f"label_values({metric}, {name})", "refId": name},
        }
        for name, label, metric in (
            ("node", "Node", f"{_P}node_connected"),
            ("job", "Job", f"{_P}job_attempt"),
        )
    ]


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    table = panel.kind == "table"
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [
        {"color": c, "value": v} for c, v in (("yellow", panel.warn), ("red", panel.bad)) if v is not None
    ]
    custom = {
        "fillOpacity": 30 if panel.stacked else 5,
        "lineWidth": 1,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        defaults |= {"custom": custom, "min": 0} if panel.unit == "percentunit" else {"custom": custom}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind] | ({"textMode": panel.text_mode} if panel.kind == "stat" else {}),
        "targets": [
            {
                "refId": "ABCDE"[i],
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": table or panel.kind == "stat",
                "range": panel.kind == "timeseries",
                "format": "table" if table else "time_series",
            }
            for i, (query, legend) in enumerate(panel.queries)
        ],
    }


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
}


def text() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
