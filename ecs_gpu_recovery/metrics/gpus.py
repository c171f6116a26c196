"""The GPUs of every node: simulated ones from their file, real ones from a reader in a process of its own.

A question to a broken driver may never return, and then neither does its process. So the control plane never
asks a driver itself: a child does, in a loop, and prints what it learns. Its silence is the news then.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..health.sources import kernel_log
from ..health.sources.samples import Sampler
from ..local.gpu_load import measured
from ..local.processes import python_module
from ..local.views import NodeView
from .sample import Sample

_MIB = 1024 * 1024
#: Kernel-log bytes that are read in one sample; the rest waits for the next.
_MOST_BYTES = 4 * _MIB
#: The reader of real GPUs is silent: the driver hangs.
_SILENT_S = 30.0


class XidCount:
    """Xid messages of one simulated node, counted as its kernel logs grow. Each line is read once.

    A boot begins a new log and keeps the old one beside it, so those of all boots are read: what happened
    just before a reboot is what matters most.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_to: dict[
            int, tuple[int, bytes]
        ] = {}  #: by inode, since a log is renamed: offset, torn line
        self.counts: dict[tuple[str, int], int] = {}  #: by PCI id and code

    def read(self) -> None:
        names = [n for n in os.listdir(self._folder) if n == "kmsg" or n.startswith("kmsg.")]
        try:
            found = {self._read(self._folder / name) for name in names}
        except FileNotFoundError:
            return  # renamed a moment ago; the next sample finds it
        if "kmsg" in names:  # a log that is gone leaves its inode to another
            self._read_to = {inode: place for inode, place in self._read_to.items() if inode in found}

    def _read(self, path: Path) -> int:
        """Count what is new in a log; its inode."""
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            offset, rest = self._read_to.get(status.st_ino, (0, b""))
            if status.st_size < offset:  # begun anew
                offset, rest = 0, b""
            file.seek(offset)
            data = file.read(_MOST_BYTES)
        *lines, rest = (rest + data).split(b"\n")
        self._read_to[status.st_ino] = (offset + len(data), rest)
        for line in lines:
            count_xid(line.decode(errors="replace"), self.counts)
        return status.st_ino


def count_xid(line: str, counts: dict[tuple[str, int], int]) -> None:
    event = kernel_log.parse_line(line, datetime.now(UTC)) if kernel_log.is_relevant(line) else None
    if event is not None and event.kind == "xid":
        key = (event.device or "", event.code)
        counts[key] = counts.get(key, 0) + 1


class GpuReader:
    """All nodes' GPUs. Remembers how far each kernel log was read."""

    def __init__(self) -> None:
        self._logs: dict[Path, XidCount] = {}
        self._real: RealGpus | None = None

    def read(self, sample: Sample, nodes: list[NodeView]) -> None:
        for node in nodes:
            if node.kind == "real":
                self._read_real(sample, node)
            else:
                self._read_simulated(sample, node)

    def _read_simulated(self, sample: Sample, node: NodeView) -> None:
        state = measured(str(node.folder), sample.at)
        sample.put("node_driver_answers", not state.get("driver_hung", False), node=node.name)
        for gpu in state["gpus"]:
            known = {**gpu, "action_wanted": gpu.get("recovery_action") != "none"}
            put_gpu(sample, node.name, known)
        log = self._logs.setdefault(node.folder, XidCount(node.folder))
        log.read()
        put_xids(sample, node.name, state["gpus"], log.counts)

    def _read_real(self, sample: Sample, node: NodeView) -> None:
        if self._real is None:
            self._real = RealGpus()
        told = self._real.newest()
        sample.put("node_driver_answers", self._real.answers, node=node.name)
        if told is None:
            return
        for gpu in told["gpus"]:
            put_gpu(sample, node.name, gpu)
        counts = {(device, code): number for device, code, number in told["xids"]}
        put_xids(sample, node.name, told["gpus"], counts)

    def close(self) -> None:
        if self._real is not None:
            self._real.close()


def put_gpu(sample: Sample, node: str, gpu: dict[str, Any]) -> None:
    """A GPU that is off the bus has no temperature; what is not told is left out."""
    where = {"node": node, "gpu": str(gpu["index"])}
    present = bool(gpu["present"])
    sample.put("gpu_present", present, **where)
    sample.put("gpu_action_wanted", gpu.get("action_wanted"), **where)
    if not present:
        return
    sample.put("gpu_utilization_ratio", _times(gpu.get("utilization"), 0.01), **where)
    sample.put("gpu_memory_used_bytes", _times(gpu.get("memory_used_mib"), _MIB), **where)
    sample.put("gpu_memory_total_bytes", _times(gpu.get("memory_total_mib"), _MIB), **where)
    sample.put("gpu_temperature_celsius", gpu.get("temperature_c"), **where)
    sample.put("gpu_power_watts", gpu.get("power_w"), **where)
    sample.put("gpu_clock_hertz", _times(gpu.get("sm_mhz"), 1e6), **where)
    sample.put("gpu_throttled", gpu.get("throttled"), **where)
    sample.put("gpu_ecc_uncorrectable_errors", gpu.get("ecc_uncorrectable"), **where)


def put_xids(
    sample: Sample, node: str, gpus: list[dict[str, Any]], counts: dict[tuple[str, int], int]
) -> None:
    """A message about a device that is no GPU of the node counts too, under its PCI id."""
    index = {kernel_log.bus_id(str(gpu["bus_id"])): str(gpu["index"]) for gpu in gpus if gpu.get("bus_id")}
    for (device, code), number in counts.items():
        which = index.get(device, device or "unknown")
        sample.put("gpu_xid_errors_total", number, node=node, gpu=which, xid=str(code))


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


class RealGpus:
    """What the child that asks the driver told last. It ends when nobody listens, a round later at most."""

    def __init__(self, argv: list[str] | None = None, silent_s: float = _SILENT_S) -> None:
        program = argv or python_module("ecs_gpu_recovery.metrics.driver", packages=True)
        self._sampler = Sampler(program, silent_s, again_s=silent_s)
        self._told: dict[str, Any] | None = None

    @property
    def answers(self) -> bool:
        """Whether the driver has answered lately."""
        return self._told is not None

    def newest(self) -> dict[str, Any] | None:
        """What the child told last; None once that is too old, or where the driver refused to answer."""
        for [told] in self._sampler.rounds():
            self._told = told if told["gpus"] is not None else None
        if not self._sampler.listens:
            self._told = None
        return self._told

    def close(self) -> None:
        self._sampler.close()
