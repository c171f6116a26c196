"""Many nights, over several processes."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context

from .night import run

#: Nights that one process takes at a time.
BLOCK = 100


def many(first: int, count: int, processes: int) -> Iterator[tuple[int, list[str]]]:
    """After each block: how many nights it had, and what those that ended badly say."""
    blocks = [(start, min(start + BLOCK, first + count)) for start in range(first, first + count, BLOCK)]
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_block, blocks)


def _block(ends: tuple[int, int]) -> tuple[int, list[str]]:
    outcomes = [run(seed) for seed in range(*ends)]
    return len(outcomes), [str(outcome) for outcome in outcomes if outcome.violation]
