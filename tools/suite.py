"""Runs the tests on every Python that the project supports and that this machine has.

The everyday environment runs all but those marked slow (`make slow` runs these). A second Python leaves out those that
need the local AWS or a browser, and those that prove nothing new there. What is missing, a Python or what comes from
npm, is named at the end, so that nobody takes a part's success for that of the whole.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools import browser, node
from tools.environment import Stamp, ensure, find_python, folder_of
from tools.project import ROOT, ProblemError

VERSIONS = ("3.13", "3.11")
USUAL = "not slow"
QUICK = "not slow and not ministack and not browser"
#: What these prove does not depend on the Python it runs on; once is enough. (The health check runs there all the same:
#: every job of the embedded tests begins with one.)
ONCE = ("model", "nights", "infra", "stories", "testbed", "console", "build", "health")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One Python to test on."""

    folder: Path
    python: str
    everything: bool

    def start(self, arguments: list[str]) -> bool:
        workers = os.environ.get("WORKERS", "2")
        command = [str(self.folder / "bin" / "python"), "-m", "pytest", "--numprocesses", workers]
        command += ["-m", USUAL if self.everything else QUICK]
        if not self.everything:
            command += [f"--ignore=tests/{name}" for name in ONCE]
        print(f"\nPython {self.python}: {self.extent}", flush=True)
        return subprocess.run([*command, *arguments], cwd=ROOT).returncode == 0

    @property
    def extent(self) -> str:
        if self.everything:
            return f"tests that are {USUAL}"
        return f"tests that are {QUICK}, without {', '.join(ONCE)}"


def plan(present: str, is_here: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """The versions to test on, that of the everyday environment first, and the versions that are missing."""
    others = [version for version in VERSIONS if version != present]
    return [present, *filter(is_here, others)], [version for version in others if not is_here(version)]


def main(arguments: list[str]) -> int:
    everyday = Run(folder=folder_of("dev"), python=ensure("dev", folder_of("dev")).python, everything=True)
    without, blind = _without_node(), _without_browser()
    versions, missing = plan(everyday.python.rpartition(".")[0], _is_here)
    runs = [everyday, *map(_second, versions[1:])]
    report, failed = [], False
    for run in runs:
        started = time.monotonic()
        passed = run.start(arguments)
        failed |= not passed
        ended = f"{'passed' if passed else 'FAILED'} ({time.monotonic() - started:.0f} s)"
        report.append(f"Python {run.python}: {run.extent} {ended}")
    report += (
        [f"SKIPPED the deployment with the CDK command and the check with axe-core: {without}"]
        if without
        else []
    )
    report += [f"SKIPPED the browser tests: {blind}"] if blind else []
    report += [f"Python {version}: not found on this machine, so not tested" for version in missing]
    print("\n" + "\n".join(report), flush=True)
    return int(failed)


def _without_node() -> str:
    """Why some tests have to be skipped, or nothing. They fetch what they need from npm, and npm may not be there."""
    try:
        node.ensure()
    except ProblemError as problem:
        print(problem, file=sys.stderr, flush=True)
        return str(problem).splitlines()[0]
    return ""


def _without_browser() -> str:
    """Why there are no browser tests, or nothing: one is fetched into this folder where the system has none."""
    try:
        browser.ensure()
    except ProblemError as problem:
        print(problem, file=sys.stderr, flush=True)
        return str(problem)
    return ""


def _second(version: str) -> Run:
    folder = folder_of("dev", version)
    return Run(folder=folder, python=ensure("dev", folder, version=version).python, everything=False)


def _is_here(version: str) -> bool:
    return Stamp.read(folder_of("dev", version)) is not None or find_python(version) is not None


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ProblemError as problem:
        sys.exit(str(problem))
