"""Puts the console together, and serves it."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from .. import __version__
from ..control.console_link import ConsoleLink
from ..control.log_search import SearchLimits
from ..control.logs import Logs
from ..control.records import RecordsBackend
from ..core.errors import RecoveryError, Refused
from ..own_folder import own_folder
from . import problems
from .access.audit import Audit
from .access.auth import Proxy, UserFile, is_loopback, new_token
from .access.database import Database
from .access.guard import Door, Guard
from .access.owner import Owner
from .access.sessions import Sessions
from .api import charts, fleet, ledger
from .api import routes as api
from .backend_pool import PATIENCE_S, BackendPool
from .context import Console
from .forms import Desktop
from .incidents import Acknowledged
from .live.journal import FILE, Journal
from .live.snapshot import Shared, Snapshots
from .live.stream import Hub
from .live.stream_limits import StreamLimits
from .pages import routes as pages
from .submissions import Submissions

STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a console is run."""

    data: Path  #: the console's own folder: sessions, audit, submissions
    host: str = "127.0.0.1"
    port: int = 8080
    users_file: Path | None = None
    proxy: Proxy | None = None
    hosts: frozenset[str] = frozenset()
    state: Path | None = None  #: the embedded control plane's folder, if it is one
    tick_s: float = 1.0
    patience_s: float = PATIENCE_S
    streams: StreamLimits = field(default_factory=StreamLimits)
    search: SearchLimits = field(default_factory=SearchLimits)
    token: str = ""  #: for the link of a console without users, where it is told before the console is made


def door_of(settings: Settings, database: Database) -> Door:
    """Without users the console answers this machine only, and there the one who has its link.

    It does not start anywhere else.
    """
    users = UserFile(settings.users_file)
    guarded = bool(users().known) or settings.proxy is not None
    if settings.proxy is not None and not settings.proxy.addresses and settings.proxy.balancer is None:
        raise Refused(
            "--proxy: name the addresses of the load balancer; its word is believed from nowhere else"
        )
    if not guarded and not is_loopback(settings.host):
        raise Refused(
            f"the console does not listen on {settings.host} without authentication: make a users file with"
            "  gpu-recovery console-user NAME  and give it with --users, or name a load balancer with --proxy"
        )
    hosts, sessions, owner = settings.hosts, Sessions(database), None
    if not guarded:
        hosts = hosts | {"localhost", "127.0.0.1", "::1"}
        try:
            me = getpass.getuser()
        except (KeyError, OSError):
            me = "local"
        owner = Owner(name=me, token=settings.token or new_token()[0], sessions=sessions)
    return Door(
        users=users,
        sessions=sessions,
        audit=Audit(database),
        proxy=settings.proxy,
        owner=owner,
        hosts=hosts,
    )


class _Static(StaticFiles):
    """Files of ours and of others; browsers ask again whether they changed."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


def create_app(factory: Callable[[], RecordsBackend], settings: Settings) -> FastAPI:
    own_folder(settings.data, "--data")
    database = Database(settings.data / "console.db")
    try:
        door = door_of(settings, database)
    except RecoveryError:
        database.close()
        raise
    pool = BackendPool(factory, patience_s=settings.patience_s)
    # The embedded store is asked each time; elsewhere an answer serves everyone for as long as a tick.
    snapshots = Snapshots(0.0 if settings.state is not None else settings.tick_s)
    journal = Journal(settings.data / FILE)
    every = settings.tick_s / 2 if settings.state is not None else settings.tick_s
    hub = Hub(pool, every_s=every, snapshots=snapshots, journal=journal)

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        await hub.close()
        pool.close()
        journal.close()
        database.close()

    app = FastAPI(
        title="ECS GPU Recovery",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=life,
    )
    scripts = settings.state / "scripts" if settings.state is not None else None
    app.state.console = Console(
        pool=pool,
        audit=door.audit,
        submissions=Submissions(database),
        acknowledged=Acknowledged(database),
        door=door,
        hub=hub,
        shared=Shared(settings.tick_s * 0.8),
        snapshots=snapshots,
        streams=settings.streams,
        search=settings.search,
        logs=Logs(),
        desktop=Desktop(scripts),
        state=settings.state,
        tick_s=settings.tick_s,
    )
    app.include_router(api.router)
    app.include_router(charts.router)
    app.include_router(fleet.router)
    app.include_router(ledger.router)
    app.include_router(pages.router)
    app.mount("/static", _Static(directory=STATIC), name="static")
    _document(app)
    problems.install(app, pages.error_page)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    app.add_middleware(Guard, door=door)
    return app


def _document(app: FastAPI) -> None:
    """The description of the API, with the one shape that every error has."""

    def made() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            kinds = schema.setdefault("components", {}).setdefault("schemas", {})
            kinds["Problem"] = problems.PROBLEM_SCHEMA
            for unused in ("HTTPValidationError", "ValidationError"):
                kinds.pop(unused, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = made  # type: ignore[method-assign]


@dataclass(slots=True)
class Served:
    """A console that runs in a thread of its own."""

    server: uvicorn.Server
    socket: socket.socket
    link: ConsoleLink
    thread: threading.Thread | None = None

    def start(self) -> Served:
        self.thread = threading.Thread(target=self._run, name="console", daemon=True)
        self.thread.start()
        return self

    def _run(self) -> None:
        asyncio.run(self.server.serve(sockets=[self.socket]))

    def stop(self) -> None:
        self.server.should_exit = True
        if self.thread is not None:
            self.thread.join(10)
        self.socket.close()


class _Server(uvicorn.Server):
    """Tells open streams to end as soon as it is told itself; they would hold it for its whole patience.

    The file with its link goes with it.
    """

    def __init__(self, config: uvicorn.Config, hub: Hub, forget_link: Callable[[], None]) -> None:
        super().__init__(config)
        self._hub, self._forget_link = hub, forget_link

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._forget_link()
        await self._hub.close()
        await super().shutdown(sockets)


def prepare(
    factory: Callable[[], RecordsBackend], settings: Settings, listening: socket.socket | None = None
) -> Served:
    """Bind the port, or take a socket that is bound already, and build the application.

    A port that is taken is told at once.
    """
    if listening is None:
        listening = _bound(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        app = create_app(factory, settings)
        owner = app.state.console.door.owner
        link = ConsoleLink(f"http://{host}:{listening.getsockname()[1]}", owner.token if owner else "")
        link.keep(settings.data)
    except BaseException:
        listening.close()
        raise
    config = uvicorn.Config(
        app,
        log_level=logging.WARNING,
        access_log=False,
        timeout_graceful_shutdown=2,
        server_header=False,
        proxy_headers=False,
    )
    server = _Server(config, app.state.console.hub, lambda: link.forget(settings.data))
    return Served(server, listening, link)


def _bound(settings: Settings) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as exc:
        found.close()
        where = f"{settings.host} port {settings.port}"
        raise Refused(f"the console can't listen on {where}: {exc.strerror}") from exc
    return found


def serve(
    factory: Callable[[], RecordsBackend], host: str = "127.0.0.1", port: int = 8080, **more: Any
) -> Served:
    """Start a console in a thread. `more` are the other settings; `stop()` ends it within a few seconds."""
    return prepare(factory, Settings(host=host, port=port, **more)).start()
