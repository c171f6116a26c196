"""The whole outside world on one page. Each port has an embedded and an AWS side; `wiring` picks one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from ..core.effects import Archive, CheckNode, Notify, RebootNode, ReplaceNode, StartTask, StopTask
from ..core.errors import BadRecord
from ..core.events import Fact
from ..core.guard import FleetGuard
from ..core.model import Job, JobStatus, Rank
from ..core.node_record import Node
from ..core.witness import Named, Silence

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """One job in a list, without opening its record."""

    id: str
    name: str
    status: JobStatus
    attempt: int
    nodes: int
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, job: Job) -> JobLine:
        return cls(
            id=job.id,
            name=job.spec.name,
            status=job.status,
            attempt=job.attempt,
            nodes=len(job.ranks),
            created_at=job.created_at,
            updated_at=job.updated_at,
        )

    @classmethod
    def read(cls, *texts: Any) -> JobLine:
        """From what a store or a console has of each field, in their order."""
        job_id, name, status, attempt, nodes, created_at, updated_at = texts
        return cls(
            id=job_id,
            name=name,
            status=JobStatus(status),
            attempt=int(attempt),
            nodes=int(nodes),
            created_at=datetime.fromisoformat(created_at),
            updated_at=datetime.fromisoformat(updated_at),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Part of a list; `next` asks for the rest."""

    jobs: tuple[JobLine, ...]
    next: str = ""
    bad: tuple[BadRecord, ...] = ()  #: jobs that belong here and whose lines can't be read


class Nodes(list[Node]):
    """The nodes whose records can be read, and what is wrong with the others: each is read by itself."""

    def __init__(self, nodes: Iterable[Node] = (), bad: Iterable[BadRecord] = ()) -> None:
        super().__init__(nodes)
        self.bad = tuple(bad)


def each(read: Callable[[S], T], some: Iterable[S]) -> tuple[list[T], list[BadRecord]]:
    """Every record by itself, so that one that can't be read hides no other."""
    good: list[T] = []
    bad: list[BadRecord] = []
    for one in some:
        try:
            good.append(read(one))
        except BadRecord as exc:
            bad.append(exc)
    return good, bad


class Store(Protocol):
    """Records. Every write is conditional; a stale one raises `VersionConflict` and changes nothing.

    What other tools read, the task and node rows, is the store's own business: it derives them from the records.
    Whatever opens a record may raise `Unreadable`, or `NewerRecord`; lists name such records beside the others.
    """

    def create(self, job: Job) -> None:
        """Claim the nodes and record the job: all or nothing. Raises `NodesTaken` or `JobExists`."""

    def job(self, job_id: str) -> Job:
        """Raises `NotFound`."""

    def last(self, job_id: str) -> Job | None:
        """The record as this process wrote it last, where reading it again is a call; None elsewhere.

        A guess: somebody else may have moved on. The next commit puts it to the test.
        """

    def commit(self, old: Job, new: Job, handed: Sequence[Node] = ()) -> Job:
        """Write version n over version n - 1, and the rows that differ.

        `handed` are the nodes that this step hands over, each version n over n - 1 too: all is written or nothing.
        Where they are too many for one write, nodes go first, and some may be written though the job is not.

        Gives back the record as it is stored. What did not fit into one write is `owed`: it is kept beside the record,
        and the job is due until it is paid.
        """

    def settle(self, job: Job, old: Job | None = None, *, soon: bool = False) -> Job:
        """Write the rows that are still owed. May be done twice, late, or by two at once: a newer one stands.

        `old` is the record before the step that owes them, where the caller has just made it. `soon`: the caller's next
        commit follows at once, and takes note for nothing that the rows are written.
        """

    def job_of_task(self, task_id: str) -> str | None:
        """The job whose task rows name this task."""

    def jobs(self, *, status: JobStatus | None = None, limit: int = 50, after: str = "") -> Page:
        """Newest first."""

    def due_jobs(self, now: datetime, limit: int = 1000) -> Sequence[str]:
        """Jobs with an unsent order or a deadline at or before now."""

    def live_jobs(self) -> Sequence[str]:
        """Every job that is not final."""

    def node(self, name: str) -> Node:
        """Raises `NotFound`."""

    def node_of_instance(self, instance: str) -> Node | None:
        """The node that is this container instance (id or ARN)."""

    def nodes(self) -> Nodes: ...

    def add_node(self, node: Node) -> None:
        """Record a node that was not known; does nothing if it is."""

    def commit_node(self, node: Node) -> None:
        """Write version n over version n - 1."""

    def due_nodes(self, now: datetime) -> Sequence[str]: ...

    def release_orphan(self, name: str, job_id: str, now: datetime) -> None:
        """Free a node that is held by a job that has ended, or was never recorded.

        A claim without a job may belong to one that is being recorded right now: while it is young it stands.
        """

    def tell_once(self, kind: str, name: str, why: str, tell: Callable[[], None]) -> bool:
        """Tell people what is wrong with a record, unless they were told of that before; whether they were told now.

        That they know is noted beside the record, in whatever state it is.
        """


class GuardStore(Protocol):
    """The record of the fleet's guard, in a table of its own."""

    cluster: str

    def guard(self) -> FleetGuard:
        """An empty one where none was written yet. Raises `Unreadable`, or `NewerRecord`."""

    def commit_guard(self, guard: FleetGuard) -> None:
        """Write version n over version n - 1, or raise `VersionConflict`, with the newest where that is known."""


class Fleet(Protocol):
    """The cluster. Each method carries out one order; what became of it comes back as facts.

    Raises `ClusterRefused` where the cluster says no, `Transient` where it did not answer.
    """

    def start_task(self, job: Job, order: StartTask, *, again: bool) -> Iterable[Fact]:
        """`again`: it may have been sent before, so look for its token first."""

    def stop_task(self, job_id: str, order: StopTask) -> Iterable[Fact]: ...

    def check_node(self, job: Job | None, node: Node, order: CheckNode, *, again: bool) -> Iterable[Fact]: ...

    def reboot_node(self, node: Node, order: RebootNode, *, again: bool) -> Iterable[Fact]:
        """Where what it would wipe is kept first, an `OrderSent` says in which archive."""

    def replace_node(self, node: Node, order: ReplaceNode, *, again: bool) -> Iterable[Fact]:
        """Take its machine away and have another one come. That it is gone is seen like any other absence."""

    def company(self, node: Node) -> Sequence[str]:
        """What runs on a node now that is neither a daemon of ours, nor what its job left there."""

    def label_nodes(self, nodes: Sequence[Node]) -> None:
        """Show each node's status on the cluster itself, where the cluster has a place for it."""

    def observe_job(self, job: Job) -> Iterable[Fact]:
        """How the cluster sees this job's tasks, checks, reboots and nodes now."""

    def silence(self, job: Job, since: datetime) -> Silence | None:
        """Since when no rank of a running job has written anything, if none has since `since`. None if one has, or
        where nobody can tell."""

    def keep_hang(self, job: Job, ranks: Sequence[Rank], *, last: bool) -> None:
        """Have it kept where ranks that stand still wait: first, or for the last time. Done twice, it is kept once."""

    def waited_for(self, job: Job, ranks: Sequence[Rank], since: datetime) -> Named | None:
        """Whom the others wait for, as far as one of these ranks has told since then. Asked after `keep_hang`."""

    def observe_nodes(self, nodes: Sequence[Node]) -> Iterable[tuple[str, Fact]]:
        """The same for nodes that no job holds, each fact with its node's name."""


class Notifier(Protocol):
    """Messages to people, and the long memory of the timeline."""

    def notify(self, message: Notify) -> None: ...

    def resolved(self, message: Notify) -> None:
        """What was told is over. For pagers and chats: nobody is called."""

    def archive(self, record: str, order: Archive) -> None: ...


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware, UTC."""
