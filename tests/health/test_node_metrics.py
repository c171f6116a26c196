"""The node's numbers: one line a minute that CloudWatch makes metrics of, and nothing that delays a fault."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.health.sources.gpus import GpuState
from ecs_gpu_recovery.health.sources.probe import Emit
from ecs_gpu_recovery.health.watch import node_metrics
from ecs_gpu_recovery.health.watch.node_metrics import UNITS, NodeMetrics
from ecs_gpu_recovery.health.watch.pulse import GpuPulse, NodePulse, State
from ecs_gpu_recovery.health.watch.sinks import NotTold
from tests.embedded.helpers import PATIENCE_S, eventually

#: The watch has one thread; a worker of the tests may have more.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
ARN = "arn:aws:ecs:us-east-1:123456789012:container-instance/gpus/c1"
HERE = {"cluster": "gpus", "containerInstanceArn": ARN}
FREE = GpuState(
    index=1, utilization=0, memory_used_mib=0, memory_total_mib=80_000, temperature_c=38, power_w=110
)
BUSY = replace(FREE, index=0, utilization=98, memory_used_mib=40_000, temperature_c=66, power_w=650)
HELD = NodePulse(
    state=State.MOVING,
    since=0.0,
    moved=True,
    gpus=tuple(GpuPulse(index=i, state=State.MOVING, sm_mhz=mhz) for i, mhz in enumerate((1980.0, 1410.0))),
)


def two_gpus(emit: Emit) -> None:
    for gpu in (BUSY, FREE):
        emit({"gpu": gpu.to_json()})


def no_driver(emit: Emit) -> None:
    emit({"problem": "the NVIDIA driver is not loaded"})


def told(metrics: NodeMetrics) -> dict[str, Any]:
    """What it tells next, as a program reads it from the log."""
    said: dict[str, Any] = json.loads(json.dumps(eventually(metrics.news, "a line is told")))
    return said


def made(
    read: Callable[[Emit], None],
    place: Callable[[], dict[str, str]] = lambda: HERE,
    pulse: NodePulse | None = None,
) -> NodeMetrics:
    return NodeMetrics(read, "n1", place, [Path("/"), Path("/not/there")], every_s=0.0, pulse=lambda: pulse)


def test_a_line_has_twelve_metrics_in_the_form_that_cloudwatch_reads() -> None:
    line = told(made(two_gpus, pulse=HELD))
    (group,) = line["_aws"]["CloudWatchMetrics"]
    assert abs(line["_aws"]["Timestamp"] / 1000 - time.time()) < PATIENCE_S
    assert (group["Namespace"], group["Dimensions"]) == (
        "EcsGpuRecovery/Nodes",
        [["Cluster", "Instance", "Node"]],
    )
    assert {metric["Name"]: metric["Unit"] for metric in group["Metrics"]} == UNITS
    assert len(UNITS) <= 12, "each costs money on each node"
    assert (line["Cluster"], line["Instance"], line["Node"]) == ("gpus", "c1", "n1")
    assert all(isinstance(line[name], int | float) and line[name] >= 0 for name in UNITS)
    assert all(line[name] <= 100 for name, unit in UNITS.items() if unit == "Percent")


def test_gpus_are_summed_up_and_told_one_by_one() -> None:
    line = told(made(two_gpus, pulse=HELD))
    names = ("GpuUtilization", "GpuMemory", "GpuTemperature", "GpuPower", "GpuClock")
    assert [line[name] for name in names] == [49, 50, 66, 760, 1410]
    assert [gpu["power_w"] for gpu in line["gpus"]] == [650, 110]


def test_without_a_driver_the_machine_is_told_alone() -> None:
    line = told(made(no_driver))
    listed = {metric["Name"] for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]}
    assert listed == {name for name in UNITS if not name.startswith("Gpu")}
    assert listed == set(UNITS) & set(line)


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_metrics, "PATIENCE_S", 0.3)
    metrics = made(lambda emit: time.sleep(3600))
    assert metrics.news() is None, "the watch goes on with its log"
    assert "GpuPower" not in told(metrics)


def test_a_file_system_that_hangs_is_not_waited_for_and_costs_its_own_number_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a shared one does whose server is gone."""
    ask, watch = os.statvfs, os.getpid()

    def asked(path: Path) -> os.statvfs_result:
        assert os.getpid() != watch, "the watch itself would hang"
        if path == Path("/tmp"):
            time.sleep(3600)
        return ask(path)

    monkeypatch.setattr(node_metrics, "PATIENCE_S", 0.3)
    monkeypatch.setattr(os, "statvfs", asked)
    metrics = NodeMetrics(two_gpus, "n1", lambda: HERE, [Path("/"), Path("/tmp")], every_s=0.0)
    assert metrics.news() is None, "the watch goes on with its log"
    line = told(metrics)
    assert line["GpuPower"] == 760
    assert 0 <= line["Disk"] <= 100, "of the other one"


def test_bytes_are_those_since_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter(
        {"ticks": 100 * n, "busy": 25 * n, **dict.fromkeys(("DiskRead", "NetworkSent"), sent)}
        for n, sent in enumerate((5_000, 7_000, 1_000))
    )
    monkeypatch.setattr(node_metrics, "counters", lambda: next(counted))
    metrics = made(no_driver)
    first = told(metrics)
    assert (first["Cpu"], first["DiskRead"], first["NetworkSent"]) == (25, 2_000, 2_000)
    assert "DiskRead" not in told(metrics), "a counter that began anew tells nothing"


def test_nothing_is_told_before_the_minute_is_over_or_the_cluster_is_known() -> None:
    assert NodeMetrics(two_gpus, "n1", lambda: HERE, []).news() is None
    asked = []

    def place() -> Mapping[str, str]:
        asked.append(time.monotonic())
        if len(asked) < 3:
            raise NotTold("the ECS agent does not answer yet")
        return HERE

    assert told(made(two_gpus, place))["Cluster"] == "gpus"  # type: ignore[arg-type]
    assert len(asked) == 3
