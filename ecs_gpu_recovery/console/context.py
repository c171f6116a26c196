"""What every request handler finds in the application: one object instead of a dozen globals."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from .auth import Identity
from .desk import Desk
from .forms import Desktop
from .guard import Door, peer
from .live import Hub, Shared
from .logs import Logs
from .memory import Deed, Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The parts of a running console."""

    desk: Desk
    memory: Memory
    door: Door
    hub: Hub
    shared: Shared
    logs: Logs
    desktop: Desktop
    state: Path | None  #: the embedded control plane's folder, if it is one
    tick_s: float = 1.0


def console_of(request: Request) -> Console:
    found: Console = request.app.state.console
    return found


def identity_of(request: Request) -> Identity:
    """The guard has let nobody through without one."""
    found: Identity = request.state.identity
    return found


ConsoleArg = Annotated[Console, Depends(console_of)]
IdentityArg = Annotated[Identity, Depends(identity_of)]


async def note(
    console: Console,
    who: Identity,
    request: Request,
    action: str,
    subject: str,
    *,
    why: str = "",
    outcome: str = "done",
) -> None:
    """Every action is written down with who, what, why and how it ended."""
    deed = Deed(
        who=who.name,
        role=who.role,
        action=action,
        subject=subject,
        why=why,
        outcome=outcome,
        address=peer(request.scope),
    )
    await asyncio.to_thread(console.memory.note, deed)
