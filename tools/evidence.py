"""The parts of the proof. Each runs one kind of evidence and gives back numbers; nothing here writes a page."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from testbed.model.bounds import Bounds, quick_policy
from testbed.model.errands import Errands
from testbed.model.monitors import Violation
from testbed.model.search import Result, Search
from testbed.model.worlds import DEEP, QUICK, THOROUGH
from testbed.nights.batch import Tally, blocks, many
from testbed.nights.night import Outcome
from testbed.nights.weather import TROUBLES

Numbers = dict[str, int]
Say = Callable[[str], None]
PROCESSES = os.cpu_count() or 2
#: A deep world is cut short here, so that no one of them takes all the time.
MOST_STATES = 40_000
#: It takes as long as many others together, so it must not be begun last.
LONGEST = "a reboot waits for a permit, slowly, or its sender stalls"
#: Nights that once ended badly. The tests run them all.
REGRESSIONS = Path("tests/nights/regressions.txt")
#: Where the tests are. One that makes many of something says how many, with `record_property(name, number)`.
TESTS = Path("tests")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything."""

    seeds: int = 10_000
    slow: bool = True
    deep_s: float = 180.0  #: after this long no further deep world is begun


# -- nights ------------------------------------------------------------------------------------------------------------


def seeds(extent: Extent, kept: dict[str, Tally], say: Say, keep: Callable[[str, Tally], None]) -> Numbers:
    """Hostile nights around the real control plane. `kept` are the blocks of an earlier run that was cut off."""
    whole, began = Tally(), time.monotonic()
    todo = []
    for ends in blocks(0, extent.seeds):
        if (found := kept.get(_name(ends))) is not None:
            whole.merge(found)
        else:
            todo.append(ends)
    already = whole.nights
    for ends, tally in many(todo, PROCESSES):
        whole.merge(tally)
        keep(_name(ends), tally)
        for outcome in tally.bad:
            say(str(outcome))
            remember(outcome)
        if whole.nights % 1000 == 0 or whole.nights == extent.seeds:
            pace = (whole.nights - already) / (time.monotonic() - began)
            say(f"{whole.nights:,} of {extent.seeds:,} nights, {len(whole.bad)} failed, {pace:.0f} a second")
    return {
        "seeds_run": whole.nights,
        "seeds_failed": len(whole.bad),
        "night_hours": round(whole.hours),
        "night_jobs": sum(whole.ended.values()),
        **{f"{status.lower()}_night_jobs": count for status, count in sorted(whole.ended.items())},
        "troubles": sum(whole.struck[name] for name in TROUBLES),
        **{f"troubles_{name}": whole.struck[name] for name in TROUBLES},
    }


def _name(ends: tuple[int, int]) -> str:
    return f"{ends[0]}:{ends[1]}"


def remember(outcome: Outcome, file: Path = REGRESSIONS) -> None:
    """A night that ended badly is run by the tests from now on."""
    known = {tuple(line.partition("#")[0].split()) for line in file.read_text().splitlines()}
    words = (str(outcome.seed), *(() if outcome.sky == "any" else (outcome.sky,)))
    if words not in known:
        with file.open("a") as out:
            out.write(f"{' '.join(words)}  # {' '.join(outcome.violation.split())[:160]}\n")


# -- the model ---------------------------------------------------------------------------------------------------------


def model(extent: Extent, kept: dict[str, Result], say: Say, keep: Callable[[str, Result], None]) -> Numbers:
    """Every reachable state of small worlds; then deep ones, as many as the time allows. `kept` are the worlds of an
    earlier run that was cut off."""
    states = transitions = failed = worlds = cut = 0
    for name, result in (*kept.items(), *_searched(extent, set(kept))):
        if name not in kept and not result.violation:
            keep(name, result)
        worlds += 1
        states += result.states
        transitions += result.transitions
        cut += not result.complete
        failed += bool(result.violation)
        say(f"{name}: {result.states:,} states" + (f"\n{result}" if result.violation else ""))
    for check_after in (False, True):
        try:
            states += Errands(quick_policy(post_reboot_check=check_after)).run()
        except Violation as broken:
            failed += 1
            say(f"a free node: {broken}")
        worlds += 1
    return {
        "model_states": states,
        "model_transitions": transitions,
        "model_worlds": worlds,
        "model_worlds_cut_short": cut,
        "model_failed": failed,
    }


def _searched(extent: Extent, known: Collection[str]) -> Iterator[tuple[str, Result]]:
    """The worlds that are always searched to their last state, the longest first, then the deep ones until the time is
    over."""
    whole = (THOROUGH if extent.slow else {}) | QUICK
    longest_first = sorted(whole, key=lambda name: name != LONGEST)
    names = [*longest_first, *(DEEP if extent.slow else ())]
    worlds = [(name, (whole | DEEP)[name]) for name in names if name not in known]
    end: float | None = None
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        busy: set[Future[tuple[str, Result]]] = set()
        while worlds or busy:
            while worlds and len(busy) < PROCESSES:
                name, bounds = worlds.pop(0)
                if name in DEEP:
                    end = end or time.monotonic() + extent.deep_s
                    if time.monotonic() > end:
                        continue
                busy.add(pool.submit(_search, name, bounds))
            done, busy = wait(busy, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _search(name: str, bounds: Bounds) -> tuple[str, Result]:
    return name, Search(bounds, max_states=MOST_STATES if name in DEEP else None).run()


# -- tests that count --------------------------------------------------------------------------------------------------


def counted(name: str, extent: Extent, say: Say) -> Numbers:
    """Run the tests that make so many of something, and add up what they say."""
    there = that_count(name)
    if not there:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder, "junit.xml")
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
        command += ["--numprocesses", str(PROCESSES), f"--junitxml={junit}"]
        command += [] if extent.slow else ["-m", "not slow"]
        subprocess.run([*command, *there], check=False)
        if not junit.exists():
            say("the tests could not be run")
            return {"forgeries_taken" if name == "forgeries" else f"{name}_failed": 1}
        made, failed = read_junit(junit.read_text(), name)
    if name == "mutants":
        return {"mutants": made, "mutants_caught": made - failed}
    if name == "forgeries":
        return {"forgeries": made, "forgeries_taken": failed}
    return {name: made, f"{name}_failed": failed}


def that_count(name: str, tests: Path = TESTS) -> list[str]:
    """The test files that say how many they made of this."""
    mark = f'record_property("{name}"'
    return [str(file) for file in sorted(tests.rglob("test_*.py")) if mark in file.read_text()]


def read_junit(text: str, name: str) -> tuple[int, int]:
    """How many were made in all, and how many of them by tests that failed.

    A test that says nothing made none; if it failed, it counts as one failure, so that nothing is hidden.
    """
    made = failed = 0
    for case in ET.fromstring(text).iter("testcase"):
        said = [prop.get("value", "0") for prop in case.iter("property") if prop.get("name") == name]
        count = sum(map(int, said))
        made += count
        if case.find("failure") is not None or case.find("error") is not None:
            failed += max(1, count)
    return made, failed
