"""Nights under every sky with a name: all end well, the same way every time, and what a sky is named for has struck."""

from __future__ import annotations

from collections import Counter

import pytest

from testbed.nights.night import Outcome, run
from testbed.nights.skies import SKIES

#: How many nights, what must have struck or happened in them, and more often than that.
TRIED: dict[str, tuple[int, tuple[str, ...], int]] = {
    "late-news": (20, ("late", "stall"), 20),
    "late-functions": (20, ("late_functions",), 20),
    "anew": (40, ("forgets", "anew"), 20),
    "restarts": (60, ("lies",), 20),
    "together": (40, (), 0),
    "hangs": (60, ("hangs", "false_witness", "deaf_watch", "files", "hang ended", "trains again"), 5),
    "releases": (40, ("mixed",), 20),
    "poison": (40, ("poisoned",), 20),
    "storms": (60, ("frozen", "reboot"), 0),
    "shared": (20, ("strangers",), 5),
    "newcomers": (30, ("joins",), 20),
    "rungs": (40, ("replace", "joins", "reboot", "frozen"), 0),
    "spares": (20, ("moves",), 5),
    "leaves": (80, ("leaves", "left", "moves"), 20),
    "contest": (20, ("moves",), 5),
}


def test_every_sky_is_tried() -> None:
    assert set(TRIED) == set(SKIES) - {"any"}


def happened(night: Outcome) -> Counter[str]:
    return night.struck + Counter(str(kind) for _, kind, *_ in night.history)


@pytest.mark.parametrize("sky", TRIED)
def test_such_nights_end_well_and_the_same_way_every_time(sky: str) -> None:
    seeds, named_for, often = TRIED[sky]
    nights = [run(seed, sky=sky) for seed in range(seeds)]
    assert not [str(night) for night in nights if night.violation]
    seen = sum(map(happened, nights), Counter[str]())
    assert all(seen[what] > often for what in named_for), seen
    assert [run(seed, sky=sky).digest for seed in range(5)] == [night.digest for night in nights[:5]]


def test_jobs_run_on_machines_that_joined() -> None:
    used = 0
    for night in (run(seed, sky="newcomers") for seed in range(10)):
        new = {str(rest[0]) for _, kind, *rest in night.history if kind == "joins"}
        used += sum(kind == "start" and bool(rest[1]) and rest[4] in new for _, kind, *rest in night.history)
    assert used > 2
