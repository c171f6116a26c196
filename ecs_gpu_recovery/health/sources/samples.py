"""Samples of the GPUs every few seconds, asked by one child that stays, because any question may hang.

The child is asked nothing: it streams. One that falls silent is stuck in the driver: it is ended and begun again. If it
can't be ended it is left alone, since a second one would only get stuck beside it, until it has ended after all.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.health.sources import probe
from ecs_gpu_recovery.health.sources.probe import Emit, Probe, Running

EVERY_S = 5.0
_SILENT_S = 30.0
#: Where the child ends by itself there is no driver, or no binding: that may change, but not soon.
_AGAIN_S = 300.0
_MIB = 1024 * 1024
_KIB = 1024
#: NVML's numbers of the fields that count what all links of a GPU have sent and received, in KiB.
_NVLINK_SENT, _NVLINK_RECEIVED, _ALL_LINKS = 138, 139, 0xFFFFFFFF
_INFINIBAND = Path("/sys/class/infiniband")
#: Counters of a port and how many bytes one of them counts: InfiniBand counts words of four, EFA bytes.
_OF_A_PORT = {
    "counters/port_xmit_data": 4,
    "counters/port_rcv_data": 4,
    "hw_counters/tx_bytes": 1,
    "hw_counters/rx_bytes": 1,
}
Round = list[dict[str, object]]


class Sampler:
    """`read` runs in the child: it sends up one `sample` message per GPU and then one `round`, again and again."""

    def __init__(self, read: Callable[[Emit], None], silent_s: float = _SILENT_S) -> None:
        self._read, self._silent_s = read, silent_s
        self._child: Running | None = None
        self._stuck: Running | None = None
        self._heard = self._next = 0.0
        self._round: Round = []

    def rounds(self) -> Iterator[Round]:
        """Those that are complete since the last call. It never waits."""
        if self._child is None:
            if self._stuck is not None and probe.ended(self._stuck):
                self._stuck = None
            if self._stuck is not None or time.monotonic() < self._next:
                return
            self._heard = time.monotonic()
            self._child = probe.start(Probe(name="samples", deadline_s=float("inf"), work=self._read))
        messages, open_still = probe.take(self._child)
        for message in messages:
            if isinstance(told := message.get("sample"), dict):
                self._round.append(told)
            elif "round" in message:
                self._heard = time.monotonic()
                yield self._round
                self._round = []
        if not open_still or time.monotonic() - self._heard > self._silent_s:
            self._next = time.monotonic() + (_AGAIN_S if not open_still else 0.0)
            self.close()

    def close(self) -> None:
        if self._child is not None:
            self._stuck = None if probe.kill(self._child) else self._child
            self._child, self._round = None, []


def stream(one_round: Callable[[Emit], None], emit: Emit, every_s: float = EVERY_S) -> None:
    """One round after the other, until nobody listens any more."""
    while True:
        one_round(emit)
        emit({"round": time.time()})
        time.sleep(every_s)


def read_nvml(emit: Emit) -> None:
    """Every GPU of this machine, through NVML. Without its binding or a driver the child ends, and tells nothing."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    def one_round(emit: Emit) -> None:
        for index, handle in enumerate(handles):
            emit({"sample": {"at": time.time(), "index": index, **_sample(nvml, handle)}})

    stream(one_round, emit)


def _sample(nvml: Any, handle: Any) -> dict[str, float | None]:
    def ask(question: Callable[[], float]) -> float | None:
        try:
            return question()
        except (nvml.NVMLError, AttributeError):  # this GPU, or this binding, does not know the question
            return None

    def memory() -> float:  # the older question counts what the driver keeps for itself, too
        return float(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used / _MIB)

    def pcie() -> float:  # the driver counts for 20 ms each way
        return float(sum(nvml.nvmlDeviceGetPcieThroughput(handle, way) for way in (0, 1)) * _KIB)

    def links() -> float:
        wanted = [(_NVLINK_SENT, _ALL_LINKS), (_NVLINK_RECEIVED, _ALL_LINKS)]
        told = nvml.nvmlDeviceGetFieldValues(handle, wanted)
        if any(field.nvmlReturn for field in told):
            raise AttributeError("no NVLink")
        return float(sum(field.value.ullVal for field in told) * _KIB)

    return {
        "power_w": ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "utilization": ask(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        "sm_mhz": ask(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        "memory_used_mib": ask(memory),
        "pcie_bytes_s": ask(pcie),
        "nvlink_bytes": ask(links),
        "programs": ask(lambda: float(len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)))),
    }


def infiniband_bytes(root: Path = _INFINIBAND) -> int:
    """What all InfiniBand and EFA ports have moved since they came up."""
    total = 0
    for port in root.glob("*/ports/*"):
        for name, size in _OF_A_PORT.items():
            try:
                total += int((port / name).read_text(encoding="ascii")) * size
            except (OSError, ValueError):
                continue  # the other kind of port, or one that does not count this
    return total
