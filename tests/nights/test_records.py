"""Nights in which two releases work on the same records, and nights in which one of the records can't be read."""

from __future__ import annotations

from pathlib import Path

from testbed.nights.night import Night, run


def test_both_kinds_of_later_release_and_of_damage_are_common() -> None:
    releases = [Night(seed, sky="releases").weather for seed in range(40)]
    assert {(w.breaking, w.deployed) for w in releases} == {(True, True), (False, True), (False, False)}
    assert {Night(seed, sky="poison").weather.restored for seed in range(40)} == {True, False}


def test_two_releases_share_the_embedded_store(tmp_path: Path) -> None:
    seeds = [seed for seed in range(20) if not Night(seed, sky="releases").weather.poisoned][:3]
    nights = [run(seed, database=tmp_path / f"{seed}.db", sky="releases") for seed in seeds]
    assert not [str(night) for night in nights if night.violation]
    assert all(night.struck["mixed"] for night in nights)
