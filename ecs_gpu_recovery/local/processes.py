"""Which process is which: identity, search by marker, and the end of whole process trees.

A pid alone names no process: it is used again. A process is named by its pid, its start time and the boot of
the host. Processes of a node are found by a marker in their environment, because training launchers start
workers in sessions of their own, out of reach of a process group.

All of this reads Linux's /proc. Where there is none, `require_proc` says so before anything is started.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

TASK_MARKER = "GPU_RECOVERY_TASK"
"""Environment variable of a task and its shim; the value is the task's folder."""

NODE_MARKER = "GPU_RECOVERY_NODE_DIR"
"""Environment variable of everything that runs on a node; the value is the node's folder."""

PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class NotSupported(RuntimeError):
    """The embedded cluster needs Linux's /proc to supervise processes, and this system has none."""


class Unkillable(RuntimeError):
    """Processes are still there after SIGKILL, most likely stuck inside a driver."""


class ProcessId(NamedTuple):
    """One process, told apart from every other that had or will have its pid."""

    pid: int
    start_time: int
    host_boot_id: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ProcessId:
        """The identity inside a record such as agent.json or a claim."""
        return cls(int(record["pid"]), int(record["start_time"]), str(record["host_boot_id"]))


def require_proc() -> None:
    """Refuse early and clearly on systems where supervision cannot work."""
    if not sys.platform.startswith("linux") or not os.path.exists("/proc/self/stat"):
        raise NotSupported(
            f"the embedded cluster supervises processes through /proc, which {sys.platform} does not offer; "
            "run it on Linux, or in a Linux container or virtual machine"
        )


@cache
def host_boot_id() -> str:
    """The id of this boot of the host: after a reboot no old pid means anything, ours included."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def stat_fields(pid: int) -> list[bytes] | None:
    """Fields of /proc/PID/stat from the state on (the command before them may hold anything)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def identify(pid: int) -> ProcessId | None:
    """The identity of a living process. A zombie has ended: it runs nothing and holds nothing."""
    fields = stat_fields(pid)
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return ProcessId(pid, int(fields[19]), host_boot_id())


def me() -> ProcessId:
    found = identify(os.getpid())
    assert found is not None, "this process lives"
    return found


def reaped() -> Iterator[tuple[int, int]]:
    """Every child that has died, adopted orphans too, with its status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def is_alive(process: ProcessId) -> bool:
    """Whether that very process lives, not another one with its pid."""
    return identify(process.pid) == process


def send_signal(process: ProcessId, number: int) -> bool:
    """Signal that very process and never another one that got its pid meanwhile; False when it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def all_pids() -> list[int]:
    """Every process the kernel shows us."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid: int) -> list[int]:
    """Children of all threads of a process, zombies too. Needs no look at the rest of the machine."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(int(child) for child in file.read().split())
        except ProcessLookupError:
            continue
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):
                return _children_by_scan(pid)
    return found


def _children_by_scan(pid: int) -> list[int]:
    """The same on kernels built without the list of children: ask every process for its parent."""
    found = []
    for other in all_pids():
        fields = stat_fields(other)
        if fields and int(fields[1]) == pid:
            found.append(other)
    return found


def descendants(pid: int) -> list[int]:
    """All processes below one, parents first."""
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children(queue.pop())
        found.extend(below)
        queue.extend(below)
    return found


def marked(name: str, value: str) -> list[int]:
    """Living processes whose environment carries name=value, wherever in the process tree they hide."""
    others = (pid for pid in all_pids() if pid != os.getpid())
    return [pid for pid in others if marker_of(pid, name) == value and identify(pid) is not None]


def marker_of(pid: int, name: str) -> str | None:
    """The value of a marker in the environment of a process, or None."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # it ended, or it belongs to another user and so cannot be ours
    start = f"{name}=".encode()
    return next((entry[len(start) :].decode() for entry in entries if entry.startswith(start)), None)


def kill(pids: Iterable[int]) -> None:
    """SIGKILL to each that still lives."""
    for pid in pids:
        process = identify(pid)
        if process is not None:
            send_signal(process, signal.SIGKILL)


def kill_marked(name: str, value: str, patience_s: float = 10.0) -> int:
    """End every process that carries a marker, and everything below it; how many there were.

    A process between fork and exec can look unmarked for an instant, so only two clean looks in a row count.
    """
    seen: set[int] = set()
    clean = 0
    deadline = time.monotonic() + patience_s
    while clean < 2:
        found = marked(name, value)
        if not found:
            clean += 1
            time.sleep(0.01)
            continue
        clean = 0
        found += [below for pid in found for below in descendants(pid) if identify(below)]
        seen.update(found)
        kill(found)
        if time.monotonic() > deadline:
            raise Unkillable(f"still alive after SIGKILL: {sorted(set(found))}")
        time.sleep(0.005)
    return len(seen)


def kill_descendants(
    reap: Callable[[], None], keep: Iterable[int] = (), patience_s: float = math.inf
) -> None:
    """End everything below this process except `keep` and what is below those.

    `reap` collects the dead, so that zombies do not look like survivors. A process stuck inside a driver
    cannot be killed; by default we wait for it, because the task has not ended before it has.
    """
    spared = set(keep)
    deadline = time.monotonic() + patience_s
    pause_s = 0.002
    while True:
        reap()
        doomed = [child for child in children(os.getpid()) if child not in spared]
        doomed += [below for child in doomed for below in descendants(child)]
        living = [pid for pid in doomed if identify(pid)]
        if not living:
            return
        if time.monotonic() > deadline:
            raise Unkillable(f"still alive after SIGKILL: {sorted(living)}")
        kill(living)
        time.sleep(pause_s)
        pause_s = min(0.1, pause_s * 1.5)


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, so that none can slip away to init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """In a fresh child: be killed when the parent dies, also when it died before we could ask for it.

    The kernel ties this to the thread that forked, so only a single-threaded parent may rely on it.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(137)


def _prctl(option: int, argument: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl")


def python_module(module: str, *arguments: str, packages: bool = False) -> list[str]:
    """The command for one of our own programs, light and deaf to the environment of the user.

    Without installed packages (-S) and user settings (-I) the interpreter starts in half the time, and what
    a user puts into PYTHONPATH for the training cannot break the supervision.
    """
    find = f"import sys; sys.path.insert(0, {PACKAGE_ROOT!r})"
    run = f"{find}; from {module} import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-I", *([] if packages else ["-S"]), "-c", run, *arguments]


def spawn_detached(argv: Sequence[str], env: Mapping[str, str], output: str) -> int:
    """Start a process in a session of its own that outlives us; its pid. Output is appended to a file."""
    fresh = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD]
    return os.posix_spawn(
        argv[0],
        list(argv),
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=fresh,
    )


def close_inherited_files() -> None:
    """Let go of what a careless parent left open, so that no pipe waits for us to end."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                continue  # the descriptor of the listing itself
