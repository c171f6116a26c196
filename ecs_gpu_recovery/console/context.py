"""What every request handler finds in the application: one object instead of a dozen globals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from ..control.log_search import SearchLimits
from ..control.logs import Logs
from .access.audit import Audit
from .access.auth import Identity
from .access.guard import Door
from .backend_pool import BackendPool
from .dead_letters import Letters
from .forms import Desktop
from .incidents import Acknowledged
from .live.snapshot import Shared, Snapshots
from .live.stream import Hub
from .live.stream_limits import EventStream, StreamLimits
from .slow_nodes import SlowNodes
from .submissions import Submissions


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The parts of a running console."""

    pool: BackendPool
    audit: Audit
    submissions: Submissions
    acknowledged: Acknowledged
    door: Door
    hub: Hub
    shared: Shared
    logs: Logs
    desktop: Desktop
    state: Path | None  #: the embedded control plane's folder, if it is one
    tick_s: float = 1.0
    snapshots: Snapshots = field(default_factory=Snapshots)
    streams: StreamLimits = field(default_factory=StreamLimits)
    search: SearchLimits = field(default_factory=SearchLimits)
    letters: Letters = field(default_factory=Letters)
    slow: SlowNodes = field(default_factory=SlowNodes)

    def moved(self) -> None:
        """A person changed something here: the next look is a new one."""
        self.snapshots.forget()
        self.shared.forget()


def address_of(request: Request) -> str:
    found: str = request.state.address
    return found


def event_stream(
    request: Request, console: Console, open_stream: Callable[[Callable[[], bool]], AsyncIterator[str]]
) -> EventStream:
    """A live stream for the one who asks, if there is room; it lasts while they may look."""
    release = console.streams.take(f"{request.state.identity.name} {address_of(request)}")
    try:
        return EventStream(open_stream(request.state.still), release)
    except BaseException:
        release()
        raise


# Coroutines, because the framework sends plain functions to a thread each time.


async def _console(request: Request) -> Console:
    found: Console = request.app.state.console
    return found


async def _identity(request: Request) -> Identity:
    """The guard has let no request through without one."""
    found: Identity = request.state.identity
    return found


ConsoleArg = Annotated[Console, Depends(_console)]
IdentityArg = Annotated[Identity, Depends(_identity)]
