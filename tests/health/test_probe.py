"""Questions in child processes. Each test is a program of its own, because it forks."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.programs import python

from .conftest import patiently

PRELUDE = """
import json, os, signal, subprocess, sys, time
from ecs_gpu_recovery.health.sources.probe import Probe, run

def show(outcomes):
    print(json.dumps({n: [o.state, list(o.messages), o.problem, o.seconds] for n, o in outcomes.items()}))
"""


def outcomes(program: str) -> dict[str, Any]:
    done = python("-W", "error", "-c", PRELUDE + program)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_answers_come_back_in_order() -> None:
    answer = outcomes("""
def work(emit):
    for n in range(3):
        emit({"n": n})
show(run([Probe(name="a", deadline_s=60, work=work)]))
""")
    assert answer["a"][:3] == ["done", [{"n": 0}, {"n": 1}, {"n": 2}], ""]


def hung(work: str, more: str = "") -> dict[str, Any]:
    """What is left of a question that hangs; it has had the time to say something."""
    program = """
%s
fine = Probe(name="fine", deadline_s=60, work=lambda emit: None)
result = run([Probe(name="hung", deadline_s=%s, work=hang), fine])
%s
show(result)
"""
    return patiently(
        lambda deadline: outcomes(program % (work, deadline, more)),
        lambda found: found["hung"][1],
        0.5,
        5,
        60,
    )


def test_a_hang_ends_at_the_deadline_and_keeps_what_was_said() -> None:
    answer = hung("""
def hang(emit):
    emit({"asking": 3})
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1000)
""")
    state, messages, problem, _ = answer["hung"]
    assert (state, messages) == ("hung", [{"asking": 3}])
    assert re.search(r"within (0\.5|5|60) s", problem)
    assert answer["fine"][0] == "done"


def test_what_a_hung_child_started_dies_with_it() -> None:
    work = """
def hang(emit):
    child = subprocess.Popen(["sleep", "1000"])
    emit({"pid": child.pid})
    child.wait()
"""
    wait = """
def gone(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
until = time.monotonic() + 60
pids = [message["pid"] for message in result["hung"].messages]
while not all(map(gone, pids)) and time.monotonic() < until:
    time.sleep(0.01)
assert all(map(gone, pids))
"""
    answer = hung(work, wait)
    assert (answer["hung"][0], len(answer["hung"][1])) == ("hung", 1)


def test_an_error_in_the_child_is_told() -> None:
    answer = outcomes("""
def work(emit):
    emit({"so": "far"})
    raise ValueError("no such thing")
show(run([Probe(name="a", deadline_s=60, work=work)]))
""")
    state, messages, problem, _ = answer["a"]
    assert (state, messages) == ("failed", [{"so": "far"}])
    assert "ValueError: no such thing" in problem


def test_a_child_that_is_killed_is_told() -> None:
    answer = outcomes("""
show(run([Probe(name="a", deadline_s=60, work=lambda emit: os.kill(os.getpid(), signal.SIGSEGV))]))
""")
    assert answer["a"][0] == "failed"
    assert "signal 11" in answer["a"][2]


def test_much_output_passes_and_none_of_it_reaches_the_terminal() -> None:
    answer = outcomes("""
def work(emit):
    print("noise of a library")
    sys.stderr.write("more noise")
    emit({"text": "x" * 3_000_000})
result = run([Probe(name="a", deadline_s=60, work=work)])
assert len(result["a"].messages[0]["text"]) == 3_000_000
show({})
""")
    assert answer == {}


def test_nothing_to_ask_is_no_error() -> None:
    assert outcomes("show(run([]))") == {}


def test_no_child_is_left_behind() -> None:
    outcomes("""
hung = [Probe(name=f"h{n}", deadline_s=0.3, work=lambda emit: time.sleep(900)) for n in range(3)]
fine = [Probe(name=f"f{n}", deadline_s=60, work=lambda emit: None) for n in range(3)]
run(hung + fine)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    show({})
""")
