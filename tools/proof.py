"""`make proof`: how far the claims of reliability are tested, in numbers.

Writes build/proof.json and docs/reliability.md. Each part can be run alone; a run of some parts keeps the
numbers of the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

from ecs_gpu_recovery.simulation.batch import many
from ecs_gpu_recovery.simulation.mutants import MUTANTS, hunt

OUT = Path("build/proof.json")
REPORT = Path("docs/reliability.md")
PROCESSES = 2
SEEDS = 10_000
#: Tests that kill real processes, and tests that stop a process at every step. A test may say how many it
#: made with `record_property("kills", n)` or `record_property("crash_points", n)`; else it counts as one.
KILLS = (
    "tests/embedded/test_controller_kills.py",
    "tests/embedded/test_store_crashes.py",
    "tests/local/test_kills.py",
)
CRASH_POINTS = ("tests/stories/test_crashes.py",)

Numbers = dict[str, int]


def seeds(count: int) -> Numbers:
    """Hostile nights around the real control plane."""
    ran, failed = 0, []
    for done, bad in many(0, count, PROCESSES):
        ran += done
        failed += bad
        for text in bad:
            print(f"  {text}", flush=True)
    return {"seeds_run": ran, "seeds_failed": len(failed)}


def mutants() -> Numbers:
    """Planted bugs: how many of them the nights find."""
    caught = 0
    for mutant in MUTANTS:
        found = hunt(mutant, most=1000)
        caught += found is not None
        print(
            f"  {mutant.title}: " + (f"seed {found.seed}: {found.violation}" if found else "NOT FOUND"),
            flush=True,
        )
    return {"mutants": len(MUTANTS), "mutants_caught": caught}


def model() -> Numbers:
    """Every reachable state of small worlds."""
    from ecs_gpu_recovery.testing.bounds import Bounds
    from ecs_gpu_recovery.testing.search import Search

    worlds = (Bounds(), Bounds(check_first=True), Bounds(asks=1))
    states = failed = 0
    for bounds in worlds:
        result = Search(bounds, max_states=100_000).run()
        states += result.states
        failed += bool(result.violation)
        print(f"  {result}", flush=True)
    return {"model_states": states, "model_failed": failed}


def kills() -> Numbers:
    return _counted("kills", KILLS)


def crash_points() -> Numbers:
    return _counted("crash_points", CRASH_POINTS)


def _counted(name: str, paths: tuple[str, ...]) -> Numbers:
    """Run those tests that are there; count what they say they made."""
    there = [path for path in paths if Path(path).exists()]
    if not there:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder, "junit.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={junit}",
            *there,
        ]
        subprocess.run(command, check=False)
        made, failed = read_junit(junit.read_text(), name)
    return {name: made, f"{name}_failed": failed}


def read_junit(text: str, name: str) -> tuple[int, int]:
    """How many were made in all, and how many of them by tests that failed. A skipped test made none."""
    made = failed = 0
    for case in ET.fromstring(text).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        said = [prop.get("value", "1") for prop in case.iter("property") if prop.get("name") == name]
        count = sum(map(int, said)) if said else 1
        made += count
        if case.find("failure") is not None or case.find("error") is not None:
            failed += count
    return made, failed


def report(numbers: Numbers) -> str:
    """The numbers in words."""
    rows = [
        (
            "nights simulated",
            "seeds_run",
            "seeds_failed",
            "hostile worlds around the real control plane",
        ),
        (
            "states explored",
            "model_states",
            "model_failed",
            "every state of small worlds; each comes to an end",
        ),
        ("processes killed", "kills", "kills_failed", "kill -9 of controllers, agents, shims and writers"),
        ("crash points", "crash_points", "crash_points_failed", "a death at every step of whole stories"),
    ]
    lines = [
        "# Reliability, in numbers",
        "",
        "Written by `make proof`. How the nights work: [simulation.md](simulation.md).",
        "",
        "| what | how many | failed | |",
        "|---|---:|---:|---|",
    ]
    for title, name, bad, what in rows:
        if name in numbers:
            lines.append(f"| {title} | {numbers[name]:,} | {numbers.get(bad, 0):,} | {what} |")
    if "seeds_run" in numbers:
        lines += ["", "The nights are those of the common sky; what is open under others is told there."]
    if "mutants" in numbers:
        lines += [
            "",
            f"Planted bugs found by the nights: {numbers['mutants_caught']} of {numbers['mutants']}.",
        ]
        lines += ["", *(f"- {mutant.title}" for mutant in MUTANTS)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parts: dict[str, Callable[[], Numbers]] = {
        "seeds": lambda: seeds(args.seeds),
        "mutants": mutants,
        "model": model,
        "kills": kills,
        "crash-points": crash_points,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", help=f"which to run; all by default: {', '.join(parts)}")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many nights")
    args = parser.parse_args()
    if unknown := sorted(set(args.part) - set(parts)):
        parser.error(f"unknown part {', '.join(unknown)}; there are: {', '.join(parts)}")
    numbers: Numbers = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in args.part or parts:
        began = time.perf_counter()
        print(f"{name} ...", flush=True)
        found = parts[name]()
        print(f"  {found} ({time.perf_counter() - began:.0f} s)", flush=True)
        numbers.update(found)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(dict(sorted(numbers.items())), indent=2) + "\n")
    REPORT.write_text(report(numbers))
    print(f"wrote {OUT} and {REPORT}")
    missed = numbers.get("mutants", 0) - numbers.get("mutants_caught", 0)
    return 1 if missed or any(value for name, value in numbers.items() if name.endswith("_failed")) else 0


if __name__ == "__main__":
    sys.exit(main())
