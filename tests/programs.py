"""Programs that a test runs to their end: in the repository, both streams as text, patient with a busy machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 180.0


def ran(*command: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """How it ended and what it said. `more` is for `subprocess.run`."""
    streams = {} if "stdout" in more else {"capture_output": True}
    usual = {"cwd": ROOT, "text": True, "timeout": PATIENCE_S, "check": False}
    return subprocess.run(list(map(str, command)), **{**usual, **streams, **more})


def python(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, *arguments, **more)
