"""What a driver would measure on simulated GPUs: busy where a rank really runs, idle elsewhere. For charts only.

A health check reads gpus.json itself, where GPUs are always at rest, so nothing here can reach a verdict.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from zlib import crc32

from .files import DamagedFile, Json, read_json
from .gpus import gpus_of_task

#: Of an H100: watts at rest and at most, degrees at rest and under load.
_WATTS, _DEGREES = (112, 680), (38, 66)
#: A frozen GPU says that it is busy and burns little; a throttled one does what it may.
_FAULTY = {"hang": 0.1, "slow": 0.4}
#: How long a number stays the same.
_STEP_S = 5.0


def measured(node_dir: str, at: float) -> Json:
    """The content of gpus.json as it would be measured at that moment: the same for the same tasks and moment."""
    state = read_json(os.path.join(node_dir, "gpus.json")) or {"gpus": []}
    held = _held(node_dir, [gpu["index"] for gpu in state["gpus"]])
    gpus = [{**gpu, **_at_work(gpu, at)} if gpu["index"] in held else gpu for gpu in state["gpus"]]
    return {**state, "gpus": gpus}


def _held(node_dir: str, every: Sequence[int]) -> set[int]:
    """The GPUs of the training tasks that run now. Without power none does, whatever was heard last."""
    tasks, held = os.path.join(node_dir, "tasks"), set[int]()
    for name in [] if os.path.exists(os.path.join(node_dir, "off")) else os.listdir(tasks):
        folder = os.path.join(tasks, name)
        ended, running = (os.path.exists(os.path.join(folder, f"{end}.json")) for end in ("exit", "running"))
        if running and not ended:
            held.update(_gpus_of(folder, every))
    return held


def _gpus_of(task_dir: str, every: Sequence[int]) -> list[int]:
    try:
        spec = read_json(os.path.join(task_dir, "spec.json")) or {}
    except DamagedFile:  # whoever looks after the task tells of it
        return []
    return gpus_of_task(spec, every) if spec.get("kind") == "train" else []


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
