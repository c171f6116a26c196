"""`python -m testbed.nights --seed N`: one night again, or many nights."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .batch import Tally
from .night import Outcome, run
from .skies import SKIES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m testbed.nights")
    parser.add_argument("--seed", type=int, help="run this night and print its history")
    parser.add_argument(
        "--seeds", default="0:200", help="run nights FIRST:LAST and print those that end badly"
    )
    parser.add_argument(
        "--sqlite", action="store_true", help="with the embedded store instead of the one in memory"
    )
    parser.add_argument("--sky", choices=sorted(SKIES), default="any", help="which kind of trouble")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.seed is not None:
            outcome = run(args.seed, database=Path(folder, "night.db") if args.sqlite else None, sky=args.sky)
            _tell(outcome)
            return 1 if outcome.violation else 0
        first, last = map(int, args.seeds.split(":"))
        return _many(range(first, last), Path(folder) if args.sqlite else None, args.sky)


def _many(seeds: range, folder: Path | None, sky: str) -> int:
    began, tally = time.perf_counter(), Tally()
    for seed in seeds:
        outcome = run(seed, database=folder / f"{seed}.db" if folder else None, sky=sky)
        tally.add(outcome)
        if outcome.violation:
            sys.stdout.write(f"{outcome}\n")
            sys.stdout.flush()
    seconds = time.perf_counter() - began
    sys.stdout.write(
        f"{tally.nights} seeds, {len(tally.bad)} failed, {seconds:.1f} s, {tally.nights / seconds:.0f} seeds/s\n"
        f"troubles that struck: {_counts(tally.struck)}\njobs: {_counts(tally.ended)}\n"
    )
    return 1 if tally.bad else 0


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda one: -one[1]))


def _tell(outcome: Outcome) -> None:
    sys.stdout.write(f"weather: {outcome.weather}\n")
    for at, *what in outcome.history:
        sys.stdout.write(f"{float(str(at)):10.1f}  {' '.join(map(str, what))}\n")
    sys.stdout.write(f"{outcome}\nhistory {outcome.digest}\n")


if __name__ == "__main__":
    sys.exit(main())
