"""Other programs, run from inside a probe's child process. The probe's deadline is theirs too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that ran to its end."""

    exit_code: int
    text: str
    errors: str = ""


def output_of(argv: Sequence[str]) -> Ran | None:
    """What the program printed, or None when it is not installed. English, whatever the node speaks."""
    import subprocess  # loaded only in the child that needs it

    program = shutil.which(argv[0])
    if program is None:
        return None
    done = subprocess.run(
        [program, *argv[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
