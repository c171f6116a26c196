"""What the watch tells of a node whose GPUs stand still: a level, repeated each minute while it lasts.

Nobody is told of a node that trains: silence means that there is no witness. That a node moves again is told once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime

from ecs_gpu_recovery.health.policy import Limits
from ecs_gpu_recovery.health.sources.probe import Emit
from ecs_gpu_recovery.health.sources.samples import Sampler, infiniband_bytes
from ecs_gpu_recovery.health.watch.node_metrics import TICKS_S, counters
from ecs_gpu_recovery.health.watch.pulse import GpuSample, HostSample, NodePulse, Pulses, State
from ecs_gpu_recovery.health.watch.sinks import PULSE, Event
from ecs_gpu_recovery.health.watch.writing import RankFiles

EVERY_S = 60.0


class Stalls:
    """Asked again and again. It never waits: a hung driver must not delay a fault."""

    def __init__(
        self,
        read: Callable[[Emit], None],
        limits: Limits,
        node: str,
        every_s: float = EVERY_S,
        files: RankFiles | None = None,
    ) -> None:
        self._sampler, self._pulses, self._files = Sampler(read), Pulses(limits), files
        self._node, self._every_s = node, every_s
        self._told: State | None = None
        self._due = 0.0
        self.latest: NodePulse | None = None

    def news(self) -> Event | None:
        for samples in self._sampler.rounds():
            self._pulses.add([GpuSample.from_json(sample) for sample in samples], host_sample())
        if self._files is not None:
            self._files.look()
        self.latest = pulse = self._pulses.judge(time.time())
        stalled = pulse is not None and pulse.state is not State.MOVING
        if pulse is None or not (stalled or self._told in (State.FLAT, State.IDLE)):
            self._told = None
            return None
        if pulse.state is self._told and time.monotonic() < self._due:
            return None
        self._told, self._due = pulse.state, time.monotonic() + self._every_s
        wrote = self._files.told() if self._files is not None else []
        return event(self._node, pulse, datetime.now(UTC)) | ({"wrote": wrote} if wrote else {})

    def close(self) -> None:
        self._sampler.close()
        if self._files is not None:
            self._files.close()


def event(node: str, pulse: NodePulse, at: datetime) -> dict[str, object]:
    said = at.isoformat(timespec="seconds")
    return {
        "schema": PULSE,
        "id": hashlib.sha256(f"{node} {pulse.state} {said}".encode()).hexdigest()[:24],
        "at": said,
        "node": node,
        "state": pulse.state.value,
        "since": datetime.fromtimestamp(pulse.since, UTC).isoformat(timespec="seconds"),
        "moved": pulse.moved,
        "what": pulse.sentence(),
        "gpus": [gpu.to_json() for gpu in pulse.gpus],
    }


def host_sample() -> HostSample:
    now = counters()
    moved = sum(now[name] for name in ("DiskRead", "DiskWritten", "NetworkReceived", "NetworkSent"))
    return HostSample(at=time.time(), bytes_moved=moved + infiniband_bytes(), busy_s=now["busy"] / TICKS_S)
