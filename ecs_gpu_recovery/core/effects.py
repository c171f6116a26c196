"""What to do: frozen orders in the imperative, each with a key derived from what it means (`keys`).

Sending one twice is the same order. An `Order` is an effect in the outbox, with its due time. It leaves the outbox
only when the fact that it was carried out has been applied, so a crash can never lose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .stored import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTask(Stored):
    """Start one rank. Idempotent by `token`: look for a task that carries it before starting another."""

    key: str
    token: str
    rank: int
    attempt: int
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTask(Stored):
    """Stop a task by id, or by token where the cluster has not told us its id yet."""

    key: str
    node: str
    task_id: str
    token: str
    reason: str
    rank: int = -1  #: -1: not a rank's own task (a check, or a ghost)
    attempt: int = 0
    instance: str = ""  #: where it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckNode(Stored):
    """Run the health check on a node. Idempotent by `token`. `rank` is -1 for a node that no job holds."""

    key: str
    token: str
    node: str
    level: str
    rank: int = -1
    attempt: int = 0
    check_try: int = 1
    idle: bool = False  #: it must find the GPUs unused: a task that nobody reports may still run there


@dataclass(frozen=True, slots=True, kw_only=True)
class RebootNode(Stored):
    """Reboot a node. The host itself refuses a second reboot for the same key."""

    key: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceNode(RebootNode):
    """The rung above the reboot: its machine is taken away for good, and another one comes in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify(Stored):
    """Tell people. One message per incident: what happened, the evidence, what was done, what to do next."""

    key: str
    subject: str
    happened: str
    evidence: str
    done: str
    next: str
    node: str = ""
    owner: str = ""  #: who submitted the job that it is about
    team: str = ""  #: and whose it is, if that was said
    resolved: bool = False  #: what was told under this key is over

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """What follows on what happened, each with its heading."""
        whose = self.owner + (f", team {self.team}" if self.team else "")
        told = (("Owner", whose), ("Evidence", self.evidence), ("Done", self.done), ("Next", self.next))
        return tuple((name, text) for name, text in told if text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive(Stored):
    """Move the oldest timeline entries out of the record into the log."""

    key: str
    lines: tuple[str, ...]


Effect = StartTask | StopTask | CheckNode | RebootNode | ReplaceNode | Notify | Archive
EFFECTS: tuple[type[Effect], ...] = (
    StartTask,
    StopTask,
    CheckNode,
    RebootNode,
    ReplaceNode,
    Notify,
    Archive,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Stored):
    """An effect in the outbox. `due` is when somebody other than its first sender may send it."""

    effect: Effect
    due: datetime
    own: bool = True  #: whoever committed it sends it; False where the committer never sends
    tries: int = 0
    error: str = ""

    @property
    def key(self) -> str:
        return self.effect.key
