"""Real processes die at random moments, by a seed. Nothing is lost or done twice; every record keeps its rules.

Another seed is another night: CHAOS_SEED=7 pytest -m slow tests/embedded/test_chaos.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.embedded import helpers
from tests.embedded.chaos import STEPS, Chaos
from tests.embedded.helpers import control_plane

SEED = os.environ.get("CHAOS_SEED", "1")
Recorder = Callable[[str, object], None]


def play(
    tmp_path: Path, seed: str, kills: int, gangs: list[list[str]], *, faults: bool = False
) -> tuple[Chaos, int]:
    digest = helpers.undisturbed_digest(tmp_path / "undisturbed", len(gangs[0]), STEPS)
    nodes = sum(map(len, gangs))
    with control_plane(tmp_path / "state", nodes) as plane:
        chaos = Chaos(plane, seed, digest, faults=faults)
        chaos.night(kills, gangs)
        chaos.check()
    return chaos, len(chaos.jobs)


@pytest.mark.slow
def test_a_dozen_random_kills_lose_nothing_and_repeat_nothing(
    tmp_path: Path, record_property: Recorder
) -> None:
    chaos, _ = play(tmp_path, "quick", 12, [["node-1", "node-2"]])
    record_property("kills", chaos.kills)
    assert len(chaos.killed) >= 2, f"too tame a night: {chaos.killed}"


@pytest.mark.slow
@pytest.mark.parametrize("night", [1, 2])
def test_a_hundred_random_kills_lose_nothing_and_repeat_nothing(
    tmp_path: Path, record_property: Recorder, night: int
) -> None:
    gangs = [["node-1", "node-2"], ["node-3", "node-4"]]
    chaos, jobs = play(tmp_path, f"{SEED}/{night}", 100, gangs, faults=True)
    record_property("kills", chaos.kills)
    record_property("jobs", jobs)
    assert len(chaos.killed) >= 3, f"too tame a night: {chaos.killed}"
