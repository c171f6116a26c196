"""One small process per task: starts it at most once, keeps its whole tree together, tells how it ended.

The shim exists because the exit code of a process can be read only by its parent, and the node's agent or
the controller may be dead at that moment. It runs in a session of its own and outlives both. Everything it
is told and everything it tells is a file in the task's folder:

    spec.json     what to run            stop       order to end it (before the start: never start)
    claim         this folder is taken   shim.json  who took it
    running.json  the task runs          exit.json  how it ended, written once, last
    log           output of the task     *.room     space for those two, taken before the start

Only the shim learns how the task ended, so a disk that fills up while it runs must not cost the answer: the
space is reserved before the start, and a task for which there is none waits for it.

Many of these run at once, so the imports are few and the loop does little.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import NoReturn

from . import gpus, processes
from .files import (
    DamagedFile,
    Json,
    changed_at,
    create_json,
    give_room_back,
    now_iso,
    private,
    read_json,
    read_text,
    reserve,
    say,
    write_json,
    write_reserved,
)

TICK_S = 0.05
FULL_DISK_PAUSE_S = 0.5
SLOW_PERIOD_S = 0.4
MEMORY_CHECK_S = 0.25
DEFAULT_STOP_TIMEOUT_S = 5.0

#: No container runs here. A reason of ECS that says as little is left out of messages in the same way.
ENDED, OUT_OF_MEMORY = "the program exited", "out of memory"
NODE_RESTARTED = "node restarted while the task ran"

_WAITED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}


def end_record(exit_code: int | None, reason: str, stop_code: str, started_at: str | None) -> Json:
    """The content of exit.json, in ECS's words."""
    return {
        "exit_code": exit_code,
        "reason": reason,
        "stop_code": stop_code,
        "started_at": started_at,
        "ended_at": now_iso(),
    }


class CannotStart(RuntimeError):
    """The program of the task could not be started at all."""


class Shim:
    """The life of one task, from claim to exit.json."""

    def __init__(self, task_dir: str, boot_id: str) -> None:
        self.task_dir = task_dir
        self.node_dir = os.path.dirname(os.path.dirname(task_dir))
        self.boot_id = boot_id
        self.spec: Json = {}
        self.main = 0
        self.status: int | None = None
        self.started_at: str | None = None
        self.stop_reason: str | None = None
        self.kill_at: float | None = None
        self.forced: tuple[int, str] | None = None
        self.blow: gpus.Blow | None = None
        self.fault_marks: tuple[tuple[int, int], ...] | None = None
        self.frozen = False
        self.memory_checked_at = 0.0

    def path(self, name: str) -> str:
        return os.path.join(self.task_dir, name)

    def run(self) -> int:
        """Claim, start, watch, clean up, report. A folder that is taken already is none of our business."""
        if not self.claim():
            return 0
        self.spec = read_json(self.path("spec.json")) or {}
        processes.adopt_orphans()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        boot = read_json(os.path.join(self.node_dir, "boot.json")) or {}
        if boot.get("boot_id") != self.boot_id:
            self.report(end_record(137, NODE_RESTARTED, "EssentialContainerExited", None))
            return 0
        self.stop_reason = read_text(self.path("stop"))
        if self.stop_reason is not None:  # ordered before the start: never start
            self.report(end_record(None, self.stop_reason, "UserInitiated", None))
            return 0
        try:
            self.start()
        except CannotStart as error:
            self.report(end_record(None, f"CannotStartContainerError: {error}", "TaskFailedToStart", None))
            return 0
        while self.status is None:
            self.watch()
            self.wait_a_tick()
            self.reap()
        processes.kill_descendants(self.reap)
        self.report(self.how_it_ended())
        return 0

    def claim(self) -> bool:
        """Take the folder, and the space for what is to be told of the task. A full disk is waited for.

        False when another shim was faster, or when the folder is gone.
        """
        record = {**processes.me()._asdict(), "boot_id": self.boot_id}
        mine = False
        while os.path.isdir(self.task_dir):
            try:
                mine = mine or create_json(self.path("claim"), record)
                if mine:
                    reserve(self.path("exit.json"))
                    reserve(self.path("running.json"))
                    write_json(self.path("shim.json"), record)
                return mine
            except OSError as error:
                say(f"{self.path('claim')}: {error}")
                time.sleep(FULL_DISK_PAUSE_S)
        return False

    def start(self) -> None:
        """Fork and exec the task; an error of the exec comes back through a pipe that a good exec closes."""
        shim = os.getpid()
        reader, writer = os.pipe()
        log = private(self.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self.main = os.fork()
        if self.main == 0:
            self._become_task(shim, writer, log)
        os.close(writer)
        os.close(log)
        with os.fdopen(reader, "rb") as pipe:
            error = pipe.read()
        if error:
            os.waitpid(self.main, 0)
            raise CannotStart(error.decode())
        self.started_at = now_iso()
        write_reserved(self.path("running.json"), {"started_at": self.started_at, "pid": self.main})

    def _become_task(self, shim: int, writer: int, log: int) -> NoReturn:
        """In the forked child: own session, no signal blocked or ignored, environment, then the program."""
        try:
            os.setsid()
            processes.die_with_parent(shim)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            os.dup2(log, 1)
            os.dup2(log, 2)
            env = {**os.environ, **{key: str(value) for key, value in self.spec.get("env", {}).items()}}
            env[processes.TASK_MARKER] = self.task_dir
            env[processes.NODE_MARKER] = self.node_dir
            env["GPU_RECOVERY_NODE"] = os.path.basename(self.node_dir)
            os.chdir(self.spec.get("cwd") or self.task_dir)
            argv = [str(word) for word in self.spec["argv"]]
            os.execvpe(argv[0], argv, env)
        except (OSError, ValueError, TypeError, LookupError) as error:  # all that a bad order can cause
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(127)

    def watch(self) -> None:
        """One look at orders, faults and memory. A task whose folder was taken away ends at once."""
        if not os.path.exists(self.path("spec.json")):
            self.end_by_force(137, ENDED)
        elif self.kill_at is not None:
            stuck = self.blow is not None and self.blow.kind == "stuck"
            if time.monotonic() >= self.kill_at and not stuck:
                processes.kill(processes.descendants(os.getpid()))
        else:
            self.stop_reason = self.stop_reason or read_text(self.path("stop"))
            if self.stop_reason is not None:
                self.ask_to_end()
            else:
                self.feel_faults()
                self.check_memory()

    def wait_a_tick(self) -> None:
        """Sleep until the tick is over or a child ends. A polite signal to the shim counts as a stop."""
        woken = signal.sigtimedwait(_WAITED, TICK_S) if self.status is None else None
        if woken is not None and woken.si_signo in (signal.SIGTERM, signal.SIGINT):
            name = signal.Signals(woken.si_signo).name
            self.stop_reason = self.stop_reason or f"the task's supervisor got {name}"

    def ask_to_end(self) -> None:
        """SIGTERM to the task's process group, and a time after which the whole tree is killed.

        A task frozen by a hanging GPU stays frozen, as it would be inside a driver: only the kill ends it.
        """
        if self.frozen and (self.blow is None or self.blow.kind not in ("hang", "stuck")):
            self.freeze(False)
        grace_s = float(self.spec.get("stop_timeout_s", DEFAULT_STOP_TIMEOUT_S))
        self.kill_at = time.monotonic() + grace_s
        try:
            os.killpg(self.main, signal.SIGTERM)
        except ProcessLookupError:
            return  # it ended by itself this very moment

    def feel_faults(self) -> None:
        """Let the injected faults of the node act on this task."""
        files = [os.path.join(self.node_dir, name) for name in ("gpus.json", "faults.json")]
        marks = tuple(changed_at(file) for file in files)
        if marks != self.fault_marks:
            self.fault_marks = marks
            self.blow = self.blow_of(*files)
        if self.blow is None:
            if self.frozen:
                self.freeze(False)
        elif self.blow.kind == "oom":
            self.end_by_force(137, OUT_OF_MEMORY)
        elif self.blow.kind == "kill":
            self.end_by_force(137, ENDED)
        elif self.blow.kind == "fatal":
            self.write_log(self.blow.line)
            self.end_by_force(1, ENDED)
        elif self.blow.kind in ("hang", "stuck"):
            self.freeze(True)
        else:
            phase = (time.monotonic() % SLOW_PERIOD_S) / SLOW_PERIOD_S
            self.freeze(phase >= self.blow.speed)

    def blow_of(self, state: str, faults: str) -> gpus.Blow | None:
        """A file that can't be read breaks nothing: the task feels what it felt before."""
        try:
            return gpus.blow_on_task(read_json(state), read_json(faults), self.spec)
        except (OSError, DamagedFile, LookupError, TypeError, AttributeError) as error:
            say(f"faults of this node cannot be read: {type(error).__name__}: {error}")
            return self.blow

    def freeze(self, stop: bool) -> None:
        """Stop or continue every process of the task; repeated while frozen, for processes born meanwhile."""
        if stop or self.frozen:
            for pid in processes.descendants(os.getpid()):
                process = processes.identify(pid)
                if process is not None:
                    processes.send_signal(process, signal.SIGSTOP if stop else signal.SIGCONT)
        self.frozen = stop

    def check_memory(self) -> None:
        """Enforce spec "memory_mib" by resident memory; shared pages count for each sharer."""
        limit = self.spec.get("memory_mib")
        if not limit or time.monotonic() - self.memory_checked_at < MEMORY_CHECK_S:
            return
        self.memory_checked_at = time.monotonic()
        pages = 0
        for pid in processes.descendants(os.getpid()):
            statm = read_proc(f"/proc/{pid}/statm")
            pages += int(statm.split()[1]) if statm else 0
        used = pages * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024)
        if used > int(limit):
            self.end_by_force(137, f"{OUT_OF_MEMORY}: it used {used} MiB, its limit is {limit} MiB")

    def end_by_force(self, exit_code: int, reason: str) -> None:
        """Kill the whole tree now, and remember what to report instead of the kill."""
        self.forced = (exit_code, reason)
        processes.kill_descendants(self.reap)

    def reap(self) -> None:
        """Collect every dead child, adopted orphans too, and note how the task itself ended."""
        for pid, status in processes.reaped():
            if pid == self.main:
                self.status = status

    def how_it_ended(self) -> Json:
        """The end in ECS's form: a fault of ours first, then a stop, then the task's own exit."""
        if self.forced is not None:
            return end_record(*self.forced, "EssentialContainerExited", self.started_at)
        code = os.waitstatus_to_exitcode(self.status or 0)
        code = 128 - code if code < 0 else code
        if self.stop_reason is not None:
            return end_record(code, self.stop_reason, "UserInitiated", self.started_at)
        return end_record(code, ENDED, "EssentialContainerExited", self.started_at)

    def report(self, end: Json) -> None:
        """Write exit.json into its room, unless the whole folder was taken away from under us.

        Only this process knows how the task ended. Should the disk refuse even so, it is asked again until it agrees.
        """
        while os.path.isdir(self.task_dir):
            try:
                write_reserved(self.path("exit.json"), end)
                give_room_back(self.path("running.json"))
                return
            except OSError as error:
                say(f"{self.path('exit.json')}: {error}")
                time.sleep(FULL_DISK_PAUSE_S)

    def write_log(self, line: str) -> None:
        try:
            with open(self.path("log"), "a", encoding="utf-8", opener=private) as log:
                log.write(line + "\n")
        except OSError as error:  # a line that finds no room must not cost the exit code
            say(f"{self.path('log')}: {error}")


def read_proc(path: str) -> str | None:
    """A file of /proc, or None when its process has ended."""
    try:
        return read_text(path)
    except ProcessLookupError:
        return None


def main(arguments: list[str]) -> int:
    """TASK_DIR [BOOT_ID]: run the task of that folder. Without a boot id, the node's present one is meant."""
    if not 1 <= len(arguments) <= 2:
        print("usage: shim TASK_DIR [BOOT_ID]", file=sys.stderr)
        return 2
    task_dir = os.path.abspath(arguments[0])
    boot = read_json(os.path.join(os.path.dirname(os.path.dirname(task_dir)), "boot.json")) or {}
    return Shim(task_dir, arguments[1] if len(arguments) == 2 else str(boot.get("boot_id"))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
