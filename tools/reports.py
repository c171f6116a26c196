"""The two pages of numbers: docs/reliability.md from build/proof.json, docs/benchmarks.md from build/bench.json.

`make proof` and `make bench` write them; `python -m tools.reports` writes both again from what was measured last.
Every number on them comes from those files, and what was not measured is not shown.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import groupby, takewhile
from pathlib import Path

from testbed.nights.mutants import MUTANTS
from tools import charts
from tools.benches._meanings import MEANINGS, TOPICS, Meaning
from tools.reliability_text import HOW_NIGHTS_WORK, KINDS, LIMITS, PROMISES, TROUBLES

PROOF, BENCH = Path("build/proof.json"), Path("build/bench.json")
DOCS = Path("docs")
PICTURES = "pictures"
Numbers = Mapping[str, float]


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


# -- reliability -------------------------------------------------------------------------------------------------------


def reliability_page(numbers: Numbers, date: str) -> str:
    cores = numbers.get("proof_cores", 2)
    took = (
        f", {numbers['proof_seconds'] / 60:.0f} minutes on {cores:.0f} cores"
        if "proof_seconds" in numbers
        else ""
    )
    lines = [
        "<!-- Made by `make proof`. Change tools/reports.py, not this page. -->",
        "",
        "# Reliability, in numbers",
        "",
        f"Measured on {date} by `make proof`{took}.",
        "How fast it is: [benchmarks.md](benchmarks.md).",
        "",
        "## What was tried",
        "",
        "| what | how many | went wrong | how |",
        "|---|---:|---:|---|",
        *(row for kind in KINDS for row in _tried(numbers, kind)),
    ]
    if "mutants" in numbers:
        lines += ["", *_planted(numbers)]
    lines += ["", "## What is promised, and where it is tested"]
    for tested in dict.fromkeys(by for _, by in PROMISES):
        lines += ["", f"By {tested}:", "", *(f"- {promise}" for promise, by in PROMISES if by == tested)]
    if "troubles" in numbers:
        lines += ["", *_troubles(numbers)]
    lines += ["", "## What is not proven", "", *(f"- {limit}" for limit in LIMITS)]
    return "\n".join(lines) + "\n"


def _tried(numbers: Numbers, kind: tuple[str, str, str, str]) -> list[str]:
    title, name, bad, how = kind
    if name not in numbers:
        return []
    wrong = f"{numbers.get(bad, 0):,.0f}" if bad else ""
    return [f"| {title} | {numbers[name]:,.0f} | {wrong} | {how.format_map(_Shown(numbers))} |"]


class _Shown(dict[str, str]):
    """Numbers as text; what was not measured reads as a question mark."""

    def __init__(self, numbers: Numbers) -> None:
        super().__init__({name: f"{value:,.0f}" for name, value in numbers.items()})

    def __missing__(self, key: str) -> str:
        return "?"


def _planted(numbers: Numbers) -> list[str]:
    return [
        "## Planted bugs",
        "",
        f"A check that can't fail proves nothing. {numbers['mutants']:,.0f} bugs were planted into rules, runtime and"
        f" fleets; {numbers['mutants_caught']:,.0f} were found.",
        f"The nights find {len(MUTANTS)} of them within 1,000 seeds each (`testbed/nights/mutants.py`), the search of"
        " small worlds the others (`tests/model`), with the shortest way to each.",
    ]


def _troubles(numbers: Numbers) -> list[str]:
    return [
        "## What struck in the nights",
        "",
        f"In {numbers['seeds_run']:,.0f} nights ({numbers['night_hours']:,.0f} hours of virtual time,"
        f" {numbers['night_jobs']:,.0f} jobs) trouble struck {numbers['troubles']:,.0f} times.",
        f"Jobs ended: {_ends(numbers)}.",
        "",
        f"![How often each trouble struck]({PICTURES}/proof-troubles.svg)",
        "",
        *HOW_NIGHTS_WORK,
    ]


def _ends(numbers: Numbers) -> str:
    tail = "_night_jobs"
    found = [(name.removesuffix(tail), value) for name, value in numbers.items() if name.endswith(tail)]
    return ", ".join(f"{name.upper()} {value:,.0f}" for name, value in sorted(found, key=lambda one: -one[1]))


def troubles_chart(numbers: Numbers) -> str:
    rows = [(said, numbers.get(f"troubles_{name}", 0)) for name, said in TROUBLES.items()]
    return charts.bars("How often each trouble struck (each line is ten times the one before)", rows)


def proof_summary(numbers: Numbers) -> str:
    """The same as text for a terminal."""
    lines = [f"{'':28}{'how many':>12}{'went wrong':>12}"]
    for title, name, bad, _ in KINDS:
        if name in numbers:
            wrong = f"{numbers.get(bad, 0):,.0f}" if bad else ""
            lines.append(f"{title:28}{numbers[name]:>12,.0f}{wrong:>12}")
    if "mutants" in numbers:
        lines.append(
            f"{'planted bugs':28}{numbers['mutants']:>12,.0f}   {numbers['mutants_caught']:,.0f} found"
        )
    return "\n".join(lines)


def examined(bench: Path = BENCH) -> dict[str, float]:
    """From the benchmark of verdicts, where it was run: how many nodes, and how many were dealt with wrongly."""
    measured: Numbers = json.loads(bench.read_text()) if bench.exists() else {}
    if "verdict_cases" not in measured or "verdict_actions_right" not in measured:
        return {}
    cases = measured["verdict_cases"]
    return {"verdict_cases": cases, "verdict_wrong": round(cases * (1 - measured["verdict_actions_right"]))}


def write_reliability(numbers: Numbers, docs: Path = DOCS) -> list[Path]:
    wrote = {docs / "reliability.md": reliability_page({**numbers, **examined()}, today())}
    if "troubles" in numbers:
        wrote[docs / PICTURES / "proof-troubles.svg"] = troubles_chart(numbers)
    return _write(wrote)


# -- benchmarks --------------------------------------------------------------------------------------------------------


def benchmarks_page(numbers: Numbers, date: str, machine: str) -> str:
    names = [name for name in MEANINGS if name in numbers and MEANINGS[name].holds(numbers[name]) is not None]
    missed = [f"`{name}`" for name in names if not MEANINGS[name].holds(numbers[name])]
    lines = [
        "<!-- Made by `make bench`. Change tools/reports.py or tools/benches/_meanings.py, not this page. -->",
        "",
        "# Benchmarks",
        "",
        f"Measured on {date} by `make bench` on {machine}. `make bench ARGS=TOPIC` measures one topic again.",
        f"{len(names) - len(missed)} of {len(names)} aims are met. Missed: {', '.join(missed) or 'none'}.",
        "",
        "The aim stands in brackets; a number that misses it is bold. Times depend on the machine, ratios hardly: both",
        "sides of each were measured in the same run.",
        "",
        f"![Each number as a part of its aim]({PICTURES}/bench-aims.svg)",
    ]
    for topic, title in _topics(numbers).items():
        lines += ["", f"## {title}", "", "| number | what it is | measured |", "|---|---|---|"]
        rows = groupby(_of(topic, numbers), key=lambda name: MEANINGS[name].what if topic else name)
        lines += [_measured(list(names), numbers) for _, names in rows]
        if topic == "aws_calls" and _calls(numbers):
            lines += ["", f"![Calls of a recovery by size of the gang]({PICTURES}/bench-calls.svg)"]
    return "\n".join(lines) + "\n"


def _measured(names: list[str], numbers: Numbers) -> str:
    """One row for numbers that are the same of something else: by its name, or by how many there are of it."""
    words = zip(*(name.split("_") for name in names), strict=False)
    shared = "_".join(same[0] for same in takewhile(lambda same: len(set(same)) == 1, words))
    shown_names = ", ".join([f"`{names[0]}`", *(f"`{name.removeprefix(shared)}`" for name in names[1:])])
    what = MEANINGS[names[0]].what if names[0] in MEANINGS else ""
    values = "; ".join(_against_aim(name, numbers[name]) for name in names)
    return f"| {shown_names} | {what} | {values} |"


def _against_aim(name: str, value: float) -> str:
    meaning = MEANINGS.get(name, Meaning("", ""))
    said = f"{shown(value)} {meaning.unit}".strip()
    if (met := meaning.holds(value)) is None:
        return said
    return f"{said} ({meaning.aim})" if met else f"**{said}** ({meaning.aim})"


def _topics(numbers: Numbers) -> dict[str, str]:
    used = {MEANINGS[name].topic for name in numbers if name in MEANINGS}
    titles = {topic: title for topic, title in TOPICS.items() if topic in used}
    return titles | ({"": "Numbers without a description"} if unknown(numbers) else {})


def _of(topic: str, numbers: Numbers) -> list[str]:
    if not topic:
        return unknown(numbers)
    return [name for name, meaning in MEANINGS.items() if meaning.topic == topic and name in numbers]


def unknown(numbers: Numbers) -> list[str]:
    """Numbers that nobody has described in the table of meanings."""
    return sorted(set(numbers) - set(MEANINGS))


def shown(value: float) -> str:
    """Three figures, or the whole number."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def aims_chart(numbers: Numbers) -> str:
    """Numbers that must stay below their aim, and numbers that must reach it: longer is nearer to the line."""
    rows = []
    for name, meaning in MEANINGS.items():
        met = meaning.holds(numbers[name]) if name in numbers else None
        if met is None:
            continue
        aim = meaning.most if meaning.most is not None else meaning.least
        part = numbers[name] / aim if aim else (0.0 if met else 2.0)
        rows.append((name, part, f"{shown(numbers[name])} (aim {meaning.aim})", met))
    rows.sort(
        key=lambda row: MEANINGS[row[0]].most is None
    )  # first what must stay below, then what must reach it
    return charts.against_aims("Each number as a part of its aim", rows)


def _calls(numbers: Numbers) -> list[tuple[float, float]]:
    return [
        (size, numbers[f"calls_recovery_{size}"])
        for size in (2, 8, 32, 256)
        if f"calls_recovery_{size}" in numbers
    ]


def write_benchmarks(numbers: Numbers, docs: Path = DOCS) -> list[Path]:
    wrote = {
        docs / "benchmarks.md": benchmarks_page(numbers, today(), machine()),
        docs / PICTURES / "bench-aims.svg": aims_chart(numbers),
    }
    if points := _calls(numbers):
        chart = charts.growth("Calls of AWS for one recovery", points, "nodes of the job", "calls")
        wrote[docs / PICTURES / "bench-calls.svg"] = chart
    return _write(wrote)


def machine() -> str:
    cores = os.cpu_count() or 1
    return f"{cores} cores ({platform.machine()}), {platform.system()}, Python {platform.python_version()}"


def _write(pages: Mapping[Path, str]) -> list[Path]:
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(pages)


def main() -> int:
    for source, write in ((PROOF, write_reliability), (BENCH, write_benchmarks)):
        if source.exists():
            print(f"wrote {', '.join(map(str, write(json.loads(source.read_text()))))}")
        else:
            print(f"{source} is not there: its page stays as it is")
    return 0


if __name__ == "__main__":
    sys.exit(main())
