"""The record of a job with its ranks, and what it shares with that of a node. Values only: `decide` changes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from .effects import Order
from .stored import Stored


class JobStatus(StrEnum):
    """Where a job stands. The first four are waits; the last three are final."""

    IN_PROGRESS = "IN_PROGRESS"  #: the gang is starting, running, or being stopped for good
    PENDING_HEALTHCHECK = (
        "PENDING_HEALTHCHECK"  #: nodes under test: before the first start, or after a failure
    )
    PENDING_RESTART = "PENDING_RESTART"  #: a node is repaired or awaited, or another one is looked for
    RESTARTING = "RESTARTING"  #: every node is back; the whole gang is being started again
    COMPLETE = "COMPLETE"  #: every rank ended with success
    FAILED = "FAILED"  #: nothing more can be done without a person
    USER_STOPPED = "USER_STOPPED"  #: a person asked for the end

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset({JobStatus.COMPLETE, JobStatus.FAILED, JobStatus.USER_STOPPED})


class TaskStatus(StrEnum):
    """Where one rank's task stands."""

    IN_PROGRESS = "IN_PROGRESS"  #: started, not known to have ended
    COMPLETE = "COMPLETE"  #: ended with exit code 0, and believed
    TERMINATED = "TERMINATED"  #: ended any other way, or never ran


class NodeStatus(StrEnum):
    """Where a node stands. While a job holds it, the job record is the truth and the node row follows."""

    AVAILABLE = "AVAILABLE"  #: healthy; free, or waiting for the rest of its gang
    UNKNOWN = "UNKNOWN"  #: not heard from
    ASSIGNED = "ASSIGNED"  #: claimed for a job that has not started on it yet
    IN_PROGRESS = "IN_PROGRESS"  #: runs a rank
    PENDING = "PENDING"  #: its job failed; waiting for the old task to end before the check
    PENDING_HEALTHCHECK = "PENDING_HEALTHCHECK"  #: under test
    REBOOTING = "REBOOTING"  #: ordered to reboot
    FAILED = "FAILED"  #: a person must look at it


class Verdict(StrEnum):
    """What examining a node said."""

    HEALTHY = "healthy"  #: no GPU fault found
    REBOOT = "reboot"  #: a GPU fault that a reboot may cure
    REPLACE = "replace"  #: a GPU fault that a reboot will not cure
    INCONCLUSIVE = "inconclusive"  #: the test did not run: proves nothing, so nothing is done
    LOST = "lost"  #: the node can't be reached: it is awaited, never ordered to reboot

    @classmethod
    def from_exit_code(cls, exit_code: int | None) -> Verdict:
        """The contract of the health check: 0 healthy, 1 reboot, 2 replace, all else inconclusive."""
        return {0: cls.HEALTHY, 1: cls.REBOOT, 2: cls.REPLACE}.get(
            -1 if exit_code is None else exit_code, cls.INCONCLUSIVE
        )


class Failover(StrEnum):
    """Where a rank may go whose node has to be repaired, or is missed."""

    NONE = "none"  #: nowhere: its job waits for the node, and ends if that is given up
    SPARES = "spares"  #: to a node that is kept as a spare
    ANY = "any"  #: to a spare, or to any free node of the same kind


class Exit(StrEnum):
    """What the end of a task means for its job."""

    DONE = "done"  #: success, and nothing speaks against it
    SUSPECT = "suspect"  #: an exit code that a GPU fault can cause: examine the nodes
    LOST = "lost"  #: the node went away under the task
    STOPPED_BY_US = "stopped by us"  #: the gang stop reached it
    STOPPED_BY_PERSON = "stopped by a person"  #: someone stopped this task
    OUT_OF_MEMORY = "out of memory"  #: no reboot cures it
    NEVER_STARTED = "never started"  #: image, secret, resource: nothing ran
    FAULT = "fault"  #: an exit code outside the policy
    FROZEN = "frozen"  #: has not ended: a fatal GPU fault was seen, and no sign of life since


class Notice(StrEnum):
    """How it is known that a machine is to be taken away."""

    SEEN = "seen"  #: the cluster shows it, for as long as it is so
    TOLD = "told"  #: EC2 has said so, once
    PERSON = "person"  #: a person wants it empty
    MAYBE = "maybe"  #: EC2 takes it for more likely than usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Stored):
    """A machine is to be taken away, though nothing is wrong with it."""

    notice: Notice
    why: str
    at: datetime  #: when that was heard
    until: datetime | None = None  #: by then it is gone, where that is known

    @property
    def moves(self) -> bool:
        """Whether a job that runs there goes elsewhere. What only may be keeps new ones away."""
        return self.notice is not Notice.MAYBE

    @property
    def sure(self) -> bool:
        """Whether nothing can be started there any more. A person can wait."""
        return self.notice in (Notice.SEEN, Notice.TOLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord(Stored):
    """What is kept of a machine, by the job that holds it or by the node's own record: the same rules write both."""

    instance: str = ""  #: container instance ARN; empty in the embedded mode
    host: str = ""  #: EC2 (i-...) or managed (mi-...) instance id, where an order to reboot is sent to
    registered_at: datetime | None = None  #: when the machine became that container instance
    ibdev: str = ""  #: its InfiniBand devices
    gpus: int = 0  #: as registered; 0 means unknown
    #: As last seen.
    connected: bool = True
    away_since: datetime | None = None
    gone: bool = False  #: terminated or deregistered, and not seen since
    boot_id: str = ""
    gpus_seen: int | None = None
    seen_version: int = 0
    leave: Leave | None = None
    #: Its examination.
    check_try: int = 0  #: counts over the whole life of the record, so that each check has its own name
    checks_spent: int = 0  #: checks of this examination that gave no answer
    check_id: str = ""
    verdict: Verdict | None = None
    findings: str = ""
    #: What it waits for ends here; never empty while it waits for the outside world.
    deadline: datetime | None = None

    @property
    def vacant(self) -> bool:
        """Its machine is gone for good, and nobody has concluded anything else since: another may take its place."""
        return False

    @property
    def all_gpus_back(self) -> bool:
        return self.gpus == 0 or self.gpus_seen is None or self.gpus_seen >= self.gpus

    @property
    def fit(self) -> bool:
        return self.connected and self.all_gpus_back

    @property
    def absence(self) -> str:
        """What to say of it when the time in which it had to be back is over."""
        if self.connected and not self.all_gpus_back:
            return f"came back with {self.gpus_seen} of {self.gpus} GPUs"
        return "did not come back in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank(MachineRecord):
    """One node's part in a job: its task, the examination of its node, and what it waits for."""

    index: int
    node: str
    address: str = ""  #: where the other ranks reach it
    overrides: str = (
        ""  #: of an adopted job: the container overrides its task was first started with, as JSON
    )
    node_status: NodeStatus = NodeStatus.ASSIGNED
    #: The task of the current attempt. The id is empty until the cluster has named it.
    task_id: str = ""
    task_status: TaskStatus | None = None
    task_attempt: int = (
        0  #: which attempt that task belongs to; the job's own number is ahead while nodes are awaited
    )
    past_tasks: tuple[str, ...] = ()  #: earlier tasks of this rank, as ATTEMPT/ID
    start_try: int = 0
    overheard: bool = False  #: an event named its task; the answer to the start has not
    spent: tuple[str, ...] = ()  #: its last tasks that never ran: whatever is still told of them is old news
    exit: Exit | None = None
    exit_code: int | None = None
    exit_reason: str = ""
    last_words: str = ""  #: what its program wrote last, see `TaskEnded`
    echo: bool = False
    #: A fatal fault was seen on its node: by then it has ended, got further, or counts as frozen.
    frozen_at: datetime | None = None
    stuck: bool = False  #: its task did not end in the time of a stop, though its node answers
    back_at: datetime | None = None  #: when its node was last heard from again
    doubted: bool = False  #: the node may have restarted under the task: its exit code 0 proves nothing
    anew: bool = False  #: its machine registered anew under the task, whose end nobody will ever report
    hung: bool = False  #: its task did not end: the gang stood still, and it is what the others waited for
    suspect: bool = (
        False  #: a fault was seen on its node while the job waits: it is examined before it is used
    )
    handed: str = (
        ""  #: under this key its node was handed over: the node's own record decides until it is back
    )
    handed_times: int = 0  #: how often a node of it was handed over for this attempt

    @property
    def vacant(self) -> bool:
        return self.gone and self.node_status is NodeStatus.UNKNOWN

    @property
    def ended(self) -> bool:
        return self.task_status in (TaskStatus.COMPLETE, TaskStatus.TERMINATED)

    @property
    def live(self) -> bool:
        """Has a task that is not known to have ended."""
        return self.task_status is TaskStatus.IN_PROGRESS

    @property
    def quiet(self) -> bool:
        """Nothing of it can be running: it ended, or no start was ever ordered."""
        return self.ended or (self.task_status is None and self.start_try == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending(Stored):
    """The job is on its way out: it gets this status once its tasks have stopped."""

    status: JobStatus
    why: str
    by: str = ""  #: the person, if one asked
    firm: bool = True  #: a suspect exit that arrives meanwhile does not change it


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Stored):
    """One line of the timeline: what changed, when, why, on what evidence, under which policy."""

    at: datetime
    subject: str  #: "job", or a node's name
    before: str
    after: str
    why: str
    evidence: str = ""
    attempt: int = 0
    policy: str = ""
    job: str = ""  #: in a node's own timeline: the job that held it
    retold: bool = False  #: in a job's: the node's own record has told it before


#: Who has submitted a job that we only found.
ANOTHER_TOOL = "another tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Stored):
    """What a person asked to run. The same on both backends; each uses what it understands."""

    name: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    checkpoint_dir: str = ""
    master_port: int = 29500
    gpus_per_node: int = 0
    memory_mib: int = 0  #: 0 means no limit
    task_def: str = ""  #: AWS: task definition ARN or family:revision
    container: str = ""  #: AWS: the training container's name, if the task has several
    check_level: str = ""  #: how deep nodes are examined; empty: as the policy says
    submitted_by: str = ""
    team: str = ""  #: whose it is, for messages
    retry_of: str = ""  #: the ended job this one repeats
    failover: str = ""  #: one of `Failover`; empty means none
    fenced: bool = False  #: a task of an older attempt writes no checkpoint: its program looks at the fence

    @property
    def moves(self) -> bool:
        """Whether ranks may take other nodes."""
        return self.failover in (Failover.SPARES, Failover.ANY)

    @property
    def adopted(self) -> bool:
        """Another tool wrote it; we only found it."""
        return self.submitted_by == ANOTHER_TOOL

    @property
    def family(self) -> str:
        """Of the task definition, however that is given."""
        return self.task_def.rpartition("/")[2].partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(Stored):
    """How far a training is known to have come: the furthest step, or the name of its last checkpoint."""

    step: int = 0
    checkpoint: str = ""  #: of a training that tells no steps
    attempt: int = -1  #: in which it came so far; -1: before this job
    at: datetime | None = None

    def __str__(self) -> str:
        return f"step {self.step:,}" if self.step else f"checkpoint {self.checkpoint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Stored):
    """What a job has spent of its restarts."""

    charged: int = 0  #: restarts in a row that brought no progress
    uncharged: tuple[int, ...] = ()  #: attempts that began because a node was to be taken away
    blind: int = 0  #: restarts on healthy nodes of a job that tells no progress, in its whole life
    repaired: bool = False  #: the last restart followed a repair or a loss
    since: datetime | None = None  #: when the last restart was decided
    started: datetime | None = None  #: when all of its ranks had been started


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Stored):
    """The aggregate and the truth. One conditional write moves it, with the orders it caused."""

    id: str
    cluster: str
    spec: JobSpec
    status: JobStatus
    ranks: tuple[Rank, ...]
    created_at: datetime
    updated_at: datetime
    attempt: int = 0  #: the seeds' `retry`: 0 for the first run
    max_retries: int = 1  #: the budget this job was submitted with: restarts in a row without progress
    restart_when_healthy: str = "never"  #: or `progress`: whether it goes on when no node is at fault
    budget: Budget | None = None  #: None: of an older release, which charged every restart
    marker: Marker | None = None
    preflight: bool = False  #: under test before its first start
    planned: bool = False  #: its gang is stopped so that ranks can leave their nodes: nothing has failed
    room: bool = False  #: a node was seen for each rank that has to leave its own
    salt: str = ""  #: goes into the tokens of its tasks
    ending: Ending | None = None
    outcome: str = ""  #: why it ended, in a sentence
    waiting_since: datetime | None = None  #: it waits for nodes that may be others than its own
    wait_told: bool = False  #: people know that it waits
    look_at: datetime | None = None  #: the next moment of that wait
    outbox: tuple[Order, ...] = ()
    timeline: tuple[Entry, ...] = ()
    #: Ranks whose rows are not known to be written, each with the version that changed them; only stores use it.
    owed: tuple[tuple[int, int], ...] = ()
    stop_written: bool = False  #: another tool wrote USER_STOPPED into its row; only stores set it
    version: int = 0

    @property
    def spent(self) -> Budget:
        return self.budget or Budget(charged=self.attempt)

    @property
    def stopping(self) -> bool:
        """A person's stop is on record, done or on its way."""
        ends = self.status if self.ending is None else self.ending.status
        return ends is JobStatus.USER_STOPPED

    @property
    def restarts_left(self) -> int:
        """How many restarts in a row it may still have without progress."""
        return max(0, self.max_retries - self.spent.charged)

    def wake_at(self, lost_after: timedelta) -> datetime | None:
        """The next moment that needs a look without any event: a deadline, an absence, an unsent order."""
        times = [order.due for order in self.outbox]
        times += [self.look_at] if self.look_at is not None else []
        for rank in () if self.status.final else self.ranks:
            if rank.deadline is not None:
                times.append(rank.deadline)
            if rank.away_since is not None:
                times.append(rank.away_since + lost_after)
            if rank.frozen_at is not None:
                times.append(rank.frozen_at)
        return min(times, default=None)
