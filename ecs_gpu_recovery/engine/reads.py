"""What people, pages and metrics ask of the records, by name. Nothing here changes one.

Each store has its own way to answer; whoever asks knows neither tables nor queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ..core.effects import Notify
from ..core.errors import BadRecord
from ..core.model import Entry, Job, JobStatus
from ..core.node_record import Node

#: A message to people: when (`at`), and the texts of a `Notify`.
Notice = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """One task that a job has, or had."""

    rank: int
    attempt: int
    node: str
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanges:
    """The nodes that are not as they were, and the names of those that are not there any more."""

    changed: tuple[Node, ...] = ()
    bad: tuple[BadRecord, ...] = ()  #: those of them that can't be read
    gone: frozenset[str] = frozenset()


class Reads(Protocol):
    """Questions beside those that the engine has (`Store`)."""

    def some_jobs(self, job_ids: Iterable[str]) -> Sequence[Job]:
        """Records in the order of these ids; those that are gone, or can't be read, are left out."""

    def job_counts(self, statuses: Iterable[JobStatus]) -> Mapping[JobStatus, int]:
        """How many jobs are in each of these states. Where counting is paid for, it stops at `MOST_COUNTED`."""

    def changed_nodes(self, known: Mapping[str, int]) -> NodeChanges:
        """What differs from these versions, by name."""

    def tasks(self, job: Job) -> Sequence[TaskLine]:
        """Every task of every attempt, oldest attempt first."""

    def earlier_entries(self, record: str) -> Sequence[Entry]:
        """Entries that no longer fit into the record, oldest first, where they are kept."""

    def notices(self, limit: int, after: str = "") -> Sequence[Notice]:
        """Messages to people, newest first. A list in pages begins at `BEGINNING` and goes on after a `place`."""


#: A place before all others.
BEGINNING = "~"
#: A list of jobs that must be paid for is not counted further than this, in any one state.
MOST_COUNTED = 200


def place(notice: Notice) -> str:
    """Where a message stands in the list. It is a time and a key, so new messages don't shift it."""
    return f"{notice['at']} {notice['key']}"


def as_dict(message: Notify) -> dict[str, str]:
    """A message as people and webhooks get it."""
    parts = ("subject", "happened", "evidence", "done", "next", "node", "key", "owner", "team")
    return {part: str(getattr(message, part)) for part in parts}


def stand_in(exc: BadRecord, at: datetime) -> Node:
    """What a list shows for a node whose record can't be read. It is for people's eyes and never written."""
    return Node(
        name=exc.name, cluster="", created_at=at, updated_at=at, findings=str(exc), version=exc.version
    )
