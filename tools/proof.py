"""`make proof`: how far the claims of reliability are tested, in numbers.

    python -m tools.proof                    everything: about 20 minutes on sixteen cores, hours on two
    python -m tools.proof --quick            a part of everything, in about 3 minutes; the page stays as it is
    python -m tools.proof seeds kills        some parts; the numbers of the others are kept
    python -m tools.proof seeds --seeds 50000

Writes build/proof.json and docs/reliability.md. What a run has found it keeps at once in build/proof.parts: one
that was cut off goes on from there, as long as no code has changed. `--fresh` begins anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path

from testbed.model.search import Result
from testbed.nights.batch import Tally
from tools import evidence, reports
from tools.evidence import Extent, Numbers

OUT = Path("build/proof.json")
KEPT = Path("build/proof.parts")
CODE = ("ecs_gpu_recovery", "testbed", "tests", "tools")
QUICK = Extent(seeds=1_000, slow=False, deep_s=0.0)
PARTS = ("seeds", "mutants", "model", "kills", "crash_points", "bad_inputs", "forgeries")


class Progress:
    """What a run of this very code, to this very extent, has found so far. On disk after every step."""

    def __init__(self, extent: Extent, file: Path, code: str) -> None:
        self._file, self._mark = file, (code, repr(extent))
        self.numbers: dict[str, Numbers] = {}
        self.nights: dict[str, Tally] = {}
        self.worlds: dict[str, Result] = {}
        if file.exists():
            mark, *found = pickle.loads(file.read_bytes())
            if mark == self._mark:
                self.numbers, self.nights, self.worlds = found

    def keep(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.write_bytes(pickle.dumps((self._mark, self.numbers, self.nights, self.worlds)))
        fresh.replace(self._file)

    def night(self, name: str, tally: Tally) -> None:
        self.nights[name] = tally
        self.keep()

    def world(self, name: str, result: Result) -> None:
        self.worlds[name] = result
        self.keep()

    def part(self, name: str, numbers: Numbers) -> None:
        self.numbers[name] = numbers
        self.keep()

    def done(self) -> None:
        self._file.unlink(missing_ok=True)


def code_digest(root: Path = Path()) -> str:
    digest = hashlib.sha256()
    for file in sorted(file for folder in CODE for file in (root / folder).rglob("*.py")):
        digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()


def run(names: list[str], extent: Extent, progress: Progress) -> Numbers:
    """The parts one after the other. What an earlier run has finished is taken over."""
    found: Numbers = {}
    for name in names:
        if (known := progress.numbers.get(name)) is not None:
            say(f"{name}: known from the run that was cut off")
        else:
            began = time.monotonic()
            say(f"{name} ...")
            known = _part(name, extent, progress)
            say(f"  {_short(known)} ({time.monotonic() - began:.0f} s)")
            if not _bad(known):  # what failed is tried again
                progress.part(name, known)
        found |= known
    return found


def _part(name: str, extent: Extent, progress: Progress) -> Numbers:
    inner: Callable[[str], None] = lambda text: say(f"  {text}")  # noqa: E731
    if name == "seeds":
        return evidence.seeds(extent, progress.nights, inner, progress.night)
    if name == "model":
        return evidence.model(extent, dict(progress.worlds), inner, progress.world)
    return evidence.counted(name, extent, inner)


def say(text: str) -> None:
    print(text, flush=True)


def _short(numbers: Numbers) -> str:
    return ", ".join(
        f"{name} {value:,}"
        for name, value in numbers.items()
        if not (name.startswith(("troubles_", "night_")) or name.endswith("_night_jobs"))
    )


def _bad(numbers: Numbers) -> list[str]:
    """What must be zero and is not; and what must be found and was not."""
    zero = ("_failed", "_taken")
    failed = [f"{name} {value}" for name, value in numbers.items() if name.endswith(zero) and value]
    missed = numbers.get("mutants", 0) - numbers.get("mutants_caught", 0)
    return failed + ([f"planted bugs not found: {missed}"] if missed else [])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", help=f"which to run; all by default: {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=int, help="how many nights (default 10,000; 1,000 with --quick)")
    parser.add_argument("--quick", action="store_true", help="a part of everything")
    parser.add_argument("--fresh", action="store_true", help="take nothing over from a run that was cut off")
    args = parser.parse_args(arguments)
    names = [name.replace("-", "_") for name in args.part] or list(PARTS)
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"unknown part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    extent = QUICK if args.quick else Extent()
    if args.seeds:
        extent = Extent(seeds=args.seeds, slow=extent.slow, deep_s=extent.deep_s)
    if args.fresh:
        KEPT.unlink(missing_ok=True)
    began = time.monotonic()
    progress = Progress(extent, KEPT, code_digest())
    goes_on = bool(progress.numbers or progress.nights or progress.worlds)
    found = run(names, extent, progress)
    if set(names) == set(PARTS):
        took = {"proof_seconds": round(time.monotonic() - began), "proof_cores": evidence.PROCESSES}
        numbers = found | ({} if goes_on else took)
    else:
        numbers = (json.loads(OUT.read_text()) if OUT.exists() else {}) | found
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(dict(sorted(numbers.items())), indent=2) + "\n")
    wrote = [OUT] if args.quick else [OUT, *reports.write_reliability(numbers)]
    if not _bad(numbers):
        progress.done()
    say("\n" + reports.proof_summary(numbers))
    say(f"wrote {', '.join(map(str, wrote))}")
    for what in (bad := _bad(numbers)):
        say(f"FAILED: {what}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
