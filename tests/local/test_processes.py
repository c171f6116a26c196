from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ecs_gpu_recovery.local import processes
from tests.local.helpers import eventually, process_state

ESCAPE = """
import os, time
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
HIDE = """
import subprocess
hidden = subprocess.Popen(["/bin/sleep", "600"], env={})
print(hidden.pid, flush=True)
hidden.wait()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.communicate()


def start(started: list[subprocess.Popen[str]], program: str, **env: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-S", "-c", program]
    started.append(subprocess.Popen(argv, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True))
    return started[-1]


def test_a_process_is_not_mistaken_for_another_with_its_pid(started: list[subprocess.Popen[str]]) -> None:
    child = start(started, "import time; time.sleep(600)")
    me = processes.identify(child.pid)
    assert me is not None
    assert processes.is_alive(me)
    assert not processes.is_alive(me._replace(start_time=me.start_time + 1))
    assert not processes.is_alive(me._replace(host_boot_id="another boot"))
    assert not processes.send_signal(me._replace(start_time=me.start_time + 1), 9)
    assert process_state(child.pid) not in ("", "Z")


def test_a_zombie_has_ended(started: list[subprocess.Popen[str]]) -> None:
    child = start(started, "")
    eventually(lambda: process_state(child.pid) == "Z")
    assert processes.identify(child.pid) is None


def test_a_marker_finds_who_left_the_session_and_the_family(started: list[subprocess.Popen[str]]) -> None:
    value = f"/a/task/of/{os.getpid()}"
    parent = start(started, ESCAPE, GPU_RECOVERY_TASK=value)
    assert parent.stdout is not None
    escaped = int(parent.stdout.readline())
    parent.wait()
    assert processes.marked(processes.TASK_MARKER, value) == [escaped]
    assert processes.marked(processes.TASK_MARKER, value + "0") == []
    assert processes.kill_marked(processes.TASK_MARKER, value) == 1
    assert processes.marked(processes.TASK_MARKER, value) == []
    assert process_state(escaped) in ("", "Z")


def test_a_process_that_drops_the_marker_is_found_below_one_that_carries_it(
    started: list[subprocess.Popen[str]],
) -> None:
    value = f"/a/node/of/{os.getpid()}"
    parent = start(started, HIDE, GPU_RECOVERY_NODE_DIR=value)
    assert parent.stdout is not None
    hidden = int(parent.stdout.readline())
    eventually(lambda: processes.marker_of(hidden, processes.NODE_MARKER) is None)
    assert processes.marked(processes.NODE_MARKER, value) == [parent.pid]
    assert processes.kill_marked(processes.NODE_MARKER, value) == 2
    assert process_state(hidden) in ("", "Z")


def test_children_are_found_with_and_without_the_kernels_list(started: list[subprocess.Popen[str]]) -> None:
    child = start(started, "import time; time.sleep(600)")
    assert child.pid in processes.children(os.getpid())
    assert child.pid in processes._children_by_scan(os.getpid())
    assert processes.children(2**22 + 1) == []


def test_a_system_without_proc_is_refused_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(processes.NotSupported, match="darwin does not offer; run it on Linux"):
        processes.require_proc()
