"""Runs the tests on every Python that the project supports and that this machine has.

    python -m tools.suite [ARGUMENTS FOR PYTEST]           all but those marked slow
    python -m tools.suite --slow [ARGUMENTS FOR PYTEST]    those marked slow

The everyday environment runs all of them. A second Python leaves out those that need the local AWS or a browser, and
those that prove nothing new there. What is missing, a Python, a browser or what comes from npm, is named at the end,
so that nobody takes a part's success for that of the whole. A run that leaves a process, a folder or a file behind
has failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools import browser, node
from tools.environment import Stamp, ensure, find_python, folder_of
from tools.leftovers import Traces
from tools.project import ROOT, ProblemError

VERSIONS = ("3.13", "3.11")
USUAL = "not slow"
QUICK = "not slow and not ministack and not browser"
#: What these prove does not depend on the Python it runs on; once is enough.
ONCE = ("model", "nights", "infra", "stories", "testbed", "console", "build", "health")
#: And of these, a second Python runs the files that start and end everything once: agents, shims, whole recoveries with
#: their health checks, the database between processes, the command; and what the standard library reads and writes.
SOME = {
    "aws": ("test_archive.py", "test_parse.py", "test_sent_again.py", "test_store.py", "test_wiring.py"),
    "cli": ("test_help.py", "test_jobs.py"),
    "core": ("test_codec.py", "test_submit.py", "test_table.py"),
    "embedded": ("test_recoveries.py", "test_store_crashes.py"),
    "local": ("test_nodes.py", "test_tasks.py"),
    "metrics": ("test_collector.py", "test_prometheus.py"),
}
#: One more than there are cores, because tests of processes wait a lot.
_MOST_WORKERS = 8
#: pytest's word for it. Who asks for some tests may ask for none of the second Python's.
_NO_TESTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Some of the tests on one Python."""

    folder: Path
    python: str
    marks: str
    without: tuple[Path, ...] = ()

    def start(self, arguments: list[str], environment: dict[str, str]) -> bool:
        workers = os.environ.get("WORKERS") or str(min(_MOST_WORKERS, (os.cpu_count() or 1) + 1))
        command = [str(self.folder / "bin" / "python"), "-m", "pytest", "--numprocesses", workers]
        command += ["-m", self.marks, *(f"--ignore={path}" for path in self.without)]
        print(f"\nPython {self.python}: {self.extent}", flush=True)
        with subprocess.Popen([*command, *arguments], cwd=ROOT, env=environment) as tests:
            try:
                code = tests.wait()
            except (
                SystemExit
            ):  # the terminal tells the tests of Ctrl-C itself; of this they hear from nobody else
                tests.send_signal(signal.SIGINT)
                raise
        return code == 0 or (code == _NO_TESTS and bool(arguments))

    @property
    def extent(self) -> str:
        return f"tests that are {self.marks}{', less those that prove nothing new' if self.without else ''}"


def plan(present: str, is_here: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """The versions to test on, that of the everyday environment first, and the versions that are missing."""
    others = [version for version in VERSIONS if version != present]
    return [present, *filter(is_here, others)], [version for version in others if not is_here(version)]


def main(arguments: list[str]) -> int:
    listen()
    slow = arguments[:1] == ["--slow"]
    python = ensure("dev", folder_of("dev")).python
    without = {
        "SKIPPED the deployment with the CDK command and the check with axe-core": why_not(node.ensure),
        "SKIPPED the browser tests": why_not(browser.ensure),
    }
    report = [f"{what}: {why}" for what, why in without.items() if why]
    marks = "slow" if slow else USUAL
    if without["SKIPPED the browser tests"]:
        marks += " and not browser"
    runs = [Run(folder=folder_of("dev"), python=python, marks=marks)]
    if not slow:
        versions, missing = plan(python.rpartition(".")[0], _is_here)
        runs += map(_second, versions[1:])
        report += [f"Python {version}: not found on this machine, so not tested" for version in missing]
    passed = [_passed(run, arguments[slow:], report) for run in runs]
    print("\n" + "\n".join(report), flush=True)
    return int(not all(passed))


def listen() -> None:
    """Whoever ends this process ends the tests with it."""
    # A shell ignores Ctrl-C for what it starts in the background, and the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _passed(run: Run, arguments: list[str], report: list[str]) -> bool:
    """Tests that pass and leave nothing behind."""
    started, traces = time.monotonic(), Traces()
    try:
        passed = run.start(arguments, traces.environment)
    except BaseException:
        traces.left()  # and ends what the tests did not end any more
        raise
    took_s, left = time.monotonic() - started, traces.left()
    report.append(f"Python {run.python}: {run.extent} {'passed' if passed else 'FAILED'} ({took_s:.0f} s)")
    if left:
        report += ["FAILED, because something was left behind:", *(f"  {trace}" for trace in left)]
    if passed and not left:
        traces.forget()
    else:
        report.append(f"The temporary files of this run are in {traces.folder}")
    return passed and not left


def why_not(bring: Callable[[], object]) -> str:
    """Why something that some tests need can't be had here, in one line; or nothing."""
    try:
        bring()
    except ProblemError as problem:
        print(problem, file=sys.stderr, flush=True)
        return str(problem).splitlines()[0]
    return ""


def _second(version: str) -> Run:
    folder = folder_of("dev", version)
    python = ensure("dev", folder, version=version).python
    return Run(folder=folder, python=python, marks=QUICK, without=tuple(proven()))


def proven() -> Iterator[Path]:
    """Folders and files that the everyday Python is enough for."""
    tests = ROOT / "tests"
    yield from (tests / name for name in ONCE)
    for name, chosen in SOME.items():
        yield from sorted(path for path in (tests / name).glob("test_*.py") if path.name not in chosen)


def _is_here(version: str) -> bool:
    return Stamp.read(folder_of("dev", version)) is not None or find_python(version) is not None


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ProblemError as problem:
        sys.exit(str(problem))
