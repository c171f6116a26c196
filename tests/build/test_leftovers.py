"""A run of the tests that leaves something behind is found out, and what it left is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.leftovers import Traces

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are found through /proc"
)
#: Leaves a process in a session of its own, a folder and a file; then ends well.
UNTIDY = """
import os, subprocess, sys, tempfile
from pathlib import Path
os.environ["PYTEST_CURRENT_TEST"] = "tests/x.py::test_y (call)"
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
tempfile.mkdtemp(prefix="forgotten-")
Path("stray.txt").write_text("")
"""


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traces:
    tree, temporary = tmp_path / "tree", tmp_path / "tmp"
    tree.mkdir()
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return Traces(tree)


def run(traces: Traces, program: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-c", program], env=traces.environment, cwd=folder, check=True)


def test_a_process_a_folder_and_a_file_are_named_and_the_process_is_ended(
    traces: Traces, tmp_path: Path
) -> None:
    run(traces, UNTIDY, tmp_path / "tree")
    process, *others = traces.left(grace_s=0)
    assert "started by tests/x.py::test_y (call)" in process
    assert "time.sleep(600)" in process
    assert [Path(line).name.partition("-")[0] for line in others] == ["forgotten", "stray.txt"]
    assert not [line for line in traces.left() if line.startswith("process")]


def test_a_tidy_run_leaves_nothing_but_what_pytest_keeps(traces: Traces, tmp_path: Path) -> None:
    tidy = "import tempfile; from pathlib import Path; Path(tempfile.gettempdir(), 'pytest-of-me').mkdir()"
    run(traces, tidy, tmp_path / "tree")
    assert traces.left() == []
    traces.forget()
    assert not traces.folder.exists()
