"""The newest sample for Prometheus: text format 0.0.4 over HTTP, written by hand because it is so little.

It listens on this machine only, unless told otherwise: it has no password, and the names of jobs may be
private.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from .. import __version__
from ..core.errors import Refused
from .catalogue import METRICS, PREFIX
from .sample import Labels, Sample

log = logging.getLogger("ecs_gpu_recovery")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Numbers older than this are not shown: better none than wrong ones.
STALE_S = 60.0
#: How long one request may keep the others waiting.
_PATIENCE_S = 3.0
_AGE = PREFIX + "sample_age_seconds"


def exposition(sample: Sample | None, now: float) -> str:
    """The page. Without a sample that is young enough it only tells the age, or nothing at all."""
    if sample is None:
        return ""
    age = max(0.0, now - sample.at)
    lines: list[str] = []
    known = [pair for pair in sample.by_metric() if pair[0] != _AGE] if age <= STALE_S else []
    for name, found in known:
        lines += _head(name)
        lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in found]
    return "\n".join([*lines, *_head(_AGE), f"{_AGE} {_number(round(age, 3))}"]) + "\n"


def _head(name: str) -> list[str]:
    metric = METRICS[name]
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return [f"# HELP {name} {text}", f"# TYPE {name} {metric.kind}"]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels) + "}"


def _quoted(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


class Endpoint:
    """Takes its port when it is made, so that a port in use is told before anything is started."""

    def __init__(self, host: str, port: int) -> None:
        self.latest: Callable[[], Sample | None] = lambda: None
        try:
            self._server = _Server(self, host, port)
        except (OSError, OverflowError) as exc:
            raise Refused(f"metrics can't be served on {host} port {port} ({exc}): choose another") from exc
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="metrics-http", daemon=True
        )
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}/metrics"

    def __enter__(self) -> Endpoint:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(HTTPServer):
    """One request at a time is enough for a scraper, and no client can make us start threads without end."""

    request_queue_size = 32

    def __init__(self, endpoint: Endpoint, host: str, port: int) -> None:
        self.endpoint = endpoint
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without asking the resolver for our own name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape was broken off", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server_version = f"gpu-recovery/{__version__}"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        server = self.server
        assert isinstance(server, _Server)
        path = self.path.partition("?")[0]
        if path == "/metrics":
            status, kind = HTTPStatus.OK, CONTENT_TYPE
            text = exposition(server.endpoint.latest(), time.time())
        else:
            status, kind, text = (
                HTTPStatus.NOT_FOUND,
                "text/plain; charset=utf-8",
                "The numbers are at /metrics\n",
            )
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is no news."""
