"""Checks in child processes with a deadline, so that a driver call that never returns becomes a finding.

A hung ioctl cannot be interrupted from inside, and sometimes not even killed. So every question is asked by
a child, a fork or a program, that streams what it learns; at the deadline the parent kills the child's whole
session and goes on with what arrived. The parent itself never talks to a driver, a network or a shared file system.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from ecs_gpu_recovery.health.findings import one_line

Emit = Callable[[Mapping[str, object]], None]
"""How a child sends up what it knows so far."""
Work = Callable[[Emit], None] | Sequence[str]
"""What a child does; or a program that prints it, for a parent with threads and locks that no child may inherit."""

_DONE = {"probe": "done"}
_KILL_GRACE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question: what to do in the child and how long it may take."""

    name: str
    deadline_s: float
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    name: str
    state: str
    """done, hung (past the deadline) or failed (the child broke)."""
    messages: tuple[dict[str, object], ...]
    seconds: float
    problem: str = ""

    def first(self, key: str) -> object:
        """The value of the first message that has this key."""
        return next((message[key] for message in self.messages if key in message), None)


@dataclass(slots=True)
class Running:
    """A question that is being asked."""

    probe: Probe
    pid: int
    pipe: int
    started: float
    data: bytearray = field(default_factory=bytearray)


def run(probes: Sequence[Probe]) -> dict[str, Outcome]:
    """Ask all questions at once; the answer is complete after the longest deadline."""
    running = [start(probe) for probe in probes]
    outcomes: dict[str, Outcome] = {}
    try:
        while running:
            until = min(child.started + child.probe.deadline_s for child in running)
            select.select([child.pipe for child in running], [], [], max(0.0, until - time.monotonic()))
            for child in list(running):
                if (outcome := poll(child)) is not None:
                    running.remove(child)
                    outcomes[child.probe.name] = outcome
    finally:
        for child in running:
            kill(child)
    return outcomes


def poll(child: Running) -> Outcome | None:
    """What came of it, if that is known by now."""
    if not _still_sends(child):
        return _ended(child)
    late = time.monotonic() >= child.started + child.probe.deadline_s
    return _hung(child) if late else None


def take(child: Running) -> tuple[list[dict[str, object]], bool]:
    """What a child that streams has sent since the last time, in whole messages; whether it still sends."""
    open_still = _still_sends(child)
    messages = _messages(child.data)
    del child.data[: child.data.rfind(b"\n") + 1]
    return messages, open_still


def _still_sends(child: Running) -> bool:
    """Keep what has arrived; False once the child has closed its end."""
    try:
        while chunk := os.read(child.pipe, 1 << 16):
            child.data += chunk
    except BlockingIOError:
        return True
    return False


def start(probe: Probe) -> Running:
    """Begin a child that asks the question, and sends what it learns through its pipe, which does not block us."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        pid = _fork(probe.work, reader, writer) if callable(probe.work) else _spawn(probe.work, writer)
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return Running(probe=probe, pid=pid, pipe=reader, started=time.monotonic())


def _spawn(argv: Sequence[str], writer: int) -> int:
    nothing = [(os.POSIX_SPAWN_OPEN, standard, os.devnull, os.O_RDWR, 0) for standard in (0, 2)]
    files = [(os.POSIX_SPAWN_DUP2, writer, 1), *nothing]
    return os.posix_spawn(argv[0], list(argv), os.environ, file_actions=files, setsid=True)


def _fork(work: Callable[[Emit], None], reader: int, writer: int) -> int:
    """The child keeps no reader: it ends when nobody else has one."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    os.close(reader)
    _child(work, writer)


def _child(work: Callable[[Emit], None], writer: int) -> NoReturn:
    """Runs in the child and never returns, whatever the work does."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        work(lambda message: _send(writer, message))
        _send(writer, _DONE)
    except BaseException as error:  # noqa: BLE001 (told to the parent; a child must not unwind into it)
        where = traceback.extract_tb(error.__traceback__)[-1:]
        place = f" at {os.path.basename(where[0].filename)}:{where[0].lineno}" if where else ""
        _send(writer, {"probe": "failed", "problem": one_line(f"{type(error).__name__}: {error}{place}")})
    finally:
        os._exit(0)


def _send(writer: int, message: Mapping[str, object]) -> None:
    """One message, as a child writes it."""
    data = memoryview(json.dumps(message, default=str).encode() + b"\n")
    while data:
        data = data[os.write(writer, data) :]


def as_program(work: Callable[[Emit], None]) -> int:
    """The work of a program whose output is its messages: it ends when nobody reads them."""
    with suppress(BrokenPipeError):
        work(partial(_send, sys.stdout.fileno()))
    return 0


def _ended(child: Running) -> Outcome:
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    messages = _messages(child.data)
    last = messages[-1] if messages else {}
    if last == _DONE:
        return _outcome(child, "done", messages[:-1])
    if last.get("probe") == "failed":
        return _outcome(child, "failed", messages[:-1], str(last.get("problem")))
    code = os.waitstatus_to_exitcode(status)
    return _outcome(child, "failed", messages, f"the probe died ({f'signal {-code}' if code < 0 else code})")


def _hung(child: Running) -> Outcome:
    killed = kill(child)
    text = f"no answer within {child.probe.deadline_s:g} s"
    return _outcome(
        child, "hung", _messages(child.data), text if killed else f"{text}, and it cannot be killed"
    )


def kill(child: Running) -> bool:
    """End the child's session. A process stuck in the kernel outlives even that; don't wait for it."""
    os.close(child.pipe)
    for target in (os.killpg, os.kill):
        try:
            target(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    until = time.monotonic() + _KILL_GRACE_S
    while time.monotonic() < until:
        if ended(child):
            return True
        time.sleep(0.005)
    return False


def ended(child: Running) -> bool:
    """Whether a child that was killed is gone. To be asked until it is."""
    return os.waitpid(child.pid, os.WNOHANG)[0] != 0


def _messages(data: bytearray) -> list[dict[str, object]]:
    """Whole lines only; the last one may have been cut off by the deadline. A program may print others, too."""
    whole, _, _ = bytes(data).rpartition(b"\n")
    return [json.loads(line) for line in whole.split(b"\n") if line.startswith(b"{")]


def _outcome(child: Running, state: str, messages: list[dict[str, object]], problem: str = "") -> Outcome:
    seconds = time.monotonic() - child.started
    return Outcome(
        name=child.probe.name, state=state, messages=tuple(messages), seconds=seconds, problem=problem
    )
