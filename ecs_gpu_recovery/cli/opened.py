"""The backend of a command, for as long as the command runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..control.backend import Backend


@contextmanager
def opened(backend: str, state: Path | None) -> Iterator[Backend]:
    """The backend a command asked for; its warning, if any, goes to standard error."""
    from ..control.backend import open_backend  # not needed to explain a command, and not loaded for that

    side = open_backend(backend, state)
    try:
        if text := side.warning():
            print(f"gpu-recovery: {text}", file=sys.stderr)
        yield side
    finally:
        side.close()


def remark(side: Backend) -> None:
    """What a person should know beside the answer, where it does not disturb a script."""
    if side.remark:
        print(f"gpu-recovery: {side.remark}", file=sys.stderr)
        side.remark = ""
