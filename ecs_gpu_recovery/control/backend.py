"""Where people and tools act: the embedded control plane of this machine, AWS, or a console somewhere."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..core.errors import Refused
from ..core.model import Job, JobStatus
from ..core.node_record import Node
from ..engine.ports import Page
from ..engine.reads import Notice, TaskLine
from ..jobfile import JobRequest

if TYPE_CHECKING:
    from ..aws.dead_letters import Letter as Letter
    from ..aws.dead_letters import Seen as Seen
    from ..aws.dead_letters import Sent as Sent
    from ..slow_nodes import Slow
    from .records import RecordsBackend

STATE_VARIABLE = "GPU_RECOVERY_STATE"
NO_LETTERS = "there is no such dead letter: only AWS has a queue of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource(TaskLine):
    """One task's log."""

    path: Path | None = None  #: where it is a file of this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What a node kept before a reboot: one archive."""

    node: str
    name: str
    at: datetime
    size: int

    def to_json(self) -> dict[str, str | int]:
        return {**asdict(self), "at": self.at.isoformat()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bundle:
        return cls(**{**data, "at": datetime.fromisoformat(data["at"])})


class NotAllowed(Refused):
    """The caller's rights don't suffice; another person's may."""


#: Asked with the bytes read so far, wherever a log is read in parts: whether to hand on what there is.
Enough = Callable[[int], bool]


def never(read: int) -> bool:
    """A reader who wants all there is."""
    return False


class Backend(Protocol):
    """What can be asked for, whichever side it is. Where `by` is left out, it is the person who runs this."""

    name: str
    poll_s: float  #: how long to wait between two looks
    remark: str  #: what a person should know beside the answer of the last call; empty most of the time

    def close(self) -> None: ...
    def now(self) -> datetime: ...
    def warning(self) -> str: ...
    def who(self) -> str: ...
    def submit(self, request: JobRequest) -> Job: ...
    def job(self, job_id: str) -> Job: ...
    def jobs(self, status: JobStatus | None, limit: int, after: str) -> Page: ...
    def stop(self, job_id: str, *, why: str, by: str = "") -> Job: ...
    def nodes(self) -> Sequence[Node]: ...
    def node(self, name: str) -> Node: ...
    def slow_nodes(self, jobs: Sequence[Job], since: datetime, until: datetime) -> Sequence[Slow]:
        """Nodes that stood out in their gangs, by full hours."""

    def ask_node(self, name: str, ask: str, *, why: str, level: str = "quick", by: str = "") -> Node: ...
    def fleet(self) -> Mapping[str, Any]:
        """Whether the fleet is frozen, and what waits for a permit."""

    def ask_fleet(self, ask: str, *, name: str = "", why: str, by: str = "") -> Mapping[str, Any]:
        """Freeze or thaw it; allow or refuse one order, by its key or its node."""

    def log_sources(self, job: Job) -> Sequence[LogSource]: ...
    def read_log(
        self, job: Job, source: LogSource, position: str, *, enough: Enough = never
    ) -> tuple[list[str], str]: ...
    def log_since(self, source: LogSource, at: datetime) -> str:
        """The place in a log from which on it was written since then, as near as can be told."""

    def evidence(self, node: str) -> Sequence[Bundle]:
        """What was kept before this node's reboots, newest first."""

    def fetch_evidence(self, node: str, name: str) -> bytes: ...
    def notices(self, limit: int) -> Sequence[Notice]: ...
    def letters(self) -> Seen | None:
        """Events that no function could handle; nothing where no queue keeps them."""

    def send_letters_again(self, *ids: str) -> Sequence[Sent]:
        """These, or all."""

    def discard_letter(self, name: str, *, why: str, by: str) -> Letter: ...


def whoami() -> str:
    """Who did it, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def default_state() -> Path:
    chosen = os.environ.get(STATE_VARIABLE, "")
    return Path(chosen) if chosen else Path.home() / ".gpu-recovery"


def open_backend(backend: str, state: Path | None) -> Backend:
    """The side that a name stands for."""
    if backend.startswith(("http://", "https://")):
        from .remote_backend import RemoteBackend

        return RemoteBackend(backend, state=state or default_state())
    return open_records(backend, state)


def open_records(backend: str, state: Path | None) -> RecordsBackend:
    """The same, where the records themselves are at hand."""
    if backend == "aws":
        from .aws_backend import AwsBackend

        return AwsBackend()
    if backend != "local":
        raise Refused(f"there is no backend {backend!r}: use local, aws, or the address of a console")
    from .local_backend import LocalBackend

    folder = (state or default_state()).resolve()
    try:
        return LocalBackend(folder)
    except OSError as exc:
        raise Refused(f"{folder} cannot be used as a state folder: {exc}") from exc
