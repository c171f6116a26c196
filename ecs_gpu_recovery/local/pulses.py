"""What the GPUs of each embedded node do, by the same rules as `gpu-health watch --pulse` on a real one.

A node without power, or whose agent is dead, says nothing: it is no witness. Nor is one whose files are
damaged or gone; others tell of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ..core.events import NodePulse
from ..health import policy
from ..health.sources.samples import Sampler
from ..health.watch.pulse import GpuSample, HostSample, Pulses, State
from ..health.watch.pulse import NodePulse as Judged
from ..health.watch.stalls import host_sample
from .gpu_load import measured
from .processes import python_module
from .views import NodeView

#: Shorter than a minute where people are less patient with a hang, but never shorter than this.
_SHORTEST_S = 2.0
_OF_A_WINDOW = 10


class NodePulses:
    """The windows of every node. Asked again and again, it samples when it is time."""

    def __init__(self, hang_after: timedelta) -> None:
        limits = policy.load().limits
        window_s = max(_SHORTEST_S, min(limits.pulse_window_s, hang_after.total_seconds() / _OF_A_WINDOW))
        self._limits = replace(limits, pulse_window_s=window_s)
        self._repeat = hang_after / _OF_A_WINDOW
        self._next = 0.0
        self._nodes: dict[str, tuple[str | None, Pulses]] = {}
        self._told: dict[str, tuple[State, datetime]] = {}
        self._real: Sampler | None = None
        self._real_round: list[GpuSample] = []

    def look(self, views: Callable[[], Iterable[NodeView]], now: datetime) -> Iterator[NodePulse]:
        """What is to be told of the nodes now: that they stand still, and once that they move again."""
        at = now.timestamp()
        if at < self._next:
            return
        self._next = at + self._limits.pulse_window_s / _OF_A_WINDOW
        for view in views():
            boot, pulses = self._nodes.get(view.name, (None, None))
            if pulses is None or boot != view.boot_id or not view.connected:
                pulses = Pulses(self._limits)
                self._nodes[view.name] = (view.boot_id, pulses)
            if view.connected:
                try:
                    pulses.add(*self._samples(view, at))
                except (OSError, ValueError, TypeError, LookupError, AttributeError):
                    continue
            judged = pulses.judge(at)
            if judged is not None and self._is_news(view.name, judged, now):
                yield _fact(view.name, judged, now)

    def _is_news(self, node: str, judged: Judged, now: datetime) -> bool:
        before = self._told.get(node)
        if judged.state is State.MOVING and (before is None or before[0] is State.MOVING):
            return False
        if before is not None and before[0] is judged.state and now - before[1] < self._repeat:
            return False
        self._told[node] = (judged.state, now)
        return True

    def _samples(self, view: NodeView, at: float) -> tuple[list[GpuSample], HostSample | None]:
        if view.kind == "real":
            return self._of_this_machine(), host_sample()
        state = measured(str(view.folder), at)
        host = HostSample(at=at, bytes_moved=0, busy_s=state["busy_s"])
        known = ("index", "power_w", "utilization", "sm_mhz", "memory_used_mib", "pcie_bytes_s")
        return [
            GpuSample.from_json({"at": at, **{key: gpu.get(key) for key in known}})
            for gpu in state["gpus"]
            if gpu["present"]
        ], host

    def _of_this_machine(self) -> list[GpuSample]:
        if self._real is None:
            self._real = Sampler(python_module("ecs_gpu_recovery.health.sources.nvml", packages=True))
        for samples in self._real.rounds():
            self._real_round = [GpuSample.from_json(sample) for sample in samples]
        return self._real_round

    def close(self) -> None:
        if self._real is not None:
            self._real.close()


def _fact(node: str, judged: Judged, now: datetime) -> NodePulse:
    return NodePulse(
        at=now,
        node=node,
        state=judged.state.value,
        since=datetime.fromtimestamp(judged.since, UTC),
        trained=judged.moved,
        what=judged.sentence(),
    )
