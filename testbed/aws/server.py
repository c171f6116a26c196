"""The local AWS with the simulator inside, as a process of its own, and the means to steer it from a test.

with serve(python) as aws:
    node = aws.control("add_node", name="n0", cluster="gpus")
    ecs = boto3.client("ecs", endpoint_url=aws.url, ...)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A busy machine may take its time.
STARTED_WITHIN_S = 120.0
_TESTBED = Path(__file__).resolve().parents[1]
ACCOUNT, REGION = "123456789012", "us-east-1"


class OrderRefused(Exception):
    """The simulator did not do as told; the text says why."""


@dataclass(slots=True)
class Server:
    """A running local AWS. With permissions checked, the admin's key is `ACCOUNT` and the secret `test`."""

    process: subprocess.Popen[bytes]
    url: str
    control_url: str
    log: Path

    def control(self, order: str, **arguments: Any) -> Any:
        """Give an order of `Control` and take its result."""
        body = json.dumps({"order": order, "arguments": arguments}).encode()
        request = urllib.request.Request(self.control_url, body, {"Content-Type": "application/json"})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 - the address is our own
                return json.load(reply)["result"]
        except urllib.error.HTTPError as exc:
            with exc:
                raise OrderRefused(json.load(exc).get("error", "")) from None

    def client(self, service: str, **options: Any) -> Any:
        """A boto3 client that can't reach anything else."""
        import boto3

        options = {
            "region_name": REGION,
            "aws_access_key_id": ACCOUNT,
            "aws_secret_access_key": "test",
            **options,
        }
        return boto3.client(service, endpoint_url=self.url, **options)  # type: ignore[call-overload]

    def wait_for(self, holds: Callable[[], Any], *, seconds: float = 60.0, every: float = 0.02) -> Any:
        """What the function gives, once it gives something. Generous: a busy machine is no mistake."""
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"it did not come true within {seconds:g} s; the server said:\n{self.said()}"
                )
            time.sleep(every)
        return found

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


@contextmanager
def serve(
    python: Path, *, seed: int = 0, auth: bool = False, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start it, wait until it answers, and end it with all that it started."""
    with tempfile.TemporaryDirectory(prefix="testbed-") as name:
        folder = Path(name)
        server = _start(python, folder, seed=seed, auth=auth, environment=environment or {})
        try:
            _wait(server)
            yield server
        finally:
            _stop(server.process)


def _start(python: Path, folder: Path, *, seed: int, auth: bool, environment: Mapping[str, str]) -> Server:
    if not python.exists():
        raise RuntimeError(f"{python} is missing: run `make ministack`, which sets up the local AWS")
    # Only the test-bed may be seen from there, not what lies or is installed beside it.
    (folder / "path").mkdir()
    (folder / "path" / _TESTBED.name).symlink_to(_TESTBED, target_is_directory=True)
    port, control_port = _free_ports(2)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
    env |= {
        "PYTHONPATH": str(folder / "path"),
        "TMPDIR": str(folder),
        "S3_DATA_DIR": str(folder / "s3"),
        "LAMBDA_ASYNC_RETRY_BASE_SECONDS": "0.2",
        **environment,
    }
    options = ["--port", port, "--control-port", control_port, "--seed", seed, *(["--auth"] if auth else [])]
    command = [
        str(python),
        "-m",
        f"{_TESTBED.name}.aws.launcher",
        "--until-stdin-closes",
        *map(str, options),
    ]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control_port}", log)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _wait(server: Server) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while not _answers(server.url):
        if server.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the local AWS did not start:\n{server.said()}")
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_ministack/health", timeout=5) as reply:  # noqa: S310
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, and then end the whole group: functions run in processes of their own."""
    if process.stdin:
        process.stdin.close()
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
