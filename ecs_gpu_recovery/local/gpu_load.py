"""What a driver would measure on simulated GPUs: what the task on the node really does with them.

A training program tells its simulated GPUs what it launched, as one letter in a file (SIMULATED_GPU_LOAD), whose time
of change tells when. A collective spins until all ranks have come, whether or not its own process still runs; a kernel
that computes ends by itself. A program that tells nothing keeps its GPUs busy as long as it is not stopped.

A health check reads gpus.json itself, where GPUs are always at rest, so nothing here can reach a verdict.
"""

from __future__ import annotations

import os
from zlib import crc32

from .files import DamagedFile, Json, read_json

#: Where a program tells, below its task's folder, and what.
LOAD_FILE, LOAD_VARIABLE = "gpu-load", "SIMULATED_GPU_LOAD"
COMPUTE, COLLECTIVE, HOST = "k", "c", "h"
#: Of an H100: watts at rest and at most, degrees at rest and under load.
_WATTS, _DEGREES = (112, 680), (38, 66)
#: Megahertz at rest and under load; one that is held down has no more than this share.
_CLOCKS, _HELD_DOWN = {"busy": 1980, "flat": 1980, "idle": 345}, 0.55
#: A GPU that spins burns little, always the same; a throttled one does what it may.
_SPINS, _SLOW = 0.1, 0.4
#: How long a number stays the same.
_STEP_S = 0.2
#: A collective that takes longer than this waits for a rank.
_LONG_S = 0.5
#: A collective that runs moves gigabytes; one that waits polls.
_BYTES_S = {"busy": 8e9, "flat": 1.2e8, "idle": 0.0}


def measured(node_dir: str, at: float) -> Json:
    """The content of gpus.json as it would be measured at that moment, and the processor time that its task took."""
    state = read_json(os.path.join(node_dir, "gpus.json")) or {"gpus": []}
    task_dir = _training(node_dir)
    state["busy_s"] = 0.0
    if task_dir is not None:
        stopped, state["busy_s"] = process(task_dir)
        load = _load(task_dir, at, stopped)
        state["gpus"] = [{**gpu, **_at_work(gpu, at, load)} for gpu in state["gpus"]]
    return state


def _training(node_dir: str) -> str | None:
    """The folder of the training task that runs now: it has all GPUs. Without power none does."""
    if os.path.exists(os.path.join(node_dir, "off")):
        return None
    tasks = os.path.join(node_dir, "tasks")
    folders = (os.path.join(tasks, name) for name in os.listdir(tasks))
    return next((folder for folder in folders if _is_training(folder)), None)


def _is_training(task_dir: str) -> bool:
    ended, running = (os.path.exists(os.path.join(task_dir, f"{end}.json")) for end in ("exit", "running"))
    try:
        spec = read_json(os.path.join(task_dir, "spec.json")) or {} if running and not ended else {}
    except DamagedFile:  # the node's agent tells of it
        return False
    return spec.get("kind") == "train"


def process(task_dir: str) -> tuple[bool, float]:
    """Whether the task's program is stopped, and the processor time that it has taken."""
    try:
        pid = (read_json(os.path.join(task_dir, "running.json")) or {})["pid"]
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (DamagedFile, OSError, KeyError):  # it ends this very moment
        return True, 0.0
    return fields[0] in "Tt", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load(task_dir: str, at: float, stopped: bool) -> str:
    """busy, flat or idle."""
    try:
        with open(os.path.join(task_dir, LOAD_FILE), encoding="ascii") as file:
            letter, since = file.read(1), os.fstat(file.fileno()).st_mtime
    except (OSError, UnicodeDecodeError):
        letter, since = COMPUTE, at
    if letter == COLLECTIVE and at - since > _LONG_S:
        return "flat"
    return "idle" if stopped or (letter == HOST and at - since > _LONG_S) else "busy"


def _at_work(gpu: Json, at: float, load: str) -> Json:
    fault = gpu["fault"]["kind"] if gpu["fault"] else ""
    slow, load = (
        fault == "slow",
        "flat" if fault == "hang" else load,
    )  # one that is frozen says that it is busy
    own, now = _draw(gpu["uuid"]), _draw(f"{gpu['uuid']} {at // _STEP_S:.0f}")
    share = {"busy": _SLOW if slow else 0.86 + 0.13 * now, "flat": _SPINS, "idle": 0.0}[load]
    warm = round(_DEGREES[0] + (_DEGREES[1] - _DEGREES[0]) * share + 4 * own)
    busy = 100 if slow else round(100 * share)
    return {
        "utilization": {"busy": busy, "flat": 100, "idle": 0}[load],
        "memory_used_mib": round(gpu["memory_total_mib"] * (0.76 + 0.06 * own)),
        "power_w": round(_WATTS[0] + (_WATTS[1] - _WATTS[0]) * share),
        "sm_mhz": round(_CLOCKS[load] * (_HELD_DOWN if slow and load == "busy" else 1)),
        "temperature_c": gpu["temperature_c"] if gpu["throttled"] else warm,
        "pcie_bytes_s": _BYTES_S[load],
    }


def _draw(seed: str) -> float:
    """A number from 0 to 1 that looks random and is always the same."""
    return crc32(seed.encode()) / 0xFFFFFFFF
