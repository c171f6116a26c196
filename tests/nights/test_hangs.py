"""Nights in which jobs stand still, and the witnesses of it lie, come late, or stop coming."""

from __future__ import annotations

from collections import Counter

from testbed.nights.night import run


def test_such_nights_end_well_and_the_same_way_every_time() -> None:
    nights = [run(seed, sky="hangs") for seed in range(60)]
    assert not [str(night) for night in nights if night.violation]
    assert [run(seed, sky="hangs").digest for seed in range(5)] == [night.digest for night in nights[:5]]
    struck = sum((night.struck for night in nights), Counter[str]())
    assert all(
        struck[what] > 5
        for what in ("hangs", "false_witness", "deaf_watch", "files", "hang ended", "trains again")
    )
