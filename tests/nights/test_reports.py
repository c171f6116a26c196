"""The generated pages: they show what was measured, say what it means, and hide nothing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from testbed.nights import weather
from tools import charts, reports
from tools.bench import topics
from tools.benches._meanings import MEANINGS, TOPICS, Meaning
from tools.reliability_text import TROUBLES

ROOT = Path(__file__).resolve().parents[2]
PROOF = {
    "seeds_run": 10_000,
    "seeds_failed": 2,
    "night_hours": 31_000,
    "night_jobs": 15_000,
    "complete_night_jobs": 9_000,
    "failed_night_jobs": 6_000,
    "troubles": 52_345,
    "troubles_lost": 52_000,
    "troubles_stall": 345,
    "mutants": 26,
    "mutants_caught": 25,
    "proof_seconds": 1_200,
}
BENCH = {
    "fleet_growth": 1.5,
    "fleet_week_16384_s": 0.02,
    "calls_recovery_2": 64,
    "calls_recovery_256": 3005,
    "new": 7.0,
}


def test_the_page_of_the_proof_shows_only_what_was_measured() -> None:
    page = reports.reliability_page(PROOF, "2026-01-02")
    assert "Measured on 2026-01-02 by `make proof`, 20 minutes on 2 cores." in page
    assert "| nights simulated | 10,000 | 2 |" in page
    assert "26 bugs were planted" in page
    assert "COMPLETE 9,000, FAILED 6,000" in page
    assert "kill -9" not in page, "no kill was counted"


def test_the_page_of_the_proof_can_be_made_before_anything_was_measured() -> None:
    page = reports.reliability_page({}, "2026-01-02")
    assert "What is promised" in page
    assert "?" not in page


def test_verdicts_come_from_the_benchmark_where_it_was_run(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    assert reports.examined(file) == {}
    file.write_text('{"verdict_cases": 200, "verdict_actions_right": 0.99}')
    assert reports.examined(file) == {"verdict_cases": 200, "verdict_wrong": 2}


def test_a_terminal_gets_the_same_numbers() -> None:
    said = reports.proof_summary(PROOF)
    assert ["nights", "simulated", "10,000", "2"] in [line.split() for line in said.splitlines()]
    assert "25 found" in said


def test_the_page_of_benchmarks_says_which_aims_are_met() -> None:
    page = reports.benchmarks_page(BENCH, "2026-01-02", "a machine")
    assert "1 of 4 aims are met. Missed: `calls_recovery_2`, `calls_recovery_256`, `fleet_growth`." in page
    assert (
        "| `fleet_growth` | cost of four times the nodes, over four times the cost | **1.5** (≤ 1.2) |"
        in page
    )
    assert "| 0.02 s (≤ 60) |" in page
    assert "| `calls_recovery_2`, `_256` |" in page
    assert "| **64** (≤ 36); **3,005** (≤ 2068) |" in page, "one row for all sizes of a gang"


def test_a_number_that_nobody_described_is_shown_and_named() -> None:
    assert reports.unknown(BENCH) == ["new"]
    assert "| `new` |  | 7 |" in reports.benchmarks_page(BENCH, "2026-01-02", "a machine")


def test_pages_and_pictures_are_written_together(tmp_path: Path) -> None:
    wrote = [*reports.write_reliability(PROOF, tmp_path), *reports.write_benchmarks(BENCH, tmp_path)]
    assert {path.name for path in wrote} == {
        "reliability.md",
        "proof-troubles.svg",
        "benchmarks.md",
        "bench-aims.svg",
        "bench-calls.svg",
    }
    for path in wrote:
        if path.suffix == ".svg":
            assert ET.fromstring(path.read_text()).tag.endswith("svg")


@pytest.mark.parametrize("name", ["reliability.md", "benchmarks.md"])
def test_the_pages_in_the_repository_were_made_by_the_tool_with_their_pictures(name: str) -> None:
    text = (ROOT / "docs" / name).read_text()
    assert text.startswith("<!-- Made by `make")
    assert "Measured on 20" in text
    for picture in text.split("](pictures/")[1:]:
        assert (ROOT / "docs" / "pictures" / picture.partition(")")[0]).exists()


def test_every_trouble_has_words() -> None:
    assert set(TROUBLES) == set(weather.TROUBLES)


def test_every_meaning_belongs_to_a_topic_that_can_be_measured() -> None:
    assert {meaning.topic for meaning in MEANINGS.values()} <= set(topics())
    assert set(topics()) <= set(TOPICS)


@pytest.mark.parametrize(
    ("meaning", "aim", "value", "met"),
    [
        (Meaning("t", "w"), "", 5, None),
        (Meaning("t", "w", most=1.2), "≤ 1.2", 1.2, True),
        (Meaning("t", "w", most=1.2), "≤ 1.2", 1.3, False),
        (Meaning("t", "w", least=0.5), "≥ 0.5", 0.4, False),
        (Meaning("t", "w", most=1, least=1), "1", 1, True),
    ],
)
def test_an_aim_is_a_limit_above_or_below(meaning: Meaning, aim: str, value: float, met: bool | None) -> None:
    assert (meaning.aim, meaning.holds(value)) == (aim, met)


def test_charts_show_every_row() -> None:
    text = charts.bars("Counts", [("many", 12_000), ("few", 3), ("none", 0)])
    assert "12,000" in text
    assert "few" in text
    assert "none" not in text
