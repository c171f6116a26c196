"""A node folder of the embedded mode in place of a machine, read by the very same program and rules.

`GPU_HEALTH_SIMULATED` names the folder. Only the reading differs: gpus.json stands for the driver, kmsg for
the kernel log. What is made of them is what would be made of a real node.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ecs_gpu_recovery.health.sources import samples
from ecs_gpu_recovery.health.sources.gpus import GpuState
from ecs_gpu_recovery.health.sources.kernel_log import bus_id
from ecs_gpu_recovery.health.sources.machine import Machine
from ecs_gpu_recovery.health.sources.probe import Emit

VARIABLE = "GPU_HEALTH_SIMULATED"
DEADLINE_S = 3.0
"""A simulated driver answers in milliseconds; there is no point in waiting as long as for a real one."""


class SimulatedNode:
    """The files of one node folder."""

    kind = "simulated"
    driver_deadline_s = DEADLINE_S

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kernel_log = folder / "kmsg"

    def expected_gpus(self) -> int | None:
        """How many GPUs the node was made with."""
        number = self._json("node.json").get("gpus")
        return number if isinstance(number, int) else None

    def gpus_on_bus(self) -> int:
        """What the kernel would see without a driver."""
        return self.expected_gpus() or 0

    def boot_id(self) -> str | None:
        """The present life of the node; another one after each reboot."""
        boot_id = self._json("agent.json").get("boot_id")
        return str(boot_id) if boot_id else None

    def network_bytes_per_s(self) -> float | None:
        """How fast this node can send, where `network_mbit` in faults.json slows it down."""
        number = self._json("faults.json").get("network_mbit")
        return number * 1e6 / 8 if isinstance(number, (int, float)) and number > 0 else None

    def read_driver_again(self, emit: Emit) -> None:
        """The second attempt after a hang; a simulated driver has only one way in."""
        self.read_driver(emit)

    def read_driver(self, emit: Emit) -> None:
        """What NVML would tell. Runs in a child, because a hung driver hangs here too."""
        if self._refused(emit):
            return
        emit({"route": "simulated"})
        data = self._json("gpus.json")
        gpus = data.get("gpus")
        if not isinstance(gpus, list):
            emit({"problem": "the simulated node has no gpus.json"})
            return
        emit({"count": sum(1 for gpu in gpus if isinstance(gpu, dict) and gpu.get("present", True))})
        if data.get("driver_hung"):
            _hang()
        for gpu in gpus:
            if isinstance(gpu, dict) and gpu.get("present", True):
                emit({"gpu": _state(gpu).to_json()})

    def read_samples(self, emit: Emit) -> None:
        """What the GPUs do, as their file tells it."""
        same = ("index", "power_w", "memory_used_mib", "utilization")

        def one_round(emit: Emit) -> None:
            gpus = self._json("gpus.json").get("gpus")
            for gpu in gpus if isinstance(gpus, list) else ():
                emit({"sample": {"at": time.time(), **{key: gpu.get(key) for key in same}}})

        samples.stream(one_round, emit)

    def read_kernel_log(self, emit: Emit) -> None:
        """The lines the simulated driver wrote."""
        if self._refused(emit):
            return
        emit({"from": "the simulated kernel log"})
        try:
            text = self.kernel_log.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            text = ""
        for line in text.splitlines():
            emit({"line": line})

    def _refused(self, emit: Emit) -> bool:
        """True on a node whose health check was broken on purpose."""
        broken = bool(self._json("faults.json").get("check_broken"))
        if broken:
            emit({"problem": "the health check is broken on this node"})
        return broken

    def _json(self, name: str) -> dict[str, object]:
        """A missing file is an empty one; a damaged one is an error, and the check then says "not tested"."""
        try:
            data = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return data if isinstance(data, dict) else {}


Node = Machine | SimulatedNode


def here() -> Node:
    """Where the GPUs are: this machine, or the folder that plays one."""
    folder = os.environ.get(VARIABLE, "")
    return SimulatedNode(Path(folder)) if folder else Machine()


def _state(gpu: dict[str, object]) -> GpuState:
    """Most keys are spelled as a GPU's own; these are told in another way, or must have a value."""
    values = gpu | {
        "bus_id": bus_id(str(gpu.get("bus_id", ""))),
        "recovery_action": str(gpu.get("recovery_action") or "none"),
        "ecc_uncorrectable": gpu.get("ecc_uncorrectable") or 0,
        "remap_pending": bool(gpu.get("remap_pending")),
        "remap_failure": bool(gpu.get("remap_failure")),
        "sram_threshold_exceeded": bool(gpu.get("sram_threshold_exceeded")),
        "clocks_held_by": ["hw_slowdown"] if gpu.get("throttled") else [],
    }
    return GpuState.from_json(values)


def _hang() -> None:
    """Like a driver call that never returns; the deadline ends it from outside."""
    while True:
        time.sleep(3600)
