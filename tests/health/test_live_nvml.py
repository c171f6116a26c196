"""A machine with a stand-in for NVIDIA's binding."""

from __future__ import annotations

import json

import pytest

from .conftest import Bench
from .test_live import check, within
from .test_nvidia_smi import xml

NVML = """
import ctypes
from ctypes import byref
NVML_NVLINK_MAX_LINKS = 4
nvmlEccSramErrorStatus_v1 = 1

class NVMLError(Exception):
    def __init__(self, value, text="an error"):
        super().__init__(text)
        self.value = value

class NotSupported(NVMLError):
    def __init__(self):
        super().__init__(3, "Not Supported")

class Bag:
    def __init__(self, **values):
        self.__dict__.update(values)

class c_nvmlEccSramErrorStatus_v1_t(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("bThresholdExceeded", ctypes.c_uint)]

class c_nvmlGpuFabricInfo_t(ctypes.Structure):
    _fields_ = [("status", ctypes.c_uint), ("state", ctypes.c_ubyte)]

def nvmlInit(): pass
def nvmlDeviceGetCount(): return GPUS
def nvmlSystemGetDriverVersion(): return b"580.00"
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetPciInfo(h): return Bag(busId=f"00000000:{h + 1:02X}:00.0".encode())
def nvmlDeviceGetUUID(h): return f"GPU-{h}"
def nvmlDeviceGetName(h): return "Pretended H200"
def nvmlDeviceGetFieldValues(h, fields):
    assert fields == [230]
    return [Bag(nvmlReturn=0, value=Bag(uiVal=RECOVERY))]
def nvmlDeviceGetRemappedRows(h): return (0, 0, 0, 0)
def nvmlDeviceGetRowRemapperHistogram(h): return Bag(none=0)
def nvmlDeviceGetEccMode(h): return [1, 1]
def nvmlDeviceGetTotalEccErrors(h, kind, span): return 0
def nvmlDeviceGetSramEccErrorStatus(h, status): status._obj.bThresholdExceeded = 0
def nvmlDeviceGetNvLinkState(h, link): return int(link < LINKS[h])
def nvmlDeviceGetGpuFabricInfo(h, info): raise NotSupported()
def nvmlDeviceGetCurrPcieLinkWidth(h): return 16
def nvmlDeviceGetMaxPcieLinkWidth(h): return 16
def nvmlDeviceGetCurrentClocksThrottleReasons(h): return 1
def nvmlDeviceGetMemoryInfo(h): return Bag(used=0, total=1 << 37)
def nvmlDeviceGetUtilizationRates(h): return Bag(gpu=0)
def nvmlDeviceGetPowerUsage(h): return 120000
def nvmlDeviceGetPerformanceState(h): return 0
def nvmlDeviceGetTemperature(h, sensor): return 40
GPUS, RECOVERY, LINKS = 2, 0, [4, 4]
"""


def nvml(bench: Bench, more: str = "") -> None:
    bench.nvml(NVML + more)


def test_the_binding_is_used_where_it_is_installed(bench: Bench) -> None:
    nvml(bench)
    exit_code, report = check(bench, "--expect-gpus", "2")
    assert exit_code == 0
    assert report["gpus"][1]["bus_id"] == "0000:02:00"
    assert report["gpus"][1]["recovery_action"] == "none"
    assert report["gpus"][1]["nvlinks_up"] == 4


LOST = "def nvmlDeviceGetUUID(h):\n    raise NVMLError(15, 'GPU is lost') if h == 1 else NotSupported()"


NO_HANDLE = (
    "def nvmlDeviceGetHandleByIndex(i):\n    if i == 1: raise NVMLError(999, 'Unknown Error')\n    return i"
)


@pytest.mark.parametrize(
    ("more", "exit_code", "code"),
    [
        ("RECOVERY = 1", 1, "gpu_reset"),
        ("RECOVERY = 2", 1, "node_reboot"),
        ("RECOVERY = 5", 3, "recover_imex_domain"),
        ("RECOVERY = 77", 0, "unknown"),
        ("GPUS = 1", 1, "count-low"),
        ("LINKS = [4, 2]", 1, "nvlink-down"),
        ("LINKS = [0, 0]", 0, None),
        ("def nvmlDeviceGetRemappedRows(h): return (0, 1, 1, 0)", 1, "remap-pending"),
        ("def nvmlDeviceGetRemappedRows(h): return (0, 1, 0, 1)", 1, "remap-failure"),
        ("def nvmlDeviceGetTotalEccErrors(h, kind, span): return 2", 1, "ecc-volatile"),
        ("def nvmlDeviceGetTotalEccErrors(h, kind, span): return 2 * span", 0, "ecc-aggregate"),
        ("def nvmlDeviceGetSramEccErrorStatus(h, s): s._obj.bThresholdExceeded = 1", 2, "sram-threshold"),
        ("def nvmlDeviceGetCurrentClocksThrottleReasons(h): return 0x48", 0, "clocks-held"),
        ("def nvmlDeviceGetGpuFabricInfo(h, i): i._obj.state, i._obj.status = 3, 0", 0, None),
        ("def nvmlDeviceGetGpuFabricInfo(h, i): i._obj.state, i._obj.status = 3, 9", 3, "fabric-failed"),
        (LOST, 1, "gpu-lost"),
        (NO_HANDLE, 1, "gpu-lost"),
        ("def nvmlDeviceGetUUID(h): raise NVMLError(16, 'GPU requires restart')", 1, "reset-required"),
        ("def nvmlDeviceGetUUID(h): raise NVMLError(10, 'Timeout')", 3, "device-error"),
        ("def nvmlDeviceGetUUID(h): raise NVMLError(999, 'Unknown Error')", 0, None),
        ("del nvmlDeviceGetUUID", 0, None),
        ("def nvmlInit(): raise NVMLError(9, 'Driver Not Loaded')", 3, "unreachable"),
        ("def nvmlInit(): raise NVMLError(15, 'GPU is lost')", 1, "gpu-lost"),
        ("def nvmlInit(): raise RuntimeError('a bug in the binding')", 3, "unreachable"),
    ],
)
def test_what_the_driver_tells_through_the_binding(
    quick_bench: Bench, more: str, exit_code: int, code: str | None
) -> None:
    nvml(quick_bench, more)
    ended, report = check(quick_bench, "--expect-gpus", "2")
    assert ended == exit_code, json.dumps(report["findings"], indent=1)
    assert code is None or code in [f["code"] for f in report["findings"]]


def test_a_hang_names_the_gpu_it_hung_on(bench: Bench) -> None:
    nvml(bench, "import time\ndef nvmlDeviceGetName(h):\n    return 'x' if h == 0 else time.sleep(1000)")
    exit_code, report = within(bench, "2", lambda found: "GPU 1" in str(found["findings"]), 1.5, 10, 60)
    assert exit_code == 1
    assert "GPU 1" in report["findings"][0]["evidence"]


def test_after_a_hang_of_the_binding_nvidia_smi_is_asked(bench: Bench) -> None:
    nvml(bench, "import time\ndef nvmlDeviceGetName(h): time.sleep(1000)")
    bench.prints("nvidia-smi", xml())
    exit_code, report = within(bench, "1", lambda found: found["gpus"], 3, 60)
    assert exit_code == 0
    assert report["checks"][0]["detail"] == "1 GPU(s) through nvidia-smi"
