"""What tests wait for, patient with a busy machine: programs that run to their end, and what comes true in time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 180.0


def eventually(condition: Callable[[], T], what: str = "", patience_s: float = PATIENCE_S) -> T:
    """Wait for something to come true, and give it back."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never came true: {what or condition}"
        time.sleep(0.02)
    return found


def a_program(path: Path, does: str = "") -> Path:
    """One of the shell's, for a test to find."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return path


def ran(*command: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """In the repository; how it ended and what it said, both streams as text. `more` is for `subprocess.run`."""
    streams = {} if "stdout" in more else {"capture_output": True}
    usual = {"cwd": ROOT, "text": True, "timeout": PATIENCE_S, "check": False}
    return subprocess.run(list(map(str, command)), **{**usual, **streams, **more})


def python(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, *arguments, **more)
