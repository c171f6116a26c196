"""The program that asks the NVIDIA driver, over and over, and prints what it learns, round by round.

It is a process of its own because any of these questions may hang. It ends when nobody reads what it prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..health.sources import nvml
from ..health.sources.follow import KernelFollower
from ..health.sources.gpus import HELD_BY_HARDWARE, GpuState
from ..health.sources.probe import Emit, as_program
from ..health.sources.samples import EVERY_S, stream
from .gpus import count_xid


def round_of_questions() -> list[dict[str, Any]] | None:
    """Every GPU as its metrics need it; None when the driver refuses to answer."""
    told: list[Mapping[str, object]] = []
    if not nvml.available():
        return None
    nvml.read(told.append)
    if any("problem" in message for message in told):
        return None
    return [_plain(message["gpu"]) for message in told if isinstance(message.get("gpu"), dict)]


def _plain(data: Any) -> dict[str, Any]:
    gpu = GpuState.from_json(data)
    wanted = bool(gpu.reset_required) or gpu.recovery_action not in (None, "none", "unknown")
    return {
        "index": gpu.index if gpu.index is not None else "unknown",
        "bus_id": gpu.bus_id,
        "present": not gpu.lost,
        "action_wanted": wanted,
        "utilization": gpu.utilization,
        "memory_used_mib": gpu.memory_used_mib,
        "memory_total_mib": gpu.memory_total_mib,
        "temperature_c": gpu.temperature_c,
        "power_w": gpu.power_w,
        "sm_mhz": gpu.sm_mhz,
        "throttled": any(reason in HELD_BY_HARDWARE for reason in gpu.clocks_held_by),
        "ecc_uncorrectable": gpu.ecc_uncorrectable,
    }


def _kernel_log() -> KernelFollower | None:
    """Nothing where the machine does not let us read it."""
    try:
        return KernelFollower(None, None, from_start=True)
    except OSError:
        return None


def main(argv: Sequence[str]) -> int:
    every_s = float(argv[0]) if argv else EVERY_S
    log, counts = _kernel_log(), dict[tuple[str, int], int]()

    def one_round(emit: Emit) -> None:
        nonlocal log
        try:
            for line in log.lines() if log is not None else ():
                count_xid(line, counts)
        except OSError:  # the log is closed to us now; the GPUs are not
            log = None
        xids = [[device, code, number] for (device, code), number in counts.items()]
        emit({"sample": {"gpus": round_of_questions(), "xids": xids}})

    return as_program(partial(stream, one_round, every_s=every_s))
