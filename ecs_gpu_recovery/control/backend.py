"""Where a command acts: the embedded control plane of this machine, or AWS. Commands see only this."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from ..core.errors import JobExists, NodesTaken, NotFound, RecoveryError, Refused, Transient
from ..core.model import Job, JobSpec, JobStatus, Node
from ..engine.ports import Page, Store
from ..jobfile import JobRequest

STATE_VARIABLE = "GPU_RECOVERY_STATE"
BACKEND_VARIABLE = "GPU_RECOVERY_BACKEND"
#: Somebody else may take the nodes that were free a moment ago; then others are chosen.
CLAIM_TRIES = 5


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
    local_files: bool  #: whether scripts and folders of a job are on this machine
    poll_s: float  #: how long to wait between two looks
    remark: str  #: what a person should know beside the answer of the last call; empty most of the time

    def close(self) -> None: ...
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
    def read_log(self, job: Job, source: LogSource, position: str) -> tuple[list[str], str]: ...
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


def _refusal(node: Node, gpus: int, standing: Mapping[str, str]) -> str:
    if why := "; ".join(filter(None, (node.refusal, standing.get(node.name, "")))):
        return why
    return f"has {node.gpus} GPUs, the job wants {gpus} of each node" if gpus > node.gpus else ""


def choose_nodes(
    request: JobRequest, nodes: Sequence[Node], standing: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The named nodes, or any that are free; a refusal names every reason.

    `standing` tells what the cluster itself has against a node, which its record may not know yet.
    """
    known = {node.name: node for node in nodes}
    gpus = request.spec.gpus_per_node
    against = standing or {}
    if request.nodes:
        wrong = {
            name: why
            for name in request.nodes
            if (
                why := _refusal(known[name], gpus, against)
                if name in known
                else against.get(name) or "no such node"
            )
        }
        if wrong:
            raise Refused(not_submitted(wrong))
        return request.nodes
    free = [node.name for node in nodes if not _refusal(node, gpus, against)]
    if len(free) < request.any_nodes:
        with_gpus = f" with {gpus} GPUs each" if gpus else ""
        raise Refused(
            f"the job was not submitted: it wants {request.any_nodes} free nodes{with_gpus},"
            f" and there are {len(free)}. See: gpu-recovery nodes"
        )
    return tuple(free[: request.any_nodes])


def not_submitted(reasons: Mapping[str, str]) -> str:
    lines = [f"  {name}: {why}" for name, why in reasons.items()]
    return "\n".join(["the job was not submitted:", *lines, "See: gpu-recovery nodes"])


def must_be_new(store: Store, job_id: str) -> None:
    """An id is used once: whoever sends a job twice by mistake runs it once."""
    try:
        found = store.job(job_id)
    except NotFound:
        return
    raise JobExists(
        f"the job was not submitted: job {job_id} exists already ({found.status}), an id is used once."
        f" Look at it: gpu-recovery job {job_id}   |   run it again: gpu-recovery retry {job_id}"
    )


def port_is_free(port: int) -> bool:
    """Whether rank 0 could listen there now, the way training programs do it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
        return True


def _make_folder(folder: Path) -> bool:
    """Whether it had to be made, and is to be taken away again if nothing comes of the job."""
    was_there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise Refused(
            f"the job was not submitted: the checkpoint folder {folder} cannot be made: {exc.strerror}"
        ) from exc
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(f"the job was not submitted: you cannot write into the checkpoint folder {folder}")
    return not was_there


def must_be_unshared(folder: str, live: Mapping[str, str]) -> None:
    """Two jobs that write checkpoints into one folder destroy each other's. `live`: where other jobs keep theirs."""
    for job_id, theirs in live.items():
        if theirs == folder:
            raise Refused(
                f"the job was not submitted: job {job_id} is running and keeps its checkpoints in {folder}."
                " Choose another --checkpoint-dir."
                f" To take over that job's work: gpu-recovery stop {job_id}, then submit again"
            )


def free_port(taken: Container[int] = ()) -> int:
    """A port that nobody uses and that no other job was promised."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port


class LocalBackend:
    """The embedded mode: the store is the only channel between commands and the controller."""

    name = "local"
    local_files = True
    poll_s = 0.3
    remark = ""

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
        return self.parts.clock.now()

    def warning(self) -> str:
        from ..local.controller import running_pid

        if running_pid(self._state) is None:
            return (
                f"no controller runs on {self._state}: nothing will move until you start"
                f"  gpu-recovery up --state {self._state}"
            )
        return ""

    def submit(self, request: JobRequest) -> Job:
        """Everything that can be refused is refused before anything is made. One at a time: two that ask at once
        must not be promised the same port or folder."""
        from ..local.files import locked

        with locked(str(self._state / "submit.lock")):
            return self._submit(request)

    def _submit(self, request: JobRequest) -> Job:
        job_id = request.job_id or new_job_id(request.spec.name)
        must_be_new(self.parts.store, job_id)
        for _ in range(CLAIM_TRIES):
            names = choose_nodes(request, self.nodes())
            others = self._live_specs()
            port = self._port(request.spec, others)
            folder = Path(request.spec.checkpoint_dir or self._state / "checkpoints" / job_id).resolve()
            theirs = {job_id: other.checkpoint_dir for job_id, other in others.items()}
            must_be_unshared(
                str(folder), {job_id: str(Path(path).resolve()) for job_id, path in theirs.items() if path}
            )
            spec = replace(
                request.spec,
                checkpoint_dir=str(folder),
                workdir=request.spec.workdir or os.getcwd(),
                submitted_by=request.spec.submitted_by or whoami(),
                master_port=port,
            )
            made = _make_folder(folder)
            try:
                return self.parts.runtime.submit(
                    job_id=job_id,
                    cluster=self._wiring.CLUSTER,
                    spec=spec,
                    nodes=names,
                    at=self.now(),
                    check=request.check,
                    max_retries=request.max_retries,
                )
            except RecoveryError as exc:
                if made:
                    with suppress(OSError):  # somebody else uses it already
                        folder.rmdir()
                if not isinstance(exc, NodesTaken):
                    raise
                if request.nodes:
                    raise Refused(not_submitted(exc.reasons)) from exc
        raise Transient("the job was not submitted: others took the free nodes each time; try again")

    def _live_specs(self) -> dict[str, JobSpec]:
        found: dict[str, JobSpec] = {}
        for job_id in self.parts.store.live_jobs():
            with suppress(Refused):  # a record that can't be read, or a job that has just ended
                found[job_id] = self.job(job_id).spec
        return found

    def _port(self, spec: JobSpec, live: Mapping[str, JobSpec]) -> int:
        """The port that was asked for, if it can be had. A repeated job may take another one."""
        others = {other.master_port: job_id for job_id, other in live.items()}
        if not spec.master_port:
            return free_port(others)
        if spec.master_port not in others and port_is_free(spec.master_port):
            return spec.master_port
        if spec.retry_of:
            return free_port(others)
        holder = others.get(spec.master_port)
        whose = f"job {holder}" if holder else "another program on this machine"
        raise Refused(
            f"the job was not submitted: port {spec.master_port} is in use by {whose}."
            " Leave the port out to get a free one, or choose another"
        )

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
            "SELECT node_index_in_job, retry, node_name, ecs_task_id FROM ecs_task WHERE job_id=?"
            " ORDER BY created_at, CAST(node_index_in_job AS INTEGER), ecs_task_id",
            job.id,
        )
        return [
            LogSource(
                rank=int(rank),
                attempt=int(attempt),
                node=node,
                task_id=task_id,
                path=self._log(node, task_id),
            )
            for rank, attempt, node, task_id in found
        ]

    def read_log(self, job: Job, source: LogSource, position: str) -> tuple[list[str], str]:
        """New whole lines. A last line without its end waits for it, unless nobody writes any more."""
        if source.path is None or not source.path.exists():
            return [], position
        start = int(position or 0)
        with open(source.path, "rb") as log:
            log.seek(start)
            data = log.read()
        if not job.status.final and source.attempt == job.attempt:
            data = data[: data.rfind(b"\n") + 1]
        lines = data.decode(errors="replace").removesuffix("\n").split("\n") if data else []
        return lines, str(start + len(data))

    def _log(self, node: str, task_id: str) -> Path:
        from ..local.attic import folder_of

        return folder_of(self._state / "nodes" / node, task_id) / "log"

    def notices(self, limit: int) -> Sequence[dict[str, Any]]:
        return self.parts.notifier.notices(limit)


def open_backend(backend: str, state: Path | None) -> Backend:
    """The side that a name stands for."""
    if backend == "aws":
        from .aws_backend import AwsBackend

        return AwsBackend()
    if backend.startswith(("http://", "https://")):
        from .remote_backend import RemoteBackend

        return RemoteBackend(backend)
    if backend != "local":
        raise Refused(f"there is no backend {backend!r}: use local, aws, or the address of a console")
    folder = (state or default_state()).resolve()
    try:
        return LocalBackend(folder)
    except OSError as exc:
        raise Refused(f"{folder} cannot be used as a state folder: {exc}") from exc
