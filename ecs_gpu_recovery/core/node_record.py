"""The record of a node. Values only: `decide_node` makes every change, and while a job holds the node, its job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from .effects import Order
from .model import Entry, MachineRecord, NodeStatus, Verdict
from .stored import Stored

#: In place of a rank: what belongs to the whole job, such as its progress file.
WHOLE_JOB = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote(Stored):
    """When a rank was last seen to write, by the watch on its node."""

    job: str
    rank: int
    at: datetime
    pause_s: int = 0  #: the longest pause between two writes that was seen before


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse(Stored):
    """What a node last said of its GPUs, by our own clock."""

    state: str  #: moving, flat (they spin) or idle
    since: datetime
    at: datetime  #: when it said so
    trained: bool = False  #: they have worked under the program that holds them
    what: str = ""
    wrote: tuple[Wrote, ...] = ()  #: by the node's own rank, and of its whole job, where its watch can see it


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Stored):
    """A person keeps a node out of use. It ends when a person releases it."""

    by: str
    why: str
    at: datetime


#: How many condemnations a record remembers.
MOST_REMEMBERED = 10
#: A node that is condemned so often within this time is not repaired any more: a person must look at it.
TOO_OFTEN, WITHIN = 3, timedelta(days=7)
#: How a repair ends for which another machine has come: its name follows.
REPLACED_BY = "replaced by "


def successor(told: str) -> str:
    """The machine that has come for another, if this is how its repair ended; empty if not."""
    return told.removeprefix(REPLACED_BY).partition(": ")[0] if told.startswith(REPLACED_BY) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemnation(Stored):
    """A fault that was found on a node, what was done about it, and what became of that."""

    at: datetime
    verdict: Verdict
    findings: str = ""
    repair: str = ""  #: empty: none was tried any more
    outcome: str = ""  #: empty while it goes on
    renewed: datetime | None = None  #: when it was last found to hold still, where no check could tell
    asked: bool = (
        False  #: a person had it examined while it was out of use: it is known, and does not count again
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(MachineRecord):
    """A node. Held by a job, its status is a copy from the job record. Free, or handed over, it decides for itself."""

    name: str
    cluster: str
    created_at: datetime
    updated_at: datetime
    status: NodeStatus = NodeStatus.UNKNOWN
    connected: bool = False
    ip: str = ""
    job_id: str = ""  #: who holds it
    rank: int | None = None  #: of that job; not known where an earlier release took the node
    job_version: int = 0  #: fence: which version of that job wrote the status
    hold: Hold | None = None
    #: Launch type, GPU model or instance type, zone and group; empty while one of them is not known.
    kind: str = ""
    spare: bool = False  #: kept for ranks that lose their node; no new job gets it
    fresh: bool = False  #: nobody has examined or used it since it was first seen, or a person gave it back
    passed_at: datetime | None = None  #: when a check found it healthy; no fault was seen since
    #: Its job handed it over under the first of these keys; they are equal once it is back in the job's hands.
    handed: str = ""
    returned: str = ""
    task: str = (
        ""  #: what may still run there of the job that handed it over; it is not let back before that ended
    )
    anew: bool = False  #: it registered anew over such a task, whose end nobody will ever report
    level: str = ""  #: how deep it is to be examined, if somebody said so
    salt: str = ""  #: of the tokens of its checks: its own, or that of the job that handed it over last
    first: bool = False  #: the others of that job's gang meet here
    reboot_key: str = ""  #: of its last reboot
    kept: str = ""  #: the archive of what was kept before that
    rebooted: bool = False  #: that reboot is proven
    booted_at: datetime | None = None  #: by then it had booted last, as far as is known
    suspected: str = ""  #: a grave fault that was seen on it, and for which it was not examined yet
    condemned: tuple[Condemnation, ...] = ()  #: the last of them, oldest first
    asked: bool = False  #: a person has it examined, and it was FAILED before
    errands: int = 0  #: counts this node's own orders, so that each has its own key
    told: str = ""  #: the last message about permits that it has sent
    pulse: Pulse | None = None  #: a witness while it is fresh
    outbox: tuple[Order, ...] = ()
    timeline: tuple[Entry, ...] = ()
    version: int = 0

    @property
    def vacant(self) -> bool:
        return self.gone and self.status is NodeStatus.UNKNOWN

    @property
    def curable(self) -> bool:
        """Whether a reboot is still to be tried: its fault asks for one, and none was in vain or of too short use."""
        last = self.condemned[-1] if self.condemned else None
        if self.verdict is not Verdict.REBOOT or last is None:
            return self.verdict is Verdict.REBOOT
        return not last.repair and self.faults(last.at) < TOO_OFTEN

    @property
    def retired(self) -> bool:
        """Its machine is gone, and no job waits for it: nobody has to do anything about it."""
        at_rest = self.status in (NodeStatus.UNKNOWN, NodeStatus.FAILED) and not self.being_replaced
        return at_rest and self.gone and not self.job_id

    def faults(self, now: datetime) -> int:
        """How many were found on it lately while it was in use."""
        return sum(now - each.at < WITHIN and not each.asked for each in self.condemned)

    def with_fault(self, fault: Condemnation) -> tuple[Condemnation, ...]:
        """The condemnations that are remembered, with this one."""
        return (*self.condemned, fault)[-MOST_REMEMBERED:]

    def wake_at(self, lost_after: timedelta) -> datetime | None:
        """Like a job's; a node that a job holds has no errands of its own."""
        times = [order.due for order in self.outbox]
        if self.own:
            if self.deadline is not None:
                times.append(self.deadline)
            if self.away_since is not None and self.status is NodeStatus.AVAILABLE:
                times.append(self.away_since + lost_after)
        return min(times, default=None)

    @property
    def own(self) -> bool:
        """Whether its own record decides: no job holds it, or the job has handed it over."""
        return not self.job_id or self.handed != self.returned

    @property
    def held(self) -> bool:
        """Whether its reboot waits for a permit of the fleet's guard."""
        pending = any(order.key == self.reboot_key for order in self.outbox)
        return pending and self.status is NodeStatus.PENDING_HEALTHCHECK

    @property
    def being_replaced(self) -> bool:
        """Whether its machine is to be taken away for another one, or is gone and no other has come yet."""
        last = self.condemned[-1] if self.condemned else None
        return self.own and last is not None and not last.outcome and last.repair == "replace"

    @property
    def being_taken_away(self) -> bool:
        """Whether its machine is to be replaced and, as far as is known, is still there."""
        return self.being_replaced and (self.status is NodeStatus.REBOOTING or self.held)

    @property
    def missed(self) -> bool:
        """Whether its machine is to be replaced because it did not come back from its reboot."""
        return self.being_replaced and self.verdict is Verdict.LOST

    @property
    def replaceable(self) -> bool:
        """Whether another machine may come for it. None does for one of ECS Anywhere, which its host tells before its
        kind is known; one that is gone needs none."""
        return not (self.gone or self.kind.startswith("EXTERNAL") or self.host.startswith("mi-"))

    @property
    def replaced_by(self) -> str:
        """The machine that has come for its own, which is gone; empty if none has, or its name has a machine again."""
        return successor(self.condemned[-1].outcome) if self.condemned and self.gone else ""

    @property
    def claimable(self) -> bool:
        return not self.refusal

    @property
    def refusal(self) -> str:
        """Why a new job can't have this node now; empty when it can."""
        return self.engaged or ("kept as a spare" if self.spare else "")

    @property
    def engaged(self) -> str:
        """Why nobody can have this node now; empty when a rank that has to leave its node can."""
        if self.job_id:
            return f"in use by job {self.job_id}"
        if self.hold is not None:
            return f"drained by {self.hold.by}: {self.hold.why}"
        if self.leave is not None:
            return f"{'is to' if self.leave.moves else 'may'} be taken away: {self.leave.why}"
        if self.status is not NodeStatus.AVAILABLE:
            return f"is {self.status}" + (f" ({self.findings})" if self.findings else "")
        if self.suspected:
            return f"is to be examined: {self.suspected}"
        return ""
