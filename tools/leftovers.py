"""What a run of the tests leaves behind: processes, temporary folders, files in the tree.

Everything that a run starts inherits a token in its environment and the run's own folder for temporary files. So what
is left is found afterwards whoever started it, in whichever worker, and whatever session it moved to. pytest tells
every process which test started it; that is told too.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.project import ROOT

TOKEN = "GPU_RECOVERY_SUITE"
#: A process that was told to end may need a moment for it.
_GRACE_S = 10.0
#: What pytest keeps of a run, and what a run may make in the tree: caches and environments, all ignored by git.
_PYTEST = "pytest-of-"
_MADE = (
    "__pycache__",
    ".hypothesis",
    ".pytest_cache",
    ".tools",
    ".venv-",
    "build",
    "cdk.out",
    "node_modules",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One that outlived the run."""

    pid: int
    command: str
    test: str

    def __str__(self) -> str:
        return f"process {self.pid}, started by {self.test or 'an unknown test'}: {self.command}"


class Traces:
    """Of one run, from before its start to after its end."""

    def __init__(self, root: Path = ROOT) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="suite-"))
        self.folder.chmod(0o755)  # some tests look at it as another user
        self._root, self._there = root, _names(root)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, TOKEN: self.folder.name, "TMPDIR": str(self.folder)}

    def left(self, grace_s: float = _GRACE_S) -> list[str]:
        """Every trace in words. A process that was found is ended, so that the next run does not find it again."""
        until = time.monotonic() + grace_s
        while (found := self.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        folders = [str(path) for path in self.folder.iterdir() if not path.name.startswith(_PYTEST)]
        stray = {name for name in _names(self._root) - self._there if not name.startswith(_MADE)}
        files = [str(self._root / name) for name in stray]
        return [*map(str, found), *(f"left behind: {path}" for path in sorted(folders + files))]

    def processes(self) -> list[Process]:
        """Those that carry this run's token. Linux only; elsewhere nothing can be told."""
        token = f"{TOKEN}={self.folder.name}"
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile, or is somebody else's
                environment = entry.joinpath("environ").read_bytes().decode(errors="replace").split("\0")
                if token in environment and int(entry.name) != os.getpid():
                    started = [text for text in environment if text.startswith("PYTEST_CURRENT_TEST=")]
                    test = started[0].partition("=")[2] if started else ""
                    found.append(Process(pid=int(entry.name), command=_command(entry), test=test))
        return found

    def forget(self) -> None:
        """The temporary files of a run that went well."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def _command(entry: Path) -> str:
    return entry.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
