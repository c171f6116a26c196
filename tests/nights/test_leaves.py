"""Nights in which nodes are announced to be taken away, also those of jobs that recover from something else."""

from __future__ import annotations

from collections import Counter

from testbed.nights.night import run


def test_such_nights_end_well_and_jobs_went_elsewhere_in_time() -> None:
    nights = [run(seed, sky="leaves") for seed in range(80)]
    assert not [str(night) for night in nights if night.violation]
    struck = sum((night.struck for night in nights), Counter[str]())
    assert all(struck[what] > 20 for what in ("leaves", "left", "moves"))
