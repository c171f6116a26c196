"""The commands of a page, and a terminal in which a person types them one after the other."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

#: The longest step is the one that installs everything, on a machine that does other things too.
STEP_S = 1200.0
#: What a command asks, and the answer that the page tells.
_ASKED = re.compile(r"\(y/n\)\S*\s*$")


def commands(page: str) -> list[str]:
    """In the order of the page; a line that goes on is one with the next."""
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


class Terminal:
    """One shell from the first command to the last: what one exports, the next sees."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._step = folder / ".step"
        self._side, theirs = pty.openpty()
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=folder,
            env={**env, "PS1": "", "VIRTUAL_ENV_DISABLE_PROMPT": "1", "TERM": "dumb", "COLUMNS": "200"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.type("stty -echo cols 200")

    def type(self, command: str) -> tuple[int, str]:
        """Its exit code and what it said."""
        self._step.write_text(command + "\n", encoding="utf-8")
        os.write(self._side, f"source {self._step}; printf '\\n@%s@%s@\\n' ended $?\n".encode())
        said, until = "", time.monotonic() + STEP_S
        while (end := re.search(r"@ended@(\d+)@", said)) is None:
            if time.monotonic() > until:
                raise TimeoutError(f"{command} did not end:\n{said[-3000:]}")
            if select.select([self._side], [], [], 1.0)[0]:
                said += os.read(self._side, 1 << 16).decode(errors="replace")
                if _ASKED.search(said[-200:]):
                    os.write(self._side, b"y\n")
                    said += "y\n"
        return int(end[1]), said[: end.start()].replace("\r", "")

    def close(self) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        os.close(self._side)
