"""The driver asked directly, through NVIDIA's own Python binding when it is installed.

Runs only in a child process: any of these calls may hang. Each GPU is announced before it is asked, so that
a hang names the GPU it hung on. A question this GPU or driver does not know leaves its field unknown.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from ecs_gpu_recovery.health.sources import recovery
from ecs_gpu_recovery.health.sources.gpus import GpuState
from ecs_gpu_recovery.health.sources.kernel_log import bus_id
from ecs_gpu_recovery.health.sources.probe import Emit, as_program
from ecs_gpu_recovery.health.sources.samples import stream

RECOVERY_ACTION_FIELD = 230
"""NVML's number of the field that DCGM numbers 1523."""

_LOST, _RESET_REQUIRED, _UNKNOWN = 15, 16, 999
_SERIOUS = frozenset({8, 10, 11, _LOST, _RESET_REQUIRED})
"""Besides lost and reset: lack of power, timeout, interrupt trouble. Other errors mean "not known here"."""
_NO_DRIVER = {
    9: "the NVIDIA driver is not loaded",
    12: "the NVML library is missing",
    18: "driver and library differ",
}
_HELD = {
    0x08: "hw_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x04: "sw_power_cap",
}
_FABRIC = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
_KIB = 1024
_MIB = 1024 * _KIB
#: What all links of a GPU have sent and received, in KiB.
_NVLINK_TRAFFIC = [(138, 0xFFFFFFFF), (139, 0xFFFFFFFF)]
_SM_CLOCK = 1


def available() -> bool:
    """True when the binding is installed; says nothing about a driver."""
    try:
        importlib.import_module("pynvml")
    except ImportError:
        return False
    return True


def read(emit: Emit) -> None:
    """Send up one `gpu` message per GPU, or one `problem`."""
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        number = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        code = int(error.value)
        if code == _LOST:
            emit({"gpu": GpuState(lost=f"NVML: {error}").to_json()})
        else:
            emit({"problem": f"NVML: {_NO_DRIVER.get(code, str(error))}"})
        return
    emit({"driver": _text(nvml.nvmlSystemGetDriverVersion()), "count": number})
    for index in range(number):
        emit({"asking": index})
        emit({"gpu": _Device(nvml, index).state().to_json()})


def read_samples(emit: Emit) -> None:
    """What every GPU does, without end. Without the binding or a driver the child ends, and tells nothing."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    devices = [_Device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]

    def one_round(emit: Emit) -> None:
        for index, device in enumerate(devices):
            emit({"sample": {"at": time.time(), "index": index, **device.sample()}})

    stream(one_round, emit)


def main(_: Sequence[str]) -> int:
    return as_program(read_samples)


class _Device:
    """One GPU under questioning. Remembers errors that are more than an unknown question."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self._index = index
        self._codes: dict[int, str] = {}
        self._handle: Any = None
        self._handle = self._ask(lambda: nvml.nvmlDeviceGetHandleByIndex(index))

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError as error:
            code = int(error.value)
            if code in _SERIOUS or self._handle is None:
                self._codes[code] = str(error)
        except AttributeError:
            return None  # a binding older than the question
        return None

    def _get(self, name: str, *arguments: object) -> Any:
        return self._ask(lambda: getattr(self._nvml, name)(self._handle, *arguments))

    def state(self) -> GpuState:
        """Everything this GPU answers."""
        values: dict[str, object] = {"index": self._index}
        if self._handle is not None:
            for part in (self._identity, self._wishes, self._memory, self._links, self._load):
                values |= part()
        lost = self._codes.get(_LOST) or (self._codes.get(_UNKNOWN) if self._handle is None else None)
        other = [text for code, text in self._codes.items() if code not in (_LOST, _RESET_REQUIRED)]
        values["lost"] = f"NVML: {lost}" if lost else None
        values["error"] = f"NVML: {'; '.join(other)}" if other and not lost else None
        values["reset_required"] = True if _RESET_REQUIRED in self._codes else None
        return GpuState.from_json(values)

    def sample(self) -> dict[str, object]:
        """What a pulse needs of it. A question about no handle would crash the library."""
        if self._handle is None:
            self._handle = self._ask(lambda: self._nvml.nvmlDeviceGetHandleByIndex(self._index))
        if self._handle is None:
            return {}
        # The older question counts what the driver keeps for itself, too.
        memory = self._ask(lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle, self._nvml.nvmlMemory_v2))
        pcie = [self._get("nvmlDeviceGetPcieThroughput", way) for way in (0, 1)]  # counted for 20 ms each
        links = self._get("nvmlDeviceGetFieldValues", _NVLINK_TRAFFIC)
        known = links and not any(one.nvmlReturn for one in links)
        programs = self._get("nvmlDeviceGetComputeRunningProcesses")
        return {
            **self._use(),
            "memory_used_mib": memory.used / _MIB if memory is not None else None,
            "pcie_bytes_s": sum(pcie) * _KIB if None not in pcie else None,
            "nvlink_bytes": sum(one.value.ullVal for one in links) * _KIB if known else None,
            "programs": len(programs) if programs is not None else None,
        }

    def _identity(self) -> dict[str, object]:
        pci = self._get("nvmlDeviceGetPciInfo")
        return {
            "uuid": _text(self._get("nvmlDeviceGetUUID")),
            "name": _text(self._get("nvmlDeviceGetName")),
            "bus_id": bus_id(_text(pci.busId) or "") if pci is not None else None,
        }

    def _wishes(self) -> dict[str, object]:
        fields = self._get("nvmlDeviceGetFieldValues", [RECOVERY_ACTION_FIELD])
        if not fields or fields[0].nvmlReturn != 0:
            return {}
        return {"recovery_action": recovery.BY_NUMBER.get(int(fields[0].value.uiVal), "unknown")}

    def _memory(self) -> dict[str, object]:
        rows = self._get("nvmlDeviceGetRemappedRows")
        spares = self._get("nvmlDeviceGetRowRemapperHistogram")
        modes = self._get("nvmlDeviceGetEccMode")
        return {
            "ecc_uncorrectable": self._get("nvmlDeviceGetTotalEccErrors", 1, 0),
            "ecc_uncorrectable_ever": self._get("nvmlDeviceGetTotalEccErrors", 1, 1),
            "ecc_mode_pending": modes[0] != modes[1] if modes else None,
            "sram_threshold_exceeded": self._sram(),
            "remap_pending": bool(rows[2]) if rows else None,
            "remap_failure": bool(rows[3]) if rows else None,
            "remap_banks_without_spares": int(spares.none) if spares is not None else None,
            "retired_pages_pending": _flag(self._get("nvmlDeviceGetRetiredPagesPendingStatus")),
        }

    def _sram(self) -> bool | None:
        def question() -> bool:
            status = self._nvml.c_nvmlEccSramErrorStatus_v1_t()
            status.version = self._nvml.nvmlEccSramErrorStatus_v1
            self._nvml.nvmlDeviceGetSramEccErrorStatus(self._handle, self._nvml.byref(status))
            return bool(status.bThresholdExceeded)

        answer = self._ask(question)
        return answer if isinstance(answer, bool) else None

    def _links(self) -> dict[str, object]:
        states = [
            self._get("nvmlDeviceGetNvLinkState", link) for link in range(self._nvml.NVML_NVLINK_MAX_LINKS)
        ]
        known = [state for state in states if state is not None]
        return {
            "nvlinks_up": sum(1 for state in known if state) if known else None,
            "nvlinks_down": sum(1 for state in known if not state) if known else None,
            "pcie_width": self._get("nvmlDeviceGetCurrPcieLinkWidth"),
            "pcie_width_max": self._get("nvmlDeviceGetMaxPcieLinkWidth"),
            "pcie_generation": self._get("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_generation_max": self._get("nvmlDeviceGetMaxPcieLinkGeneration"),
            **self._fabric(),
        }

    def _fabric(self) -> dict[str, object]:
        def question() -> tuple[int, int]:
            info = self._nvml.c_nvmlGpuFabricInfo_t()
            self._nvml.nvmlDeviceGetGpuFabricInfo(self._handle, self._nvml.byref(info))
            return int(info.state), int(info.status)

        answer = self._ask(question)
        if not answer:
            return {}
        state, status = answer
        return {
            "fabric_state": _FABRIC.get(state),
            "fabric_status": "success" if status == 0 else str(status),
        }

    def _load(self) -> dict[str, object]:
        held = self._get("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        memory = self._get("nvmlDeviceGetMemoryInfo")
        pstate = self._get("nvmlDeviceGetPerformanceState")
        return {
            **self._use(),
            "clocks_held_by": [name for bit, name in _HELD.items() if held & bit],
            "idle": pstate > 2 if isinstance(pstate, int) else None,
            "temperature_c": self._get("nvmlDeviceGetTemperature", 0),
            "memory_used_mib": round(memory.used / _MIB) if memory is not None else None,
            "memory_total_mib": round(memory.total / _MIB) if memory is not None else None,
        }

    def _use(self) -> dict[str, object]:
        rates = self._get("nvmlDeviceGetUtilizationRates")
        power = self._get("nvmlDeviceGetPowerUsage")
        return {
            "power_w": power / 1000 if power is not None else None,
            "sm_mhz": self._get("nvmlDeviceGetClockInfo", _SM_CLOCK),
            "utilization": rates.gpu if rates is not None else None,
        }


def _flag(value: object) -> bool | None:
    return bool(value) if isinstance(value, int) else None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if value is not None else None
