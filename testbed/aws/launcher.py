"""Starts MiniStack with the simulated ECS and SSM inside, on the loopback interface, and a port to steer it.

It runs in MiniStack's own environment, which has none of our dependencies: the standard library must do.

    PYTHONPATH=. .venv-ministack/bin/python -m testbed.aws.launcher
"""

from __future__ import annotations

import argparse
import http.server
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from .agenda import RealClock
from .cloud import Cloud
from .control import ControlRefused
from .shapes import Place

LOOPBACK = "127.0.0.1"
log = logging.getLogger("testbed")


def main(arguments: list[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    _prepare_environment(asked)
    from .plugins import Bus, MiniStackDefinitions, missing, module, plug_in

    if problems := missing():
        raise SystemExit("This MiniStack is not the one we know:\n  " + "\n  ".join(problems))
    threading.excepthook = _die
    place = Place(account=asked.account, region=asked.region)
    cloud = Cloud(seed=asked.seed, clock=RealClock(), place=place, definitions=MiniStackDefinitions())
    plug_in(cloud)
    bus = Bus()
    cloud.subscribe(bus.put)
    control = http.server.ThreadingHTTPServer((LOOPBACK, asked.control_port), _handler(cloud))
    control.daemon_threads = True
    background = [bus.serve, cloud.keep_time, control.serve_forever]
    if asked.until_stdin_closes:
        background.append(_watch_stdin)
    for work in background:
        threading.Thread(target=work, daemon=True).start()
    sys.stdout.write(f"AWS on http://{LOOPBACK}:{asked.port}, control on {asked.control_port}\n")
    sys.stdout.flush()
    sys.argv[1:] = []  # MiniStack reads it too
    try:
        module("app").main()
    finally:
        cloud.end()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testbed", description="A local AWS with a simulated ECS and SSM.")
    parser.add_argument("--port", type=int, default=4566, help="where AWS answers")
    parser.add_argument("--control-port", type=int, default=4567, help="where tests steer it")
    parser.add_argument("--account", default="123456789012")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--seed", type=int, default=0, help="of ids and of what goes wrong")
    parser.add_argument(
        "--auth", action="store_true", help="check permissions; the account number is the admin's key"
    )
    parser.add_argument(
        "--until-stdin-closes", action="store_true", help="end with the process that started it"
    )
    return parser


def _prepare_environment(asked: argparse.Namespace) -> None:
    """Before MiniStack is imported. Its functions inherit this, so nothing in it may lead anywhere else."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name == "PYTHONPATH"]:
        del os.environ[name]
    os.environ |= {
        "BIND_HOST": LOOPBACK,  # its default is every interface
        "GATEWAY_PORT": str(asked.port),
        "MINISTACK_ACCOUNT_ID": asked.account,
        "MINISTACK_REGION": asked.region,
        "AUTH": str(asked.auth).lower(),
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
    }
    os.environ.setdefault("LAMBDA_EXECUTOR", "local")
    os.environ.setdefault("LOG_LEVEL", "WARNING")


def _die(args: threading.ExceptHookArgs) -> None:
    """A simulator with half its threads would answer, and be wrong."""
    log.critical("a thread of the simulator failed", exc_info=args.exc_value)
    os.kill(os.getpid(), signal.SIGKILL)


def _watch_stdin() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _handler(cloud: Cloud) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """POST {"order": …, "arguments": {…}}; the answer is {"result": …}, or {"error": …} with 400."""

        def do_POST(self) -> None:
            if self.headers.get_content_type() != "application/json":  # no web page can send this unasked
                self._reply(415, {"error": "send application/json"})
                return
            try:
                asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
                result = cloud.control.do(asked["order"], asked.get("arguments", {}))
            except (ControlRefused, KeyError, ValueError) as exc:
                self._reply(400, {"error": str(exc)})
            else:
                self._reply(200, {"result": result})

        def _reply(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Orders are not worth a line."""

    return Handler


if __name__ == "__main__":
    main()
