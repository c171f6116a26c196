"""The watch: every fault told once, at once, whatever happens to the log or to the watch itself."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.health import main, policy
from ecs_gpu_recovery.health.sources import driver_events, follow
from ecs_gpu_recovery.health.sources.probe import Emit
from ecs_gpu_recovery.health.watch import sinks
from ecs_gpu_recovery.health.watch.watcher import Telling, Watch
from tests.programs import eventually

from .conftest import BUSY_MACHINE_S, ROOT, Bus

AT = "2026-11-15T02:00:{second:02d}.000000+00:00"


def xid(code: int, gpu: str = "0000:01:00", text: str = "", second: int = 0) -> str:
    return f"{AT.format(second=second)} kernel: NVRM: Xid (PCI:{gpu}): {code}, pid=7, name=python, {text}\n"


Told = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text("")
    return path


@pytest.fixture
def once(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """One look by a fresh watch that remembers what its predecessors told."""

    def run(*more: str) -> list[dict[str, Any]]:
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        argv = ["watch", "--once", "--kernel-log", str(log), "--state", str(tmp_path / "state.json")]
        try:
            assert main.run([*argv, "--node", "n1", *more]) == 0
        finally:
            for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
                signal.signal(number, handler)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def append(log: Path, text: str | bytes) -> None:
    with open(log, "ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def test_a_fault_is_told_with_its_evidence(once: Told, log: Path) -> None:
    assert once() == []
    append(log, xid(79, text="GPU has fallen off the bus."))
    (event,) = once()
    assert (event["schema"], event["node"], event["code"]) == ("gpu-health-event/1", "n1", 79)
    assert (event["action"], event["application"]) == ("reboot", False)
    assert event["what"] == "Xid 79 on GPU 0000:01:00 (fallen off the bus)"
    assert event["at"] == "2026-11-15T02:00:00+00:00"
    assert "fallen off the bus" in event["evidence"]


UVM = "NVRM: uvm encountered global fatal error 0x60, requiring os reboot to recover."


@pytest.mark.parametrize(
    ("line", "code", "action"),
    [
        *((xid(code), code, "application") for code in (13, 31, 43, 45, 94)),
        (UVM, "reboot-asked", "reboot"),
        ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x25:0x65:1)", "init-failed", "suspect"),
        ("nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)", "bus-error", "suspect"),
    ],
)
def test_a_programs_fault_is_told_as_one_and_a_fault_without_a_number_too(
    once: Told, log: Path, line: str, code: int | str, action: str
) -> None:
    once()
    append(log, f"{line}\n")
    (event,) = once()
    told = (event["code"], event["action"], event["application"])
    assert told == (code, action, action == "application")


@pytest.mark.parametrize(("more", "codes"), [([], []), (["--from-start"], [79])])
def test_what_was_there_before_the_first_start_is_left_to_a_check_unless_it_is_asked_for(
    once: Told, log: Path, more: list[str], codes: list[int]
) -> None:
    append(log, xid(79))
    assert [event["code"] for event in once(*more)] == codes


def test_a_restart_tells_nothing_twice_and_misses_nothing(once: Told, log: Path) -> None:
    once()
    codes = [79, 48, 31, 119, 63, 95]
    told = []
    for place, code in enumerate(codes):
        append(log, xid(code, gpu=f"0000:0{place}:00"))
        told += [event["code"] for event in once()]
        told += [event["code"] for event in once()]
    assert told == codes


def test_a_fault_that_repeats_itself_is_told_once(once: Told, log: Path) -> None:
    once()
    for second in range(10):
        append(log, xid(119, second=second))
    assert len(once()) == 1
    append(log, xid(119, second=30))
    assert once() == []


def test_programs_that_fail_one_after_the_other_are_told_one_by_one(once: Told, log: Path) -> None:
    once()
    append(log, xid(43) + xid(43, second=1) + xid(43, second=2).replace("pid=7", "pid=8"))
    assert len(once()) == 2


def test_the_echo_of_a_fault_is_not_told(once: Told, log: Path) -> None:
    once()
    append(log, xid(79) + xid(45, second=1))
    assert [event["code"] for event in once()] == [79]


@pytest.mark.parametrize("first", ["the driver", "/dev/kmsg"])
def test_the_log_and_the_driver_tell_of_one_fault_that_counts_once(first: str) -> None:
    def say(source: str, pid: int) -> Any:
        end = f"pid={pid}, name=python3" if source == "/dev/kmsg" else "reported by the driver"
        return watch.take(f"NVRM: Xid (PCI:0000:01:00): 43, {end}", source)

    watch = Watch(policy.load(), "n1", "boot", None)
    second = {"the driver": "/dev/kmsg", "/dev/kmsg": "the driver"}[first]
    told = [*say(first, 1), *say(second, 1), *say("/dev/kmsg", 2), *say("the driver", 2)]
    assert told[-1]["count"] == 2
    assert "pid=2" in told[-1]["evidence"]


def test_a_rotated_log_is_followed_to_its_end_and_from_its_beginning(log: Path) -> None:
    follower = follow.FileFollower(log, None)
    append(log, "one\ntwo\nhal")
    assert list(follower.lines()) == ["one", "two"]
    append(log, "f\nlast of the old\n")
    log.rename(log.with_suffix(".1"))
    log.write_text("first of the new\n")
    assert list(follower.lines()) == ["half", "last of the old", "first of the new"]
    follower.close()


def test_a_cut_log_is_read_from_its_beginning(log: Path) -> None:
    follower = follow.FileFollower(log, None)
    append(log, "one\ntwo\n")
    assert list(follower.lines()) == ["one", "two"]
    log.write_text("three\n")
    assert list(follower.lines()) == ["three"]
    log.write_text("another beginning, longer than before\n")
    assert list(follower.lines()) == ["another beginning, longer than before"]
    follower.close()


def test_another_file_of_the_same_name_is_known_after_a_restart(log: Path) -> None:
    follower = follow.FileFollower(log, None)
    append(log, "one\ntwo\n")
    list(follower.lines())
    position = follower.position()
    follower.close()
    log.write_text("new one\nnew two\n")
    again = follow.FileFollower(log, position)
    assert list(again.lines()) == ["new one", "new two"]
    again.close()


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    follower = follow.FileFollower(tmp_path / "later.log", None)
    assert list(follower.lines()) == []
    (tmp_path / "later.log").write_text("now\n")
    assert list(follower.lines()) == ["now"]
    follower.close()


def test_random_writes_rotations_and_restarts_lose_and_repeat_nothing(log: Path) -> None:
    chance = random.Random(7)
    follower = follow.FileFollower(log, None)
    written: list[str] = []
    read: list[str] = []
    for number in range(400):
        text = f"line {number} {'x' * chance.randrange(200)}"
        append(log, text + "\n")
        written.append(text)
        match chance.randrange(8):
            case 0:
                read += follower.lines()
                position = follower.position()
                follower.close()
                follower = follow.FileFollower(log, position)
            case 1:
                log.rename(log.with_suffix(f".{number}"))
                log.write_text("")
                read += follower.lines()
            case 2 | 3:
                read += follower.lines()
    read += follower.lines()
    follower.close()
    assert read == written


def test_garbage_is_no_reason_to_stop(once: Told, log: Path) -> None:
    once()
    chance = random.Random(1)
    append(log, chance.randbytes(200_000) + b"\n")
    append(log, b"x" * 100_000 + b"\nNVRM: Xid (PCI:zz): 9\nNVRM: Xid (PCI:0000:01:00): 99999999999\n\x00\n")
    append(log, xid(79))
    assert [event["code"] for event in once()] == [79]


def test_a_damaged_note_of_the_position_is_as_good_as_none(once: Told, log: Path, tmp_path: Path) -> None:
    for text in ("{", "[]", '{"told": 3, "unsent": 4}', '{"' + str(log) + '": {"inode": "x"}}'):
        (tmp_path / "state.json").write_text(text)
        once()


def test_events_go_to_a_file_once_even_if_the_watch_forgot(once: Told, log: Path, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    append(log, xid(79) + xid(31, gpu="0000:02:00"))
    for _ in range(3):
        once("--events", str(events), "--from-start")
        (tmp_path / "state.json").unlink()
    assert [json.loads(line)["code"] for line in events.read_text().splitlines()] == [79, 31]


def test_what_cannot_be_written_now_is_written_later(once: Told, log: Path, tmp_path: Path) -> None:
    once()
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    append(log, xid(79))
    once("--events", str(blocked / "events.jsonl"))
    blocked.unlink()
    once("--events", str(blocked / "events.jsonl"))
    assert json.loads((blocked / "events.jsonl").read_text())["code"] == 79


def test_eventbridge_gets_what_it_refused_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus(refusals=1)
    sink = sinks.EventBridgeSink("default", dict)
    monkeypatch.setattr(sink, "_client", bus)
    telling = Telling([sink], [])
    watch = Watch(policy.load(), "n1", "boot", None)
    for code in (79, 31):
        for event in watch.take(xid(code, gpu=f"0000:{code}:00"), "log"):
            telling.add(event)
    telling.try_now()
    assert len(telling.unsent) == 2
    monkeypatch.setattr(telling, "_next", 0.0)
    telling.try_now()
    assert telling.unsent == []
    assert {entry["Source"] for entry in bus.entries} == {"gpu-recovery.watch"}
    assert [json.loads(entry["Detail"])["code"] for entry in bus.entries] == [79, 31]


def test_without_boto3_events_are_kept_and_the_watch_goes_on(
    monkeypatch: pytest.MonkeyPatch, once: Told, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", types.ModuleType("boto3"))
    once()
    append(log, xid(79))
    assert [event["code"] for event in once("--eventbridge")] == [79]


def test_a_watch_that_may_read_nothing_says_what_it_needs_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*args: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted", str(follow.KMSG))

    monkeypatch.setattr(follow, "KernelFollower", refused)
    monkeypatch.setattr("ecs_gpu_recovery.health.sources.nvml.available", lambda: False)
    assert main.run(["watch"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("gpu-health watch: /dev/kmsg cannot be read: Operation not permitted")
    assert "CAP_SYSLOG" in said
    assert "--kernel-log FILE" in said


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_the_drivers_own_word_reads_like_the_log_and_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def listens_and_fails(emit: Emit) -> None:
        emit({"xid": 79, "gpu": "0000:01:00"})
        raise OSError("the driver is gone")

    monkeypatch.setattr(driver_events, "_listen", listens_and_fails)
    heard = driver_events.DriverEvents()
    told: list[str] = []
    eventually(lambda: told.extend(heard.lines()) or heard.ended, "the driver's events end")
    heard.close()
    assert told == ["NVRM: Xid (PCI:0000:01:00): 79, reported by the driver"]
    assert "the driver is gone" in heard.ended


def test_raw_kernel_records_are_numbered_and_told_once(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    record = b"4,%d,206764321,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"

    def write_and_read(follower: follow.KernelFollower, number: int) -> list[str]:
        os.write(writer, record % number)
        return list(follower.lines())

    first = follow.KernelFollower("boot-1", None, path=pipe)
    assert len(write_and_read(first, 5)) == 1
    position = first.position()
    first.close()
    again = follow.KernelFollower("boot-1", position, path=pipe)
    assert write_and_read(again, 5) == []
    assert len(write_and_read(again, 6)) == 1
    again.close()
    rebooted = follow.KernelFollower("boot-2", position, path=pipe)
    assert len(write_and_read(rebooted, 1)) == 1
    rebooted.close()
    os.close(writer)


@pytest.fixture
def running(tmp_path: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A watch as the node would run it, on a simulated node."""
    (tmp_path / "kmsg").symlink_to(log.name)
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "ecs_gpu_recovery.health", "watch", "--state", tmp_path / "s"],
        cwd=ROOT,
        env={**os.environ, "GPU_HEALTH_SIMULATED": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually((tmp_path / "s").exists, "the watch runs")
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_a_running_watch_tells_at_once_and_ends_cleanly(running: subprocess.Popen[str], log: Path) -> None:
    alarm = threading.Timer(BUSY_MACHINE_S, running.kill)
    alarm.start()
    append(log, xid(79))
    assert running.stdout is not None
    assert json.loads(running.stdout.readline())["code"] == 79
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=BUSY_MACHINE_S)
    alarm.cancel()
    assert (running.returncode, out, err) == (0, "", "")
