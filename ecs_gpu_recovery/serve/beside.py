"""The web console beside a control plane in the same process: for `up` and `demo`.

The port listens before the console is loaded, which takes a second: the address can be told at once, and a
browser that comes early waits instead of being turned away.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..control.console_link import ConsoleLink
from ..core.errors import Refused

if TYPE_CHECKING:
    from ..console.app import Served

log = logging.getLogger("ecs_gpu_recovery")
HOST = "127.0.0.1"
_NEEDS = ("fastapi", "jinja2", "uvicorn")
#: How long the end waits for a console that is still loading.
_PATIENCE_S = 20.0


def must_be_installed() -> None:
    """One clear line instead of a traceback where the extra is missing."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise Refused(
            f"the console needs {', '.join(missing)}: in the folder of this project,  pip install -r requirements.txt"
        )


class ConsoleBeside:
    """A console on this machine's own address. Use it as a context manager; `open` starts it."""

    def __init__(self, state: Path, port: int, *, or_another: bool = False) -> None:
        must_be_installed()
        from ..console.access.auth import Users, new_token

        token = "" if Users.load(None).known else new_token()[0]
        self._state = state
        self._socket = _listening(port, or_another=or_another)
        self.link = ConsoleLink(f"http://{HOST}:{self._socket.getsockname()[1]}", token)
        self._served: Served | None = None
        self._loader: threading.Thread | None = None

    def __enter__(self) -> ConsoleBeside:
        return self

    def open(self) -> None:
        """Load and serve, in threads of its own. The state folder must be there by now."""
        self._loader = threading.Thread(target=self._load, name="console-loader", daemon=True)
        self._loader.start()

    def _load(self) -> None:
        from ..console.app import Settings, prepare
        from ..control.backend import open_records

        settings = Settings(data=self._state / "console", state=self._state, host=HOST, token=self.link.token)
        try:
            self._served = prepare(lambda: open_records("local", self._state), settings, self._socket).start()
        except (Refused, OSError, sqlite3.Error) as exc:  # the control plane does not need its console
            log.warning("the console can't be served", extra={"why": str(exc)})
            self._socket.close()

    @property
    def watched(self) -> bool:
        """Whether a browser has a page open: an open page keeps its stream."""
        return self._served is not None and bool(self._served.server.server_state.connections)

    def __exit__(self, *exc: object) -> None:
        if self._loader is not None:
            self._loader.join(_PATIENCE_S)
        if self._served is not None:
            self._served.stop()
        self._socket.close()


def _listening(port: int, *, or_another: bool) -> socket.socket:
    try:
        return socket.create_server((HOST, port), backlog=100)
    except OSError as exc:
        if or_another:
            return _listening(0, or_another=False)
        why = os.strerror(exc.errno or 0)
        raise Refused(
            f"the console can't listen on {HOST} port {port}: {why}; choose another, or 0 for a free one"
        ) from exc


def person_is_there(stdin_fd: int = 0, stdout_fd: int = 1) -> bool:
    """A person at a terminal, and no automation that happens to have one."""
    return os.isatty(stdin_fd) and os.isatty(stdout_fd) and not os.environ.get("CI")


def linger(beside: ConsoleBeside, *, idle_s: float, most_s: float, stdin_fd: int = 0) -> None:
    """Stay until Enter, or until no page has been open for a while, but never for ever."""
    import select

    limit = time.monotonic() + most_s
    quiet_since = time.monotonic()
    while time.monotonic() < limit:
        ready, _, _ = select.select([stdin_fd], [], [], 0.2)
        if ready:
            os.read(stdin_fd, 4096)
            return
        if beside.watched:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > idle_s:
            return
