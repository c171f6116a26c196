"""The embedded side: the store is the only channel between a front end and the controller."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import keys
from ..core.errors import NotFound, RecoveryError, Refused
from ..core.model import Job, JobSpec, Rank
from ..core.node_record import Node
from ..engine.reads import TaskLine
from ..jobfile import JobRequest
from ..local import wiring
from ..local.attic import folder_of
from ..local.controller import running_pid
from ..local.evidence import FOLDER as KEPT_IN
from ..local.files import locked
from ..local.fleet import environment
from ..local.gpus import FAULTS
from ..local.prune import Pruned, prune
from ..local.views import NodeRefused
from ..slow_nodes import Hours
from .backend import NO_LETTERS, Bundle, Enough, LogSource, never, whoami
from .records import RecordsBackend
from .submission import choose_nodes, claimed, must_be_new, must_be_unshared, new_job_id, with_failover

if TYPE_CHECKING:
    from ..aws.dead_letters import Letter, Sent

__all__ = ["FAULTS", "LocalBackend"]

LARGEST_REPORT = 1 << 20


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


def free_port(taken: Container[int] = ()) -> int:
    """A port that is free and that no other job was promised."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port


#: With less, the next write may fail.
LEAST_FREE_MIB = 2


class LocalBackend(RecordsBackend):
    """On the state folder of an embedded control plane, whether its controller runs or not."""

    name = "local"
    poll_s = 0.3

    def __init__(self, state: Path) -> None:
        if not (state / wiring.DATABASE).exists():
            raise Refused(
                f"there is no control plane in {state}: start one with  gpu-recovery up --state {state}"
            )
        self._state = state
        self._parts = parts = wiring.build(state)
        super().__init__(parts.store, parts.reads, parts.runtime)

    def close(self) -> None:
        self._parts.close()

    def now(self) -> datetime:
        return self._parts.clock.now()

    def who(self) -> str:
        return whoami()

    def warning(self) -> str:
        """What keeps the control plane from its work, the worst first."""
        free = shutil.disk_usage(self._state).free >> 20
        if free < LEAST_FREE_MIB:
            return (
                f"the disk of {self._state} is full ({free} MiB free): what happens can't be recorded, and no fault"
                " is met. Free some space and it goes on"
            )
        if running_pid(self._state) is None:
            return (
                f"no controller runs on {self._state}: nothing will move until you start"
                f"  gpu-recovery up --state {self._state}"
            )
        return ""

    def environment(self, job: Job, rank: Rank) -> dict[str, str]:
        return environment(job, rank)

    # -- a new job ---------------------------------------------------------------------------------------------

    def submit(self, request: JobRequest) -> Job:
        """Everything that can be refused is refused before anything is made. One at a time: two that ask at once
        must not be promised the same port or folder."""
        with locked(str(self._state / "submit.lock")):
            job_id = request.job_id or new_job_id(request.spec.name)
            must_be_new(self._store, job_id)
            return claimed(request, lambda: self._submit(job_id, request))

    def _submit(self, job_id: str, request: JobRequest) -> Job:
        names = choose_nodes(request, self.nodes())
        others = {job.id: job.spec for job in self.some_jobs(self.live_jobs())}
        port = self._port(request.spec, others)
        folder = Path(request.spec.checkpoint_dir or self._state / "checkpoints" / job_id).resolve()
        theirs = {other: spec.checkpoint_dir for other, spec in others.items() if spec.checkpoint_dir}
        must_be_unshared(str(folder), {other: str(Path(path).resolve()) for other, path in theirs.items()})
        spec = replace(
            with_failover(request, self._runtime.policy),
            checkpoint_dir=str(folder),
            workdir=request.spec.workdir or os.getcwd(),
            submitted_by=request.spec.submitted_by or whoami(),
            master_port=port,
        )
        made = _make_folder(folder)
        try:
            return self._runtime.submit(
                job_id=job_id,
                cluster=wiring.CLUSTER,
                spec=spec,
                nodes=names,
                at=self.now(),
                check=request.check,
                max_retries=request.max_retries,
                restart_when_healthy=request.restart_when_healthy,
            )
        except RecoveryError:
            if made:
                with suppress(OSError):  # another program uses it already
                    folder.rmdir()
            raise

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

    # -- what was written --------------------------------------------------------------------------------------

    def _log_path(self, task: TaskLine) -> Path:
        return folder_of(self._state / "nodes" / task.node, task.task_id) / "log"

    def read_log(
        self, job: Job, source: LogSource, position: str, *, enough: Enough = never
    ) -> tuple[list[str], str]:
        """New whole lines. A last line without its end waits for it, unless its writer has ended."""
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

    def log_since(self, source: LogSource, at: datetime) -> str:
        """Lines have no times here: a log that was written to since is given whole, any other not at all."""
        try:
            about = source.path.stat() if source.path is not None else None
        except OSError:
            return ""
        return str(about.st_size) if about is not None and about.st_mtime < at.timestamp() else ""

    def reports(self, node: Node, most: int) -> Sequence[Mapping[str, Any]]:
        found: list[tuple[float, Path]] = []
        for path in (self._state / "nodes" / node.name / "tasks").glob("*/report.json"):
            with suppress(OSError):  # gone meanwhile
                if not path.is_symlink() and path.stat().st_size <= LARGEST_REPORT:
                    found.append((path.stat().st_mtime, path))
        read = []
        for _, path in sorted(found, reverse=True)[:most]:
            try:
                data = json.loads(path.read_text(errors="replace"))
            except (OSError, ValueError):
                continue  # being written, or damaged
            if isinstance(data, dict) and "verdict" in data:
                read.append(data)
        return read

    def hours(self, nodes: Mapping[str, str], since: datetime, until: datetime) -> Hours:
        from ..metrics.hours import node_hours  # most commands never ask

        return node_hours(self._state, nodes, since, until, self.limits.slow_busy)

    def evidence(self, node: str) -> Sequence[Bundle]:
        folder = self._state / KEPT_IN / self.node(node).name
        found = []
        for path in folder.glob(f"*{keys.ARCHIVE}"):
            with suppress(OSError):  # gone meanwhile
                about = path.stat()
                at = datetime.fromtimestamp(about.st_mtime, UTC)
                found.append(Bundle(node=node, name=path.name, at=at, size=about.st_size))
        return sorted(found, key=lambda bundle: bundle.at, reverse=True)

    def fetch_evidence(self, node: str, name: str) -> bytes:
        if all(bundle.name != name for bundle in self.evidence(node)):
            raise NotFound(f"node {node} has kept no {name}")
        return (self._state / KEPT_IN / node / name).read_bytes()

    def prune(self, before: datetime, *, checkpoints: bool, really: bool) -> Pruned:
        """Let go of jobs that ended before that moment; see `local.prune`."""
        return prune(
            self._state, self._parts.store, self._parts.reads, before, checkpoints=checkpoints, really=really
        )

    # -- dead letters: there is no queue -----------------------------------------------------------------------

    def letters(self) -> None:
        return None

    def send_letters_again(self, *ids: str) -> Sequence[Sent]:
        raise NotFound(NO_LETTERS)

    def discard_letter(self, name: str, *, why: str, by: str) -> Letter:
        raise NotFound(NO_LETTERS)

    # -- faults on purpose -------------------------------------------------------------------------------------

    def inject(self, name: str, fault: str, *, gpu: int = 0, xid: int | None = None) -> None:
        """Break a simulated node, or mend it: `clear` and `power-on`. A fault that does not exist is a `ValueError`."""
        self.node(name)
        cluster = self._parts.cluster
        try:
            if cluster.node(name).kind != "simulated":
                raise Refused(f"{name} has real GPUs: faults can only be injected into simulated ones")
            if fault == "clear":
                cluster.clear_faults(name)
            elif fault == "power-on":
                cluster.power_on(name)
            else:
                cluster.inject(name, fault, gpu=gpu, xid=xid)
        except NodeRefused as exc:
            raise Refused(str(exc)) from exc
