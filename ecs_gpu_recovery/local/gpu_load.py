"""What a driver would measure on simulated GPUs: busy where a rank really runs, idle elsewhere. For charts only.

A health check reads gpus.json itself, where GPUs are always at rest, so nothing here can reach a verdict.
"""

from __future__ import annotations

import os
from zlib import crc32

from .files import DamagedFile, Json, read_json

#: Of an H100: watts at rest and at most, degrees at rest and under load.
_WATTS, _DEGREES = (112, 680), (38, 66)
#: A frozen GPU says that it is busy and burns little; a throttled one does what it may.
_FAULTY = {"hang": 0.1, "slow": 0.4}
#: How long a number stays the same.
_STEP_S = 5.0


def measured(node_dir: str, at: float) -> Json:
    """The content of gpus.json as it would be measured at that moment: the same for the same tasks and moment."""
    state = read_json(os.path.join(node_dir, "gpus.json")) or {"gpus": []}
    if _trains(node_dir):
        state["gpus"] = [{**gpu, **_at_work(gpu, at)} for gpu in state["gpus"]]
    return state


def _trains(node_dir: str) -> bool:
    """Whether a training task runs now: it has all GPUs. Without power none does, whatever was heard last."""
    if os.path.exists(os.path.join(node_dir, "off")):
        return False
    tasks = os.path.join(node_dir, "tasks")
    return any(_is_training(os.path.join(tasks, name)) for name in os.listdir(tasks))


def _is_training(task_dir: str) -> bool:
    ended, running = (os.path.exists(os.path.join(task_dir, f"{end}.json")) for end in ("exit", "running"))
    try:
        spec = read_json(os.path.join(task_dir, "spec.json")) or {} if running and not ended else {}
    except DamagedFile:  # the node's agent tells of it
        return False
    return spec.get("kind") == "train"


def _at_work(gpu: Json, at: float) -> Json:
    fault = gpu["fault"]["kind"] if gpu["fault"] else ""
    own, now = _draw(gpu["uuid"]), _draw(f"{gpu['uuid']} {at // _STEP_S:.0f}")
    load = _FAULTY.get(fault, 0.86 + 0.13 * now)
    warm = round(_DEGREES[0] + (_DEGREES[1] - _DEGREES[0]) * load + 4 * own)
    return {
        "utilization": 100 if fault in _FAULTY else round(100 * load),
        "memory_used_mib": round(gpu["memory_total_mib"] * (0.76 + 0.06 * own)),
        "power_w": round(_WATTS[0] + (_WATTS[1] - _WATTS[0]) * load),
        "temperature_c": gpu["temperature_c"] if gpu["throttled"] else warm,
    }


def _draw(seed: str) -> float:
    """A number from 0 to 1 that looks random and is always the same."""
    return crc32(seed.encode()) / 0xFFFFFFFF
