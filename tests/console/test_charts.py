"""Numbers of nodes over time, as the charts get them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from ecs_gpu_recovery.console.api import charts
from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.metrics.catalogue import METRICS, PREFIX
from ecs_gpu_recovery.metrics.sample import Sample
from ecs_gpu_recovery.metrics.series import FILE, SeriesStore
from tests.console.helpers import console, served, still_state, submitted
from tests.core.story import MINUTE, T0, a_running_job


def history(state: Path, nodes: int = 4) -> None:
    """Two minutes of numbers: GPU 1 is ten points busier than GPU 0, and every node ten more than the last."""
    store = SeriesStore(state / FILE)
    now = time.time()
    for back in range(120, -1, -10):
        sample = Sample(at=now - back)
        for number in range(1, nodes + 1):
            for gpu in (0, 1):
                sample.put(
                    "gpu_utilization_ratio",
                    0.1 * number + 0.1 * gpu,
                    node=f"node-{number}",
                    gpu=str(gpu),
                )
            sample.put("node_cpu_cores", 1.5, node=f"node-{number}")
        store.add(sample)
    store.close()


def test_a_node_shows_a_line_for_each_gpu(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    history(state)
    with console(state) as client:
        found = client.get("/api/nodes/node-2/metrics", params={"seconds": 600}).json()
    busy = next(chart for chart in found["charts"] if chart["title"] == "GPU utilisation")
    assert (busy["unit"], [line["label"] for line in busy["lines"]]) == ("%", ["GPU 0", "GPU 1"])
    assert [line["values"][-1] for line in busy["lines"]] == [
        pytest.approx(20, 0.01),
        pytest.approx(30, 0.01),
    ]
    assert len(busy["at"]) >= 10
    assert busy["at"] == sorted(busy["at"])
    assert found["elsewhere"] == ""


def test_a_job_shows_a_line_for_each_of_its_nodes(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    history(state)
    with console(state) as client:
        job = submitted(client, any_nodes=None, nodes=["node-1", "node-3"])["id"]
        found = client.get(f"/api/jobs/{job}/metrics").json()
        busy = found["charts"][0]
        assert [(line["label"], line["values"][-1]) for line in busy["lines"]] == [
            ("node-1", pytest.approx(15, 0.01)),
            ("node-3", pytest.approx(35, 0.01)),
        ]
        assert client.get("/api/jobs/none/metrics").status_code == 404
        assert client.get("/api/nodes/none/metrics").status_code == 404
        assert client.get("/api/nodes/node-1/metrics", params={"seconds": 1}).status_code == 422


def test_without_a_history_there_are_no_lines(tmp_path: Path) -> None:
    with console(still_state(tmp_path)) as client:
        found = client.get("/api/nodes/node-1/metrics").json()
    assert all(chart["lines"] == [] for chart in found["charts"])


def test_on_aws_it_is_told_where_the_numbers_are(tmp_path: Path) -> None:
    """Only the embedded mode has a history of its own; a console without its folder is one for AWS."""
    state = still_state(tmp_path)
    with served(lambda: LocalBackend(state), tmp_path / "console") as client:
        found = client.get("/api/nodes/node-1/metrics").json()
    assert found == {"charts": [], "elsewhere": "CloudWatch: EcsGpuRecovery/Nodes"}


def test_every_chart_is_of_a_metric_that_exists() -> None:
    assert all(PREFIX + chart.metric in METRICS for chart in charts.CHARTS)


def test_a_job_that_has_ended_shows_its_own_time() -> None:
    running = a_running_job(nodes=2).job
    ended = replace(running, status=JobStatus.COMPLETE, updated_at=T0 + MINUTE)
    assert charts._span(ended, 60) == (T0.timestamp(), T0.timestamp() + 60)
    since, until = charts._span(running, 600)
    assert until is None
    assert since > T0.timestamp()
