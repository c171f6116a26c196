"""A container runtime for the local AWS, whose tasks are otherwise only told how they end.

What a task definition and its overrides say is run as a process of this machine: its lines go to the log that the
definition names, and its exit code is that of the task.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.aws.deployment import Deployment
from tests.infra.deployed import sweep

#: What the programs of an image need of this machine.
_IMAGE = {"PATH": os.environ.get("PATH", os.defpath)}


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    output: Path
    group: str
    stream: str
    sent: int = 0


@dataclass
class Containers:
    """Every training task of the cluster, from its start to its end or its stop."""

    stack: Deployment
    folder: Path
    _known: dict[str, _Running] = field(default_factory=dict)
    _over: set[str] = field(default_factory=set)

    def look(self) -> None:
        for task in self.stack.server.control("tasks", env={"GPU_RECOVERY_KIND": "train"}):
            name = task["taskArn"].rpartition("/")[2]
            if name not in self._known and task["lastStatus"] == "RUNNING":
                self._known[name] = self._start(name, task)
            if name in self._known and name not in self._over:
                self._follow(name, stopped=task["lastStatus"] == "STOPPED")

    def _start(self, name: str, task: dict[str, Any]) -> _Running:
        ecs, logs = self.stack.server.client("ecs"), self.stack.server.client("logs")
        found = ecs.describe_task_definition(taskDefinition=task["taskDefinitionArn"])["taskDefinition"]
        (container,) = found["containerDefinitions"]
        options = container["logConfiguration"]["options"]
        group = options["awslogs-group"]
        stream = f"{options['awslogs-stream-prefix']}/{container['name']}/{name}"
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
        own = {row["name"]: row["value"] for row in container.get("environment", [])}
        output = self.folder / name
        with output.open("wb") as out:
            process = subprocess.Popen(
                container["command"],
                env={**_IMAGE, **own, **task["env"]},
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return _Running(process, output, group, stream)

    def _follow(self, name: str, *, stopped: bool) -> None:
        running = self._known[name]
        if stopped and running.process.poll() is None:
            running.process.kill()
        code = running.process.wait() if stopped else running.process.poll()
        lines = running.output.read_text().splitlines(keepends=True)
        whole = [line.rstrip("\n") for line in lines if line.endswith("\n")]
        if new := whole[running.sent :]:
            at = int(time.time() * 1000)
            self.stack.server.client("logs").put_log_events(
                logGroupName=running.group,
                logStreamName=running.stream,
                logEvents=[{"timestamp": at, "message": line} for line in new],
            )
            running.sent = len(whole)
        if code is not None:
            self._over.add(name)
            if not stopped:
                self.stack.server.control("exit_task", task=name, exit_code=code)

    def close(self) -> None:
        for running in self._known.values():
            running.process.kill()
            running.process.wait()


@contextmanager
def containers(stack: Deployment, folder: Path) -> Iterator[Containers]:
    """While it lasts, tasks run, and a minute of the sweeper's lasts a few seconds."""
    made, over = Containers(stack, folder), threading.Event()

    def go_on() -> None:
        swept = time.monotonic()
        while not over.wait(0.2):
            made.look()
            if time.monotonic() - swept > 5:
                sweep(stack)
                swept = time.monotonic()

    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(go_on)
        try:
            yield made
        finally:
            over.set()
            wait([work])
            made.close()
        work.result()
