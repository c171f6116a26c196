"""What happened: frozen facts in the past tense. Identity, time and attempt come from outside.

Facts are level, not edge: the same fact twice, late, or out of order changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .model import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    at: datetime  #: the event's own time, never our clock


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted(Fact):
    """A training task exists. `running` once its container runs."""

    task_id: str
    attempt: int
    rank: int
    running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded(Fact):
    """A training task has ended. Facts only; what it means is decided by `exits.classify`."""

    task_id: str
    attempt: int
    rank: int
    exit_code: int | None
    reason: str = ""  #: the container's reason and the task's stopped reason
    stop_code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRefused(Fact):
    """The cluster would not start a rank."""

    attempt: int
    rank: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStarted(Fact):
    """A health check runs on a node."""

    node: str
    check_id: str
    check_try: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRefused(Fact):
    """The cluster would not start a health check."""

    node: str
    check_try: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChecked(Fact):
    """A health check has answered."""

    node: str
    check_id: str
    check_try: int
    verdict: Verdict
    findings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebootProven(Fact):
    """The node booted anew for this order: its boot id changed."""

    node: str
    key: str
    boot_id: str = ""  #: the new one, where the sender knows it


@dataclass(frozen=True, slots=True, kw_only=True)
class RebootFailed(Fact):
    """The order to reboot could not be carried out."""

    node: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen(Fact):
    """How the cluster sees a node now. `version` orders sightings; 0 means unordered."""

    node: str
    connected: bool
    gpus: int | None = None
    boot_id: str = ""
    version: int = 0
    gone: bool = False  #: terminated or deregistered
    why: str = ""


#: How a timeline tells evidence of hardware from evidence against a program.
FAULT, PROGRAM_FAULT = "fault reported", "a program's fault reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSeen(Fact):
    """Evidence about a node's hardware from elsewhere (kernel log, instance health). It is recorded, not acted on."""

    node: str
    evidence: str  #: a few words, then " | " and the raw line where there is one
    application: bool = False  #: the driver blames the program, not the hardware

    @property
    def noted_as(self) -> str:
        return PROGRAM_FAULT if self.application else FAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Fact):
    """Time has passed: look at the deadlines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked(Fact):
    """A person wants the job to end."""

    by: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSent(Fact):
    """An order has been carried out, as far as the sender can tell."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFailed(Fact):
    """An order could not be sent this time."""

    key: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersClaimed(Fact):
    """The sweeper will send these if nobody has by the end of a lease that begins now."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAsked(Fact):
    """A person wants something of a node that no job holds: drain, release, check or reboot."""

    node: str
    ask: str
    by: str
    why: str
    level: str = "quick"


JOB_EVENTS: tuple[type[Fact], ...] = (
    TaskStarted,
    TaskEnded,
    StartRefused,
    CheckStarted,
    CheckRefused,
    NodeChecked,
    RebootProven,
    RebootFailed,
    NodeSeen,
    FaultSeen,
    Tick,
    StopAsked,
    OrderSent,
    OrderFailed,
    OrdersClaimed,
)
NODE_EVENTS: tuple[type[Fact], ...] = (
    CheckStarted,
    CheckRefused,
    NodeChecked,
    RebootProven,
    RebootFailed,
    NodeSeen,
    FaultSeen,
    Tick,
    OrderSent,
    OrderFailed,
    NodeAsked,
)
