"""`gpu-health stacks`: where the processes of a rank stand, before they are ended. Bounded in time and size.

py-spy says which line of Python each thread is at; where it is not installed, or may not look, the kernel's own view is
kept: state, and what a thread waits in. A stopped process shows as `T`, one stuck in the driver as `D`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ecs_gpu_recovery.health.judge import report

PATIENCE_S = 30.0
_EACH_S = 5.0
_MOST_BYTES, _MOST_THREADS, _MOST_PROCESSES = 64 * 1024, 64, 32
_PROC = Path("/proc")


def of_tree(pid: int, patience_s: float = PATIENCE_S) -> str:
    """A process and those that it has started."""
    until = time.monotonic() + patience_s
    parts = []
    for one in _tree(pid)[:_MOST_PROCESSES]:
        if time.monotonic() >= until:
            parts.append(f"process {one} and what follows was not asked: {patience_s:g} s are over")
            break
        parts.append(of(one, min(_EACH_S, until - time.monotonic())))
    return "\n".join(parts)


def of(pid: int, patience_s: float = _EACH_S) -> str:
    command = _text(_PROC / str(pid) / "cmdline").replace("\0", " ").strip()
    said = [f"process {pid}: {command[:200] or 'it has ended'}", *_threads(pid)]
    python = _py_spy(pid, patience_s)
    return "\n".join(said + ([python] if python else []))[:_MOST_BYTES] + "\n"


def _threads(pid: int) -> Iterator[str]:
    """State and place of each thread in the kernel; those that wait in the same way are counted together."""
    seen: dict[tuple[str, str, str], int] = {}
    folders = sorted((_PROC / str(pid) / "task").glob("*"), key=lambda path: int(path.name))
    for folder in folders[:_MOST_THREADS]:
        fields = _text(folder / "stat").rpartition(")")[2].split()
        key = (_text(folder / "comm").strip(), fields[0] if fields else "?", _text(folder / "wchan").strip())
        seen[key] = seen.get(key, 0) + 1
    for (name, state, place), number in seen.items():
        times = f" x {number}" if number > 1 else ""
        yield f"  {name}: {state}{f' in {place}' if place not in ('', '0') else ''}{times}"


def _py_spy(pid: int, patience_s: float) -> str:
    """Without stopping the process: one that is stopped already would never answer."""
    program = shutil.which("py-spy")
    if program is None:
        return ""
    try:
        ran = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            timeout=patience_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"  py-spy: {error}"
    said = ran.stdout or ran.stderr
    return said.decode(errors="replace").strip()


def _tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for path in (_PROC / str(one) / "task").glob("*/children"):
            found += [int(child) for child in _text(path).split() if int(child) not in found]
    return found


def _text(path: Path) -> str:
    """Empty where the process has ended, or is not ours to look at."""
    try:
        return path.read_bytes()[:_MOST_BYTES].decode(errors="replace")
    except OSError:
        return ""


def run(argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """The command; returns the exit code."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--pid", type=int, action="append", required=True, help="with all that it has started"
    )
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, metavar="S", help="for all of them together"
    )
    options = parser.parse_args(argv)
    for pid in options.pid:
        report.say(of_tree(pid, options.patience / len(options.pid)))
    return 0 if all(os.path.exists(f"/proc/{pid}") for pid in options.pid) else 1
