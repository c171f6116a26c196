"""Where a command acts: the embedded control plane of this machine, or AWS. Commands see only this."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from ..core.errors import Refused
from ..core.model import Job, JobStatus, Node
from ..jobfile import JobRequest
from ..ports import Page

STATE_VARIABLE = "GPU_RECOVERY_STATE"
BACKEND_VARIABLE = "GPU_RECOVERY_BACKEND"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One task's log."""

    rank: int
    attempt: int
    node: str
    task_id: str
    path: Path | None = None


class Backend(Protocol):
    """What the commands need, whichever side it is."""

    name: str

    def now(self) -> datetime: ...
    def warning(self) -> str: ...
    def submit(self, request: JobRequest) -> Job: ...
    def job(self, job_id: str) -> Job: ...
    def jobs(self, status: JobStatus | None, limit: int, after: str) -> Page: ...
    def stop(self, job_id: str, why: str) -> Job: ...
    def nodes(self) -> Sequence[Node]: ...
    def node(self, name: str) -> Node: ...
    def ask_node(self, name: str, ask: str, why: str, level: str) -> Node: ...
    def log_sources(self, job: Job) -> Sequence[LogSource]: ...
    def notices(self, limit: int) -> Sequence[dict[str, Any]]: ...


def whoami() -> str:
    """Who did it, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def new_job_id(name: str) -> str:
    return f"{name or 'job'}-{secrets.token_hex(3)}"


def default_state() -> Path:
    chosen = os.environ.get(STATE_VARIABLE, "")
    return Path(chosen) if chosen else Path.home() / ".gpu-recovery"


def choose_nodes(request: JobRequest, nodes: Sequence[Node]) -> tuple[str, ...]:
    """The named nodes, or any that are free; a refusal names every reason."""
    known = {node.name: node for node in nodes}
    if request.nodes:
        wrong = [f"{name}: no such node" for name in request.nodes if name not in known]
        wrong += [
            f"{name}: {known[name].refusal}"
            for name in request.nodes
            if name in known and known[name].refusal
        ]
        if wrong:
            raise Refused("the job was not submitted:\n  " + "\n  ".join(wrong) + "\nSee: gpu-recovery nodes")
        return request.nodes
    free = [node.name for node in nodes if node.claimable]
    if len(free) < request.any_nodes:
        raise Refused(
            f"the job was not submitted: it wants {request.any_nodes} nodes and {len(free)} are free. See: gpu-recovery nodes"
        )
    return tuple(free[: request.any_nodes])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalBackend:
    """The embedded mode: the store is the only channel between commands and the controller."""

    name = "local"

    def __init__(self, state: Path) -> None:
        from ..local import wiring

        if not (state / wiring.DATABASE).exists():
            raise Refused(
                f"there is no control plane in {state}: start one with  gpu-recovery up --state {state}"
            )
        self._wiring = wiring
        self._state = state
        self.parts = wiring.build(state)

    def close(self) -> None:
        self.parts.close()

    def now(self) -> datetime:
        return self._wiring.now()

    def warning(self) -> str:
        from ..local.controller import running_pid

        if running_pid(self._state) is None:
            return f"no controller runs on {self._state}: nothing will move until you start  gpu-recovery up --state {self._state}"
        return ""

    def submit(self, request: JobRequest) -> Job:
        job_id = request.job_id or new_job_id(request.spec.name)
        names = choose_nodes(request, self.nodes())
        folder = request.spec.checkpoint_dir or str(self._state / "checkpoints" / job_id)
        Path(folder).mkdir(parents=True, exist_ok=True)
        spec = replace(request.spec, checkpoint_dir=str(Path(folder).resolve()), submitted_by=request.spec.submitted_by or whoami(),
                       master_port=request.spec.master_port or free_port())  # fmt: skip
        return self.parts.runtime.submit(job_id=job_id, cluster=self._wiring.CLUSTER, spec=spec, nodes=names, at=self.now(),
                                         check=request.check, max_retries=request.max_retries)  # fmt: skip

    def job(self, job_id: str) -> Job:
        return self.parts.store.job(job_id)

    def jobs(self, status: JobStatus | None, limit: int, after: str) -> Page:
        return self.parts.store.jobs(status=status, limit=limit, after=after)

    def stop(self, job_id: str, why: str) -> Job:
        return self.parts.runtime.stop(job_id, by=whoami(), why=why, at=self.now())

    def nodes(self) -> Sequence[Node]:
        return self.parts.store.nodes()

    def node(self, name: str) -> Node:
        return self.parts.store.node(name)

    def ask_node(self, name: str, ask: str, why: str, level: str) -> Node:
        from ..core.events import NodeAsked

        self.parts.runtime.handle_node(
            name, [NodeAsked(at=self.now(), node=name, ask=ask, by=whoami(), why=why, level=level)]
        )
        return self.node(name)

    def log_sources(self, job: Job) -> Sequence[LogSource]:
        found = self.parts.store.read(
            "SELECT node_index_in_job, retry, node_name, ecs_task_id FROM ecs_task WHERE job_id=? ORDER BY created_at, ecs_task_id",
            job.id,
        )
        return [
            LogSource(
                rank=int(r[0]),
                attempt=int(r[1]),
                node=r[2],
                task_id=r[3],
                path=self.parts.cluster.task(r[2], r[3]).log,
            )
            for r in found
        ]

    def notices(self, limit: int) -> Sequence[dict[str, Any]]:
        return self.parts.notifier.notices(limit)


@contextmanager
def opened(backend: str, state: Path | None) -> Iterator[LocalBackend]:
    """The backend a command asked for; its warning, if any, goes to standard error."""
    if backend != "local":
        raise Refused(f"there is no backend {backend!r} in this release: use --backend local")
    side = LocalBackend((state or default_state()).resolve())
    try:
        if text := side.warning():
            print(f"gpu-recovery: {text}", file=sys.stderr)
        yield side
    finally:
        side.close()
