"""`make bench`: measured numbers, as ratios within one run where time is involved.

Writes build/bench.json and docs/benchmarks.md. Each topic is a module of `tools/benches/` with a function
`measure() -> dict[str, float]`; what its numbers mean stands in `tools/benches/_meanings.py`. A run of some topics
keeps the numbers of the others, so that the file always holds the last measurement of each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from pathlib import Path

from tools import benches, reports

OUT = Path("build/bench.json")


def topics() -> list[str]:
    return sorted(
        module.name for module in pkgutil.iter_modules(benches.__path__) if not module.name.startswith("_")
    )


def keep(numbers: dict[str, float]) -> None:
    """After every topic, so that a run that is cut off has not measured in vain."""
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(dict(sorted(numbers.items())), indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic", nargs="*", help=f"which to run; all by default: {', '.join(topics())}")
    chosen = parser.parse_args().topic or topics()
    if unknown := sorted(set(chosen) - set(topics())):
        parser.error(f"unknown topic {', '.join(unknown)}; there are: {', '.join(topics())}")
    numbers: dict[str, float] = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in chosen:
        began = time.perf_counter()
        print(f"{name} ...", flush=True)
        found = importlib.import_module(f"tools.benches.{name}").measure()
        for key, value in found.items():
            print(f"  {key:32} {value:,.4g}")
        print(f"  ({time.perf_counter() - began:.0f} s)")
        numbers.update(found)
        keep(numbers)
    wrote = reports.write_benchmarks(numbers)
    if strange := reports.unknown(numbers):
        print(f"not described in tools/benches/_meanings.py: {', '.join(strange)}")
    print(f"wrote {', '.join(map(str, (OUT, *wrote)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
