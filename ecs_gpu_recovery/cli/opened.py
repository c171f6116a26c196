"""The backend of a command, for as long as the command runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..control.backend import Backend, LocalBackend, open_backend
from ..core.errors import Refused


@contextmanager
def opened(backend: str, state: Path | None) -> Iterator[Backend]:
    """The backend a command asked for; its warning, if any, goes to standard error."""
    side = open_backend(backend, state)
    try:
        if text := side.warning():
            print(f"gpu-recovery: {text}", file=sys.stderr)
        yield side
    finally:
        side.close()


@contextmanager
def opened_here(state: Path | None) -> Iterator[LocalBackend]:
    """The embedded one, for what only it can do."""
    with opened("local", state) as side:
        if not isinstance(side, LocalBackend):
            raise Refused("this works in the embedded mode only")
        yield side
