"""A local AWS for tests: MiniStack in a process of its own, on a free port of the loopback interface.

Every folder of tests that asks for it shares one server. It is started for the first and stopped, by its
process id, after the last.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from ecs_gpu_recovery.aws.tables import JOBS, NODES, TABLES, TASKS, Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

#: A busy machine may take its time.
STARTED_WITHIN_S = 120.0


@dataclass(slots=True)
class Server:
    """A running local AWS and how many hold it."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    url: str
    holders: int = 0

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()


_running: list[Server] = []


@contextmanager
def local_aws(python: Path) -> Iterator[str]:
    """The address of the one local AWS of this process."""
    if not _running:
        _running.append(_start(python))
    server = _running[0]
    server.holders += 1
    try:
        yield server.url
    finally:
        server.holders -= 1
        if not server.holders:
            _running.remove(server)
            server.stop()


def dynamodb(url: str, *, attempts: int = 4) -> DynamoDBClient:
    """A client that can't reach anything but the local AWS."""
    retries: dict[str, Any] = {"mode": "standard", "total_max_attempts": attempts}
    config = Config(retries=retries, max_pool_connections=32, connect_timeout=20, read_timeout=60)
    return boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=config,
    )


@contextmanager
def fresh_tables(client: DynamoDBClient) -> Iterator[dict[str, str]]:
    """Three empty tables under names of their own, as the arguments that the store takes."""
    mark = uuid.uuid4().hex[:8]
    names = {table: f"{table.name}_{mark}" for table in TABLES}
    for table, name in names.items():
        client.create_table(**table.definition(name))
    try:
        yield {role: names[table] for role, table in _ROLES.items()}
    finally:
        for name in names.values():
            client.delete_table(TableName=name)


_ROLES: dict[str, Table] = {"job_table": JOBS, "task_table": TASKS, "node_table": NODES}


def _start(python: Path) -> Server:
    if not python.exists():
        raise RuntimeError(f"{python} is missing: run `make ministack`, which sets up the local AWS")
    folder = tempfile.TemporaryDirectory(prefix="ministack-")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = Path(folder.name, "log")
    # Its workers inherit its environment, so nothing of ours that points at an AWS may be in it.
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_ACCOUNT_ID": "123456789012",
        "MINISTACK_REGION": "us-east-1",
        "LAMBDA_EXECUTOR": "local",
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "LOG_LEVEL": "WARNING",
        "TMPDIR": folder.name,
        "S3_DATA_DIR": f"{folder.name}/s3",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [python, "-m", "ministack"], env=env, cwd=folder.name, stdout=out, stderr=subprocess.STDOUT
        )
    server = Server(process, folder, f"http://127.0.0.1:{port}")
    deadline = time.monotonic() + STARTED_WITHIN_S
    while not _answers(server.url):
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(errors="replace")[-2000:]
            server.stop()
            raise RuntimeError(f"the local AWS did not start (exit code {process.returncode}):\n{said}")
        time.sleep(0.1)
    return server


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_ministack/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
