"""What a shell offers when a person presses Tab: jobs, nodes, faults. A half-typed line is never complained about.

Only the embedded mode is asked, or a console on the command line would be met with every key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..control.backend import Backend

_NEWEST = 100


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(ctx, incomplete, lambda side: [line.id for line in side.jobs(None, _NEWEST, "").jobs])


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(ctx, incomplete, lambda side: [node.name for node in side.nodes()])


def faults(incomplete: str) -> list[str]:
    from ..control.local_backend import FAULTS

    return [fault for fault in (*FAULTS, "clear", "power-on") if fault.startswith(incomplete)]


def _offered(ctx: typer.Context, incomplete: str, read: Callable[[Backend], Iterable[str]]) -> list[str]:
    from ..control.backend import open_backend
    from ..core.errors import RecoveryError

    if ctx.params.get("backend", "local") != "local":
        return []
    try:
        with closing(open_backend("local", ctx.params.get("state"))) as side:
            return [name for name in read(side) if name.startswith(incomplete)]
    except (RecoveryError, OSError):
        return []
