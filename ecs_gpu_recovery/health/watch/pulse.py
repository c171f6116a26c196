"""Whether the GPUs of a node train, spin or rest, judged from the last minute of samples.

A collective that waits for a rank that never comes keeps its GPU at 100 % utilisation, so utilisation says nothing.
What gives it away: the power is lower than in training *and flat*, and the bytes stop. Each GPU is compared with
itself, so there is no number of watts to know. The limits stand in policy.toml, each with where it comes from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from statistics import fmean

from ecs_gpu_recovery.health.policy import Limits


class State(StrEnum):
    """What a GPU, or all GPUs of a node together, were seen to do."""

    MOVING = "moving"  #: it works, or nothing proves that it does not
    FLAT = "flat"  #: it spins: busy, but with little power, always the same, and without traffic
    IDLE = "idle"  #: a program holds it and lets it rest


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU, one moment. What the driver does not tell is None."""

    at: float
    index: int
    power_w: float | None = None
    utilization: float | None = None
    sm_mhz: float | None = None
    memory_used_mib: float | None = None
    pcie_bytes_s: float | None = None
    nvlink_bytes: float | None = None  #: since the driver was loaded
    programs: float | None = None  #: that use it, as far as they can be seen from here

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> GpuSample:
        known = {f.name: data.get(f.name) for f in fields(cls)}
        return cls(**known)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """The machine around them: what only grows."""

    at: float
    bytes_moved: float  #: by disks, network and InfiniBand or EFA ports
    busy_s: float  #: processor seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPulse:
    """One GPU over the window: what the log line and the charts show."""

    index: int
    state: State
    power_w: float | None = None
    power_spread_w: float | None = None
    bytes_s: float | None = None
    sm_mhz: float | None = None

    def to_json(self) -> dict[str, object]:
        given = {name: getattr(self, name) for name in ("power_w", "power_spread_w", "sm_mhz")}
        known = {name: round(value, 1) for name, value in given.items() if value is not None}
        known |= {"bytes_s": round(self.bytes_s)} if self.bytes_s is not None else {}
        return {"index": self.index, "state": self.state.value, **known}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePulse:
    """All GPUs that a program holds, and the machine."""

    state: State
    since: float  #: it has been so at least since then
    moved: bool  #: they have trained before, under the program that holds them now
    gpus: tuple[GpuPulse, ...]

    def sentence(self) -> str:
        """`2 flat (124 W, 0.12 GB/s), 1 idle (105 W)`"""
        parts = []
        for state in State:
            some = [gpu for gpu in self.gpus if gpu.state is state]
            if some:
                watts = fmean(gpu.power_w or 0.0 for gpu in some)
                moved = fmean(gpu.bytes_s or 0.0 for gpu in some) / 1e9
                parts.append(f"{len(some)} {state} ({watts:.0f} W, {moved:.2f} GB/s)")
        return ", ".join(parts)


@dataclass(slots=True)
class _Gpu:
    """The window of one GPU, and the best it has shown under this program."""

    window: deque[GpuSample] = field(default_factory=deque)
    best_w: float = 0.0
    best_bytes_s: float = 0.0
    judged_at: float = 0.0
    held_since: float | None = None


class Pulses:
    """The windows of all GPUs of a node. Fed with samples, asked now and then."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._gpus: dict[int, _Gpu] = {}
        self._host: deque[HostSample] = deque()
        self._state: State | None = None
        self._since = 0.0
        self._moved = False

    def add(self, gpus: Iterable[GpuSample], host: HostSample | None) -> None:
        """One round of questions. A GPU that its program has let go begins anew."""
        for sample in gpus:
            gpu = self._gpus.setdefault(sample.index, _Gpu())
            held = sample.memory_used_mib is not None and sample.memory_used_mib >= self._limits.held_mib
            if not held:
                self._gpus[sample.index] = gpu = _Gpu()
            elif gpu.held_since is None:
                gpu.held_since = sample.at
            gpu.window.append(sample)
            _shorten(gpu.window, sample.at - self._limits.pulse_window_s)
        if host is not None:
            self._host.append(host)
            _shorten(self._host, host.at - self._limits.pulse_window_s)

    def judge(self, now: float) -> NodePulse | None:
        """Where the node stands; None while no program holds a GPU, or the window is not full of fresh samples."""
        held = {index: gpu for index, gpu in self._gpus.items() if gpu.held_since is not None}
        full = [gpu for gpu in held.values() if _is_full(gpu.window, now, self._limits.pulse_window_s)]
        if not held or len(full) < len(held):
            self._state, self._moved = None, self._moved and bool(held)
            return None
        seen = tuple(self._of(index, gpu) for index, gpu in sorted(held.items()))
        state = self._together(seen)
        if state is not self._state:
            began = max(gpu.window[0].at for gpu in held.values())
            self._since = began if self._state in (None, State.MOVING) else min(began, self._since)
            self._state = state
        self._moved = self._moved or state is State.MOVING
        return NodePulse(state=state, since=self._since, moved=self._moved, gpus=seen)

    def _of(self, index: int, gpu: _Gpu) -> GpuPulse:
        limits, window = self._limits, list(gpu.window)
        watts = [s.power_w for s in window if s.power_w is not None]
        busy = [s.utilization for s in window if s.utilization is not None]
        clocks = [s.sm_mhz for s in window if s.sm_mhz is not None]
        moved = _bytes_s(window)
        state = State.MOVING
        if len(watts) == len(window) and len(busy) == len(window):
            mean, spread = fmean(watts), max(watts) - min(watts)
            forget = 0.5 ** ((window[-1].at - gpu.judged_at) / limits.best_half_life_s)
            gpu.judged_at = window[-1].at
            gpu.best_w = max(mean, gpu.best_w * forget)
            gpu.best_bytes_s = max(moved or 0.0, gpu.best_bytes_s * forget)
            quiet = (moved or 0.0) <= max(limits.quiet_bytes_s, limits.quiet_share * gpu.best_bytes_s)
            even = spread <= max(limits.flat_power_w, limits.flat_power_share * mean)
            lower = mean <= limits.flat_fall * gpu.best_w
            if fmean(busy) <= limits.idle_utilization and quiet:
                state = State.IDLE
            elif min(busy) >= limits.spin_utilization and even and lower and quiet:
                state = State.FLAT
        return GpuPulse(
            index=index,
            state=state,
            power_w=fmean(watts) if watts else None,
            power_spread_w=max(watts) - min(watts) if watts else None,
            bytes_s=moved,
            sm_mhz=fmean(clocks) if clocks else None,
        )

    def _together(self, seen: Sequence[GpuPulse]) -> State:
        """One GPU that works, or a machine that does, is enough: somebody trains, writes or compiles there."""
        states = [gpu.state for gpu in seen]
        flat = [self._gpus[gpu.index].window[-1].programs or 1 for gpu in seen if gpu.state is State.FLAT]
        if State.MOVING in states or self._host_works(sum(flat)):
            return State.MOVING
        return State.FLAT if State.FLAT in states else State.IDLE

    def _host_works(self, spinning: float) -> bool:
        """Behind GPUs that stand still a program may write a checkpoint, or compile. Those that spin take processor
        time too."""
        if len(self._host) < 2:
            return True
        first, last = self._host[0], self._host[-1]
        span = max(last.at - first.at, 1e-9)
        if (last.bytes_moved - first.bytes_moved) / span > self._limits.host_bytes_s:
            return True
        cores = (last.busy_s - first.busy_s) / span
        return cores > self._limits.host_cores + spinning * self._limits.spin_cores


def _shorten(window: deque[GpuSample] | deque[HostSample], oldest: float) -> None:
    """One sample at or before the beginning stays, so that a full window spans all of its time."""
    while len(window) > 2 and window[1].at <= oldest:
        window.popleft()


def _is_full(window: Sequence[GpuSample], now: float, span_s: float) -> bool:
    """Enough, over all of its time, and fresh: a sampler that hangs is no witness."""
    return len(window) >= 5 and window[-1].at - window[0].at >= 0.9 * span_s and now - window[-1].at <= span_s


def _bytes_s(window: Sequence[GpuSample]) -> float | None:
    """Over PCIe as sampled, over NVLink as counted. A counter that went back was reset."""
    pcie = [s.pcie_bytes_s for s in window if s.pcie_bytes_s is not None]
    links = [s for s in window if s.nvlink_bytes is not None]
    found = [fmean(pcie)] if pcie else []
    if len(links) > 1 and links[-1].at > links[0].at:
        counted = (links[-1].nvlink_bytes or 0.0) - (links[0].nvlink_bytes or 0.0)
        found += [counted / (links[-1].at - links[0].at)] if counted >= 0 else []
    return sum(found) if found else None
