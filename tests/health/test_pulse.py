"""Whether GPUs train, spin or rest: what each limit protects against, and what a full window takes."""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.health import policy
from ecs_gpu_recovery.health.policy import Limits
from ecs_gpu_recovery.health.sources import probe, samples
from ecs_gpu_recovery.health.sources.probe import Emit, Probe
from ecs_gpu_recovery.health.sources.samples import Sampler
from ecs_gpu_recovery.health.watch.pulse import GpuSample, HostSample, NodePulse, Pulses, State
from ecs_gpu_recovery.health.watch.stalls import event
from tests.programs import eventually

from .conftest import BUSY_MACHINE_S

LIMITS = policy.load().limits
Load = Callable[[float], dict[str, float]]


def training(at: float) -> dict[str, float]:
    """As measured on an H200: uneven power, gigabytes over PCIe."""
    return {"power_w": 176 + 13 * math.sin(at), "utilization": 100, "pcie_bytes_s": 9.4e9}


def spinning(at: float) -> dict[str, float]:
    """A collective that waits for a rank that was stopped."""
    return {"power_w": 124 + 0.3 * math.sin(at), "utilization": 100, "pcie_bytes_s": 1.2e8}


def resting(at: float) -> dict[str, float]:
    return {"power_w": 105, "utilization": 0, "pcie_bytes_s": 0}


def watch(
    *loads: tuple[Load, float],
    limits: Limits = LIMITS,
    bytes_s: float = 0,
    cores: float = 0.2,
    held: float = 40_000,
) -> NodePulse | None:
    """One GPU through several loads, each for so many seconds; how it is judged at the end."""
    pulses, at, pulse = Pulses(limits), 0.0, None
    for load, seconds in loads:
        for _ in range(round(seconds / 5)):
            at += 5
            sample = GpuSample(at=at, index=0, memory_used_mib=held, **load(at))  # type: ignore[arg-type]
            pulses.add([sample], HostSample(at=at, bytes_moved=bytes_s * at, busy_s=cores * at))
            pulse = pulses.judge(at)
    return pulse


def state(*loads: tuple[Load, float], limits: Limits = LIMITS, **host: float) -> State | None:
    pulse = watch(*loads, limits=limits, **host)  # type: ignore[arg-type]
    return pulse.state if pulse else None


def changed(load: Load, **values: float) -> Load:
    return lambda at: {**load(at), **values}


TRAINED = (training, 300.0)


def test_a_gpu_that_trained_and_then_spins_is_flat_since_the_moment_it_stopped_training() -> None:
    pulse = watch(TRAINED, (spinning, 300))
    assert pulse is not None
    assert (pulse.state, pulse.moved) == (State.FLAT, True)
    assert 300 <= pulse.since <= 310
    assert pulse.sentence() == "1 flat (124 W, 0.12 GB/s)"
    told = event("n1", pulse, datetime(2026, 11, 15, tzinfo=UTC))
    assert (told["state"], told["since"]) == ("flat", "1970-01-01T00:05:05+00:00")


def swinging(watts: float, by: float) -> Load:
    return lambda at: {**spinning(at), "power_w": watts + by * math.sin(at)}


def by_steps(at: float) -> dict[str, float]:
    return training(at) if 0 < at % 50 < 25 else spinning(at)


SMALL, STAGE = changed(training, power_w=60), changed(training, pcie_bytes_s=3e9)
CAPPED = changed(training, power_w=698, pcie_bytes_s=0)
#: What a limit protects against, a value that would not, and the load, which works: it is neither flat nor idle.
PROTECTED: dict[str, tuple[Any, ...]] = {
    "a step that ends within the window": ("pulse_window_s", 20, TRAINED, (by_steps, 300)),
    "a free GPU, which nobody is to be told of": ("held_mib", 1, (resting, 300)),
    "a small model's idle GPU": ("idle_utilization", 20, (changed(resting, utilization=12), 300)),
    "kernels with gaps": ("spin_utilization", 50, TRAINED, (changed(spinning, utilization=60), 300)),
    "uneven power without much traffic": ("flat_power_share", 0.2, TRAINED, (swinging(124, 8), 300)),
    "a few watts on a small GPU": ("flat_power_w", 5, (SMALL, 300), (swinging(40, 2), 300)),
    "one that was never different, or at its power limit": ("flat_fall", 1.1, (CAPPED, 600)),
    "a stage that passes on": (
        "quiet_bytes_s",
        1e9,
        (STAGE, 300),
        (changed(spinning, pcie_bytes_s=5e8), 300),
    ),
    "one with half its bytes": ("quiet_share", 0.5, TRAINED, (changed(spinning, pcie_bytes_s=3e9), 300)),
    "a checkpoint of ten minutes": ("host_bytes_s", 1e9, TRAINED, (resting, 600)),
    "a compilation": ("host_cores", 64, TRAINED, (resting, 600)),
}
#: What the machine around the GPU does meanwhile.
MEANWHILE = {"held_mib": {"held": 4}, "host_bytes_s": {"bytes_s": 1.7e7}, "host_cores": {"cores": 4.0}}


@pytest.mark.parametrize("what", PROTECTED)
def test_each_limit_protects_against(what: str) -> None:
    limit, useless, *loads = PROTECTED[what]
    host: dict[str, float] = MEANWHILE.get(limit, {})
    assert state(*loads, **host) in (State.MOVING, None)
    assert state(*loads, limits=replace(LIMITS, **{limit: useless}), **host) in (State.FLAT, State.IDLE)


def test_a_spinning_rank_keeps_cores_busy_and_is_flat_all_the_same() -> None:
    assert state(TRAINED, (spinning, 300), cores=3.0) is State.FLAT


def test_the_cores_of_ranks_that_spin_do_not_hide_one_that_sleeps_beside_them() -> None:
    pulses, at = Pulses(LIMITS), 0.0
    for _ in range(120):
        at += 5
        busy = spinning if at > 300 else training
        loads = [busy(at)] * 7 + [resting(at) if at > 300 else training(at)]
        gpus = [GpuSample(at=at, index=i, memory_used_mib=40_000, **load) for i, load in enumerate(loads)]
        pulses.add(gpus, HostSample(at=at, bytes_moved=0, busy_s=16.0 * at))
        pulse = pulses.judge(at)
    assert pulse is not None
    assert pulse.state is State.FLAT
    assert pulse.sentence() == "7 flat (124 W, 0.12 GB/s), 1 idle (105 W, 0.00 GB/s)"


def test_a_hang_is_over_before_the_training_that_it_is_compared_with_is_forgotten() -> None:
    assert state(TRAINED, (spinning, 2400)) is State.FLAT
    assert state(TRAINED, (spinning, 2400), limits=replace(LIMITS, best_half_life_s=600)) is State.MOVING


def test_what_the_driver_does_not_tell_proves_nothing() -> None:
    unknown: Load = lambda at: {"utilization": 100}  # noqa: E731 - a load like the others
    assert state((unknown, 300)) is State.MOVING


def test_a_program_that_never_trained_is_told_apart() -> None:
    pulse = watch((resting, 300))
    assert pulse is not None
    assert (pulse.state, pulse.moved) == (State.IDLE, False)


def test_samples_that_stop_coming_are_no_witness() -> None:
    pulses = Pulses(LIMITS)
    for at in range(5, 305, 5):
        sample = GpuSample(at=at, index=0, memory_used_mib=40_000, **resting(at))  # type: ignore[arg-type]
        pulses.add([sample], HostSample(at=at, bytes_moved=0, busy_s=0))
    assert pulses.judge(300) is not None
    assert pulses.judge(300 + LIMITS.pulse_window_s + 1) is None


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("waits", [True, False], ids=["ended at once", "ended after all"])
def test_a_child_streams_rounds_and_one_that_hangs_in_the_driver_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    begun = tmp_path / "begun"
    monkeypatch.setattr(probe, "_KILL_GRACE_S", BUSY_MACHINE_S if waits else 0.0)

    def hangs_the_first_time(emit: Emit) -> None:
        first = not begun.exists()
        begun.touch()
        emit({"sample": {"at": time.time(), "index": 0, "power_w": 100.0}})
        if first:
            time.sleep(3600)
        samples.stream(lambda send: None, emit, every_s=0.01)

    sampler = Sampler(hangs_the_first_time, silent_s=0.3)
    until = time.monotonic() + BUSY_MACHINE_S
    seen: list[samples.Round] = []
    while len(seen) < 3:
        assert time.monotonic() < until
        seen += sampler.rounds()
        time.sleep(0.01)
    sampler.close()
    assert [len(one) for one in seen[:3]] == [1, 0, 0]


def test_a_child_ends_when_nobody_listens() -> None:
    work = partial(samples.stream, lambda send: None, every_s=0.01)
    child = probe.start(Probe(name="reader", deadline_s=BUSY_MACHINE_S, work=work))
    os.close(child.pipe)
    eventually(lambda: probe.ended(child), "it has ended", BUSY_MACHINE_S)


def test_a_program_that_says_something_else_is_heard_all_the_same() -> None:
    said = """printf 'hello\\n[1]\\n{"sample": {"index": 0}}\\n{"round": 1}\\n'; sleep 3600"""
    sampler = Sampler(["/bin/sh", "-c", said])
    heard = eventually(lambda: list(sampler.rounds()), "a round", BUSY_MACHINE_S)
    sampler.close()
    assert heard == [[{"index": 0}]]


def test_a_program_that_is_not_there_costs_nothing_and_is_tried_again_later() -> None:
    sampler = Sampler(["/nowhere/python"])
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        list(sampler.rounds())
    assert list(sampler.rounds()) == [], "not at every look"
    assert os.listdir("/proc/self/fd") == before


def test_a_program_that_samples_inherits_no_lock_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that hangs in the driver outlives a control plane, and must not keep the next one out."""
    monkeypatch.setattr(probe, "_KILL_GRACE_S", BUSY_MACHINE_S)
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    child = probe.start(Probe(name="reader", deadline_s=BUSY_MACHINE_S, work=["/bin/sleep", "3600"]))
    try:
        os.close(lock)
        again, until = os.open(tmp_path / "lock", os.O_RDWR), time.monotonic() + BUSY_MACHINE_S
        while True:  # the kernel closes files of a child a moment after its parent goes on
            try:
                fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < until
                time.sleep(0.01)
        os.close(again)
    finally:
        assert probe.kill(child)


def test_the_ports_between_nodes_are_counted_in_bytes(tmp_path: Path) -> None:
    for port, name, text in (
        ("mlx5_0/ports/1", "counters/port_xmit_data", "100\n"),
        ("mlx5_0/ports/1", "counters/port_rcv_data", "N/A\n"),
        ("rdmap0/ports/1", "hw_counters/tx_bytes", "7\n"),
    ):
        path = tmp_path / port / name
        os.makedirs(path.parent, exist_ok=True)
        path.write_text(text)
    assert samples.infiniband_bytes(tmp_path) == 407
