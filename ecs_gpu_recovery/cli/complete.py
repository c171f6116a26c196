"""What a shell offers when a person presses Tab: jobs, nodes, faults. A half-typed line is never complained about.

Only the embedded mode is asked, or a console on the command line would be met with every key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

_NEWEST = 100


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(ctx, incomplete, _job_ids)


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(ctx, incomplete, _node_names)


def faults(incomplete: str) -> list[str]:
    from ..control.local_backend import FAULTS

    return [fault for fault in (*FAULTS, "clear", "power-on") if fault.startswith(incomplete)]


def _offered(ctx: typer.Context, incomplete: str, read: Callable[[Path | None], Iterable[str]]) -> list[str]:
    from ..core.errors import RecoveryError

    if ctx.params.get("backend", "local") != "local":
        return []
    try:
        return [name for name in read(ctx.params.get("state")) if name.startswith(incomplete)]
    except (RecoveryError, OSError):
        return []


def _job_ids(state: Path | None) -> list[str]:
    from ..control.backend import open_backend

    side = open_backend("local", state)
    try:
        return [line.id for line in side.jobs(None, _NEWEST, "").jobs]
    finally:
        side.close()


def _node_names(state: Path | None) -> list[str]:
    from ..control.backend import open_backend

    side = open_backend("local", state)
    try:
        return [node.name for node in side.nodes()]
    finally:
        side.close()
