"""The tests run on every Python there is, and the report names the one there is not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.helpers import eventually
from tools.leftovers import Traces
from tools.project import ROOT
from tools.suite import ONCE, SOME, plan, proven


def test_all_supported_versions_are_tested_the_everyday_one_first_and_a_missing_one_is_named() -> None:
    assert plan("3.13", lambda version: True) == (["3.13", "3.11"], [])
    assert plan("3.11", lambda version: False) == (["3.11"], ["3.13"])
    assert plan("3.12", lambda version: version == "3.11") == (["3.12", "3.11"], ["3.13"])


def test_what_a_second_python_leaves_out_is_there_and_so_is_what_it_runs() -> None:
    left_out = set(proven())
    assert all(path.exists() for path in left_out)
    assert len(left_out) > len(ONCE)
    for folder, names in SOME.items():
        for name in names:
            kept = ROOT / "tests" / folder / name
            assert kept.exists()
            assert kept not in left_out


#: Runs one test that would take long, as the suite does.
LONG = """
import os, sys
from pathlib import Path
from tools import suite
suite.listen()
suite.Run(folder=Path(sys.prefix), python="this", marks="not slow").start(sys.argv[1:], dict(os.environ))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found through /proc")
def test_a_suite_that_is_terminated_ends_its_tests(tmp_path: Path) -> None:
    test, begun, traces = tmp_path / "test_long.py", tmp_path / "begun", Traces(tmp_path)
    test.write_text(
        f"import pathlib, time\ndef test_long():\n    pathlib.Path({str(begun)!r}).touch()\n    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", LONG, str(test), "-p", "no:cacheprovider"]
    environment = {**traces.environment, "WORKERS": "0"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as suite:
        eventually(begun.exists, "the test runs")
        suite.terminate()
    assert suite.returncode == 128 + signal.SIGTERM
    assert traces.processes() == [], "pytest has ended with it"
    traces.forget()
