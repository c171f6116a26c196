"""The node's own numbers, once a minute, as one line of CloudWatch's embedded metric format.

CloudWatch makes metrics of such a line in a log. So the watch needs no right beyond its log, and nothing else runs on
the node for them. A node has at most twelve metrics, whatever it is made of. What each GPU does stands in the line, for
queries of the log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ecs_gpu_recovery.health.sources import probe
from ecs_gpu_recovery.health.sources.gpus import GpuState
from ecs_gpu_recovery.health.sources.probe import Emit, Probe, Running
from ecs_gpu_recovery.health.watch.pulse import NodePulse
from ecs_gpu_recovery.health.watch.sinks import NotTold, Place

NAMESPACE = "EcsGpuRecovery/Nodes"
#: By the cluster and its container instance a node's record finds its metrics. The name of the host is for people.
DIMENSIONS = ("Cluster", "Instance", "Node")
EVERY_S = 60.0
#: A driver or a file system that does not answer within this time leaves its numbers out.
PATIENCE_S = 20.0
#: Every metric with its unit, where CloudWatch has one. Bytes and errors are those of the last minute.
UNITS = {
    "GpuUtilization": "Percent",  # mean of all GPUs
    "GpuMemory": "Percent",  # of the fullest
    "GpuTemperature": "None",  # of the hottest, in degrees Celsius
    "GpuPower": "None",  # of all together, in watts
    "GpuClock": "None",  # of the slowest that a program holds, in megahertz
    "Cpu": "Percent",
    "Memory": "Percent",
    "Disk": "Percent",  # of the fullest file system
    "DiskMoved": "Bytes",  # read and written
    "NetworkReceived": "Bytes",
    "NetworkSent": "Bytes",
    "NetworkErrors": "Count",
}
_OF_GPU = ("index", "utilization", "memory_used_mib", "memory_total_mib", "temperature_c", "power_w")
_SECTOR = 512
#: In which the kernel counts processor time.
TICKS_S = os.sysconf("SC_CLK_TCK")
_PROC, _SYS = Path("/proc"), Path("/sys")
Line = dict[str, object]


class NodeMetrics:
    """Asked again and again, it tells a line once a minute. It never waits: a driver or a shared file system that hangs
    must not delay a fault, so each is asked by a child."""

    def __init__(
        self,
        read_driver: Callable[[Emit], None],
        node: str,
        place: Callable[[], Place],
        disks: Sequence[Path],
        every_s: float = EVERY_S,
        pulse: Callable[[], NodePulse | None] = lambda: None,
    ) -> None:
        """`place` tells the cluster of the node, and may raise NotTold. `pulse`: what its GPUs were seen to do."""
        self._pulse = pulse
        self._node, self._place = node, place
        self._questions = (read_driver, partial(_read_disks, disks))
        self._every_s, self._due = every_s, time.monotonic() + every_s
        self._children: list[Running] = []
        self._said: list[dict[str, object]] = []
        self._before = counters()

    def news(self) -> Line | None:
        if not self._children:
            if time.monotonic() < self._due:
                return None
            self._due, self._said = time.monotonic() + self._every_s, []
            asked = [Probe(name="metrics", deadline_s=PATIENCE_S, work=work) for work in self._questions]
            self._children = [probe.start(one) for one in asked]
        self._children = [child for child in self._children if not self._has_told(child)]
        if self._children:
            return None
        gpus = [GpuState.from_json(data) for one in self._said if isinstance(data := one.get("gpu"), dict)]
        try:
            place = self._place()
        except NotTold:  # the events wait for the same answer, and complain of it
            return None
        return line(place, self._node, gpus, self._host(), time.time(), self._pulse())

    def _has_told(self, child: Running) -> bool:
        outcome = probe.poll(child)
        self._said += outcome.messages if outcome is not None else ()
        return outcome is not None

    def _host(self) -> dict[str, float]:
        now = counters()
        moved = {name: now[name] - self._before[name] for name in now}
        self._before = now
        ticks, busy = moved.pop("ticks"), moved.pop("busy")
        memory = dict(text.split(":") for text in (_PROC / "meminfo").read_text().splitlines())
        total, free = (int(memory[key].split()[0]) for key in ("MemTotal", "MemAvailable"))
        full = [float(str(one["full"])) for one in self._said if "full" in one]
        shares = {"Cpu": 100 * busy / ticks} if ticks > 0 else {}
        shares |= {"Memory": 100 - 100 * free / total, **({"Disk": max(full)} if full else {})}
        grown = {name: count for name, count in moved.items() if count >= 0}
        if {"DiskRead", "DiskWritten"} <= grown.keys():
            grown["DiskMoved"] = grown["DiskRead"] + grown["DiskWritten"]
        return shares | grown

    def close(self) -> None:
        for child in self._children:
            probe.kill(child)


def line(
    place: Place,
    node: str,
    gpus: Sequence[GpuState],
    host: dict[str, float],
    at: float,
    pulse: NodePulse | None = None,
) -> Line:
    seen = {gpu.index: gpu.to_json() for gpu in pulse.gpus} if pulse is not None else {}
    clocks = [gpu.sm_mhz for gpu in pulse.gpus if gpu.sm_mhz is not None] if pulse is not None else []
    values = {**_of_gpus(gpus), **({"GpuClock": min(clocks)} if clocks else {}), **host}
    metrics = [{"Name": name, "Unit": unit} for name, unit in UNITS.items() if name in values]
    where = {"Namespace": NAMESPACE, "Dimensions": [DIMENSIONS], "Metrics": metrics}
    instance = place.get("containerInstanceArn", "").rpartition("/")[2]
    return {
        "_aws": {"Timestamp": round(at * 1000), "CloudWatchMetrics": [where]},
        **dict(zip(DIMENSIONS, (place.get("cluster", ""), instance or node, node), strict=True)),
        **{name: round(value, 2) for name, value in values.items()},
        "gpus": [
            {
                **{key: getattr(gpu, key) for key in _OF_GPU},
                **seen.get(-1 if gpu.index is None else gpu.index, {}),
            }
            for gpu in gpus
        ],
        **({"pulse": pulse.state.value} if pulse is not None else {}),
    }


def _of_gpus(gpus: Sequence[GpuState]) -> dict[str, float]:
    """What is not known is left out."""

    def known(name: str) -> list[float]:
        return [value for gpu in gpus if (value := getattr(gpu, name)) is not None]

    found: dict[str, float] = {}
    if busy := known("utilization"):
        found["GpuUtilization"] = sum(busy) / len(busy)
    if used := [
        100 * (gpu.memory_used_mib or 0) / gpu.memory_total_mib for gpu in gpus if gpu.memory_total_mib
    ]:
        found["GpuMemory"] = max(used)
    if degrees := known("temperature_c"):
        found["GpuTemperature"] = max(degrees)
    if watts := known("power_w"):
        found["GpuPower"] = sum(watts)
    return found


def counters() -> dict[str, int]:
    """What only grows: processor time, and the traffic of real disks and network ports."""
    cpu = [int(ticks) for ticks in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    found = {"ticks": sum(cpu), "busy": sum(cpu) - cpu[3] - cpu[4]}
    found |= dict.fromkeys(("DiskRead", "DiskWritten", "NetworkReceived", "NetworkSent", "NetworkErrors"), 0)
    for name, fields in _rows(_PROC / "diskstats", 2):
        if (_SYS / "block" / name / "device").exists():
            found["DiskRead"] += int(fields[2]) * _SECTOR
            found["DiskWritten"] += int(fields[6]) * _SECTOR
    for name, fields in _rows(_PROC / "net" / "dev", 0):
        if (_SYS / "class" / "net" / name / "device").exists():
            found["NetworkReceived"] += int(fields[0])
            found["NetworkSent"] += int(fields[8])
            found["NetworkErrors"] += int(fields[2]) + int(fields[10])
    return found


def _rows(table: Path, at: int) -> Iterator[tuple[str, list[str]]]:
    """The name in each row, and the numbers behind it."""
    for row in table.read_text().splitlines():
        words = row.replace(":", " ").split()
        if len(words) > at + 1:
            yield words[at], words[at + 1 :]


def _read_disks(paths: Sequence[Path], emit: Emit) -> None:
    """How full each file system is, in percent. Where one hangs, those before it are told."""
    for path in paths:
        if path.exists():
            room = os.statvfs(path)
            if room.f_blocks:
                emit({"full": 100 - 100 * room.f_bavail / room.f_blocks})
