"""Many nights, over several processes, counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context

from .night import Outcome, run

#: Nights that one process takes at a time.
BLOCK = 100


@dataclass(slots=True)
class Tally:
    """What became of some nights. Two of them add up."""

    nights: int = 0
    hours: float = 0.0  #: virtual
    ended: Counter[str] = field(default_factory=Counter)  #: jobs by how they ended
    struck: Counter[str] = field(default_factory=Counter)  #: troubles that struck
    bad: list[Outcome] = field(default_factory=list)  #: nights in which something broke

    def add(self, outcome: Outcome) -> None:
        self.nights += 1
        self.hours += outcome.seconds / 3600
        self.ended.update(said.rpartition(" ")[2] for said in outcome.ended)
        self.struck.update(outcome.struck)
        if outcome.violation:
            self.bad.append(outcome)

    def merge(self, other: Tally) -> None:
        self.nights += other.nights
        self.hours += other.hours
        self.ended.update(other.ended)
        self.struck.update(other.struck)
        self.bad += other.bad


def blocks(first: int, count: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, first + count)) for start in range(first, first + count, BLOCK)]


def many(
    todo: Sequence[tuple[int, int]], processes: int, sky: str = "any"
) -> Iterator[tuple[tuple[int, int], Tally]]:
    """After each block of seeds: which it was, and what became of its nights."""
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_block, [(ends, sky) for ends in todo])


def _block(what: tuple[tuple[int, int], str]) -> tuple[tuple[int, int], Tally]:
    ends, sky = what
    tally = Tally()
    for seed in range(*ends):
        tally.add(run(seed, sky=sky))
    return ends, tally
