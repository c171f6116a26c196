"""Questions in child processes: what comes back, whatever becomes of the child."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ecs_gpu_recovery.health.sources.probe import Emit, Outcome, Probe, run
from tests.embedded.helpers import eventually
from tests.programs import python

from .conftest import patiently

#: A node's program has one thread; a worker of the tests may have more.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def answer_of(work: object) -> Outcome:
    return run([Probe(name="a", deadline_s=60, work=work)])["a"]  # type: ignore[arg-type]


def test_answers_come_back_in_order() -> None:
    found = answer_of(lambda emit: [emit({"n": n}) for n in range(3)])
    assert (found.state, found.messages, found.problem) == ("done", ({"n": 0}, {"n": 1}, {"n": 2}), "")


def hung(work: object) -> dict[str, Outcome]:
    """What is left of a question that hangs, beside one that does not; it has had the time to say something."""

    def ask(deadline: float) -> dict[str, Outcome]:
        fine = Probe(name="fine", deadline_s=60, work=lambda emit: None)
        return run([Probe(name="hung", deadline_s=deadline, work=work), fine])  # type: ignore[arg-type]

    return patiently(ask, lambda found: found["hung"].messages, 0.5, 5, 60)


def test_a_hang_ends_at_the_deadline_and_keeps_what_was_said() -> None:
    def hang(emit: Emit) -> None:
        emit({"asking": 3})
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1000)

    found = hung(hang)
    assert (found["hung"].state, found["hung"].messages) == ("hung", ({"asking": 3},))
    assert re.search(r"within (0\.5|5|60) s", found["hung"].problem)
    assert found["fine"].state == "done"


def test_what_a_hung_child_started_dies_with_it() -> None:
    def hang(emit: Emit) -> None:
        child = subprocess.Popen(["sleep", "1000"])
        emit({"pid": child.pid})
        child.wait()

    def gone(pid: object) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return True

    found = hung(hang)["hung"]
    (said,) = found.messages
    assert found.state == "hung"
    eventually(lambda: gone(said["pid"]), "it is gone")


def test_an_error_in_the_child_and_its_death_are_told() -> None:
    def fails(emit: Emit) -> None:
        emit({"so": "far"})
        raise ValueError("no such thing")

    found = answer_of(fails)
    assert (found.state, found.messages) == ("failed", ({"so": "far"},))
    assert "ValueError: no such thing" in found.problem
    killed = answer_of(lambda emit: os.kill(os.getpid(), signal.SIGKILL))
    assert (killed.state, "signal 9" in killed.problem) == ("failed", True)


def test_much_output_passes_and_none_of_it_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    def talks(emit: Emit) -> None:
        os.write(1, b"noise of a library")
        os.write(2, b"more noise")
        emit({"text": "x" * 3_000_000})

    (said,) = answer_of(talks).messages
    assert len(str(said["text"])) == 3_000_000
    assert capfd.readouterr() == ("", "")


def test_nothing_to_ask_is_no_error() -> None:
    assert run([]) == {}


NO_CHILD_LEFT = """
import os, time
from ecs_gpu_recovery.health.sources.probe import Probe, run
hung = [Probe(name=f"h{n}", deadline_s=0.3, work=lambda emit: time.sleep(900)) for n in range(3)]
fine = [Probe(name=f"f{n}", deadline_s=60, work=lambda emit: None) for n in range(3)]
run(hung + fine)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none")
"""


def test_no_child_is_left_behind() -> None:
    done = python("-W", "error", "-c", NO_CHILD_LEFT)
    assert (done.stdout, done.stderr) == ("none\n", "")
