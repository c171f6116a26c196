"""Lambda's side of a function: the Runtime API, on the loopback interface, for the runtime that AWS itself uses.

    with function(python, folder, "module.lambda_handler", environment) as one:
        answer = one.invoke(event)

`python` has the runtime (awslambdaric) and nothing else; `folder` is what is deployed. One process serves all calls,
as a warm function does.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .server import ACCOUNT, REGION

_ROOT = "/2018-06-01/runtime/"
#: A busy machine may take its time.
LIMIT_S = 120.0


class DidNotStart(Exception):
    """The function could not be loaded, or its process ended; the text says what it said."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a result, or the error as Lambda hands it on."""

    payload: Any
    failed: bool


@dataclass(slots=True)
class _Desk:
    """Where events wait for the function, and answers for the caller."""

    events: queue.SimpleQueue[tuple[str, bytes] | None] = field(default_factory=queue.SimpleQueue)
    answers: queue.SimpleQueue[Answer] = field(default_factory=queue.SimpleQueue)
    asked: threading.Event = field(default_factory=threading.Event)  #: it is loaded, and wants an event


@dataclass(slots=True)
class Function:
    """A function in its process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    _desk: _Desk

    def wait_until_loaded(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not self._desk.asked.wait(0.05):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DidNotStart(self.said())

    def invoke(self, event: Any) -> Answer:
        """One call, and its answer."""
        self.wait_until_loaded()
        self._desk.events.put((str(uuid.uuid4()), json.dumps(event).encode()))
        deadline = time.monotonic() + LIMIT_S
        while True:
            with contextlib.suppress(queue.Empty):
                return self._desk.answers.get(timeout=0.05)
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise DidNotStart(self.said())

    def said(self) -> str:
        """Everything that would be in its log."""
        return self.log.read_text(errors="replace")


@contextmanager
def function(python: Path, folder: Path, handler: str, environment: Mapping[str, str]) -> Iterator[Function]:
    """Starts it, and ends it at the end. Of the caller's environment it sees nothing."""
    desk = _Desk()
    api = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(desk))
    api.daemon_threads = True
    serving = threading.Thread(target=api.serve_forever, daemon=True)
    serving.start()
    name = handler.rpartition(".")[0].rpartition(".")[2]
    with tempfile.TemporaryDirectory(prefix="function-") as place:
        log = Path(place, "log")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(python), "-m", "awslambdaric", handler],
                cwd=folder,
                env={**_platform(name, folder, api.server_port), **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Function(name, process, log, desk)
        finally:
            process.kill()
            process.wait()
            desk.events.put(None)
            api.shutdown()
            api.server_close()
            serving.join()


def _platform(name: str, folder: Path, port: int) -> dict[str, str]:
    """What Lambda sets for every function."""
    return {
        "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{port}",
        "AWS_LAMBDA_FUNCTION_NAME": name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": "local",
        "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "LAMBDA_TASK_ROOT": str(folder),
        "LANG": "en_US.UTF-8",
        "PATH": os.defpath,
        "PYTHONDONTWRITEBYTECODE": "1",  # what is deployed can't be written to
        "TZ": ":UTC",
    }


def _handler(desk: _Desk) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer in one piece: the runtime would wait for the rest of a first one

        def do_GET(self) -> None:
            desk.asked.set()
            waiting = desk.events.get()
            if waiting is None:
                self._reply(503, b"")
                return
            call, body = waiting
            arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:local"
            deadline = str(int((time.time() + LIMIT_S) * 1000))
            names = {"Aws-Request-Id": call, "Deadline-Ms": deadline, "Invoked-Function-Arn": arn}
            self._reply(200, body, {f"Lambda-Runtime-{name}": value for name, value in names.items()})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            what = self.path.removeprefix(_ROOT).rpartition("/")[2]
            if not self.path.startswith(_ROOT + "init/"):
                desk.answers.put(Answer(json.loads(body or b"null"), failed=what == "error"))
            self._reply(202, b"{}")

        def _reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """The function's own log is what matters."""

    return Handler
