"""What the watch says of a node whose GPUs stand still: again and again, and once that they work again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ecs_gpu_recovery.health import policy
from ecs_gpu_recovery.health.sources.probe import Emit
from ecs_gpu_recovery.health.watch.pulse import State
from ecs_gpu_recovery.health.watch.sinks import Event
from ecs_gpu_recovery.health.watch.stalls import Stalls
from ecs_gpu_recovery.health.watch.writing import RankFiles

from .conftest import BUSY_MACHINE_S

#: Short windows; and whatever else this machine does is not the business of the test.
LIMITS = replace(policy.load().limits, pulse_window_s=0.8, host_bytes_s=1e15, host_cores=1e6)
WATTS = {"train": (160.0, 190.0), "spin": (124.0, 124.0)}


@pytest.fixture
def stalls(tmp_path: Path) -> Iterator[Stalls]:
    load = tmp_path / "load"
    load.write_text("train")

    def read(emit: Emit) -> None:
        for turn in range(10**6):
            what = load.read_text() or "train"
            moved = 9e9 if what == "train" else 1e8
            sample = {
                "index": 0,
                "power_w": WATTS[what][turn % 2],
                "utilization": 100,
                "memory_used_mib": 4e4,
            }
            emit({"sample": {"at": time.time(), "pcie_bytes_s": moved, **sample}})
            emit({"round": turn})
            time.sleep(0.03)

    (tmp_path / "progress" / "j").mkdir(parents=True)
    made = Stalls(read, LIMITS, "n1", every_s=0.2, files=RankFiles(tmp_path / "progress", every_s=0.02))
    yield made
    made.close()


def told(stalls: Stalls, enough: Callable[[list[Event]], bool]) -> list[Event]:
    found: list[Event] = []
    until = time.monotonic() + BUSY_MACHINE_S
    while not enough(found):
        assert time.monotonic() < until, found
        if (event := stalls.news()) is not None:
            found.append(event)
        time.sleep(0.01)
    return found


def wrote(event: Event) -> list[Event]:
    found = event.get("wrote", [])  # a busy machine may not have looked in time
    assert isinstance(found, list)
    return found


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_standstill_is_told_while_it_lasts_and_its_end_once(stalls: Stalls, tmp_path: Path) -> None:
    stamp = time.time() - 1000

    def trains_and_writes(_: object) -> bool:
        nonlocal stamp
        stamp += 1
        (tmp_path / "progress" / "j" / "0.log").touch()
        os.utime(tmp_path / "progress" / "j" / "0.log", (stamp, stamp))
        seen = stalls.latest is not None and stalls.latest.state is State.MOVING
        return seen and bool(stalls._files and stalls._files.told())

    assert told(stalls, trains_and_writes) == [], "of a node that trains nobody is told"
    (tmp_path / "load").write_text("spin")
    still = told(stalls, lambda found: len(found) >= 3 and any(map(wrote, found)))
    assert {(one["job"], one["rank"]) for event in still for one in wrote(event)} == {("j", 0)}
    assert {(event["state"], event["moved"], event["node"]) for event in still} == {("flat", True, "n1")}
    (tmp_path / "load").write_text("train")
    told(stalls, lambda found: any(event["state"] == "moving" for event in found))
    until = time.monotonic() + 3 * 0.2
    assert told(stalls, lambda found: bool(found) or time.monotonic() > until) == []
