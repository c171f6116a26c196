"""What happened: frozen facts in the past tense. Identity, time and attempt come from outside.

Facts are level, not edge: the same fact twice, late, or out of order changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from .effects import Notify
from .guard import Answer
from .model import Leave, MachineRecord, Verdict
from .node_record import Node, Wrote


def latest(at: datetime, now: datetime | None) -> datetime:
    """What waits count from: the clock of whoever decides, unless that is behind. Late news is no reason to hurry."""
    return at if now is None else max(at, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    at: datetime  #: the event's own time, never our clock

    def clock(self, stands: datetime, now: datetime | None = None) -> datetime:
        """Where it moves the clock of a record, which stands there: late news must not turn it back."""
        return max(self.at, stands)


class WatchFact(Fact):
    """What the watch on a node tells, under the node's own time. That may be wrong by years: the clock of whoever hears
    it is the limit."""

    __slots__ = ()

    def clock(self, stands: datetime, now: datetime | None = None) -> datetime:
        return min(max(self.at, stands), latest(stands, now))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who started a task, with what, and where, as the cluster tells it.

    Whoever may start tasks chooses the variables in which a task names its job, and these too, but for the token: that
    is made with the salt of the record, which nobody sees before the true task exists.
    """

    token: str = ""
    instance: str = ""
    family: str = ""  #: of its task definition

    def has_token(self, token: str) -> bool:
        return self.token == token

    def is_on(self, instance: str) -> bool:
        """By id: some say the whole ARN. A record without one is of a place where nodes are folders."""
        return not instance or instance.rpartition("/")[2] == self.instance.rpartition("/")[2]

    def is_of(self, family: str) -> bool:
        return not family or self.family == family


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFact(Fact):
    """What is told of a task. It counts by the id that the record knows; of a task that is awaited, by its origin."""

    origin: Origin | None = (
        None  #: None: no event tells it, but the cluster, when it was asked or given an order
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted(TaskFact):
    """A training task exists. `running` once its container runs."""

    task_id: str
    attempt: int
    rank: int
    running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded(TaskFact):
    """A training task has ended. Facts only; what it means is decided by `exits.classify`."""

    task_id: str
    attempt: int
    rank: int
    exit_code: int | None
    reason: str = ""  #: the container's reason and the task's stopped reason
    stop_code: str = ""
    stopped_at: datetime | None = None  #: when the cluster learned of it, where it tells
    last_words: str = (
        ""  #: of its program: the line that tells, or the last ones; empty where they can't be read
    )
    echo: bool = False  #: they tell of the death of another rank


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRefused(Fact):
    """The cluster would not start a rank."""

    attempt: int
    rank: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStarted(TaskFact):
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
class NodeChecked(TaskFact):
    """A health check has answered."""

    node: str
    check_id: str
    check_try: int
    verdict: Verdict
    findings: str = ""
    looked: bool = False  #: it was to look how far the training has come
    progress: ProgressSeen | None = None  #: and this is what it found


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
class PermitWithheld(Fact):
    """An order did not go: the guard of the fleet has it wait, wants its evidence renewed, or a person said no; or
    somebody else's task runs on the node."""

    key: str
    answer: Answer
    why: str
    tell: Notify | None = None  #: what people are told if they have not been told of this yet


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver(Fact):
    """A job has given its node over for repair. Whatever becomes of the node, its own record decides."""

    node: str
    job: str
    key: str
    verdict: Verdict
    findings: str = ""
    task: str = ""  #: the job's task there, if it is not known to have ended
    anew: bool = False  #: nobody will report its end: the machine has registered anew
    level: str = ""
    salt: str = ""
    first: bool = False  #: the others of the gang meet there, so it must be known where it is


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTaskEnded(Fact):
    """What ran on a node when its job handed it over under this key has ended."""

    node: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRepaired(Fact):
    """The node that was handed over under this key may be used again. `machine` is how its own record saw it last."""

    node: str
    key: str
    machine: MachineRecord
    address: str = ""  #: where it is reached now
    kept: str = ""  #: the archive of what was kept before its repair


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGivenUp(Fact):
    """The node that was handed over under this key needs a person."""

    node: str
    key: str
    reason: str
    kept: str = ""  #: the archive of what was kept before its repair


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOffered(Fact):
    """The nodes of the fleet as they stand now, for a job that may need others than its own."""

    nodes: tuple[Node, ...]
    frozen: bool = False  #: the fleet is: no rank leaves a node on which a fault was found


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
    #: Which registration is seen, of which machine, and when it was made; empty where nodes register once.
    instance: str = ""
    host: str = ""
    registered: datetime | None = None
    #: What the machine itself tells: the name an operator gave it, where it is reached, its InfiniBand devices.
    called: str = ""
    address: str = ""
    ibdev: str = ""
    kind: str = ""  #: see `Node`
    spare: bool | None = None  #: what its label says; None: it has none
    leave: Leave | None = None  #: what the cluster shows of its being taken away

    def concerns(self, record: MachineRecord) -> bool:
        """Whether it tells of the registration that the record knows. Versions count within one only."""
        ids = {name.rpartition("/")[2] for name in (self.instance, record.instance) if name}
        return len(ids) < 2

    def succeeds(self, record: MachineRecord) -> bool:
        """Whether the record's machine has registered anew, so that nobody speaks for the old registration.

        A sighting of an even older one may come late: the later registration counts. Where the times are not known,
        the old one must be away. Another machine counts in its place if an operator gave it the node's name, and the
        old one is gone.
        """
        same_host = bool(self.host) and self.host == record.host
        in_its_place = bool(self.host) and record.vacant and self.called == self.node != ""
        if self.concerns(record) or not (same_host or in_its_place) or not self.connected or self.gone:
            return False
        if self.registered is None or record.registered_at is None:
            return record.away_since is not None
        return self.registered > record.registered_at


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeaving(Fact):
    """A node is to be taken away; or, without a `leave`, not any more."""

    node: str
    leave: Leave | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSeen(Fact):
    """How far a training has come, as it tells itself: a step, or else the name of a complete checkpoint."""

    step: int = 0
    checkpoint: str = ""
    attempt: int | None = None  #: in which it came so far, where that is told
    reached: datetime | None = None  #: when it says it did; what is older than the job is not the job's


#: How a timeline tells evidence of hardware from evidence against a program.
FAULT, PROGRAM_FAULT = "fault reported", "a program's fault reported"
#: The actions of rules that condemn a node by themselves, as the watch tells them.
GRAVE = frozenset({"reboot", "replace"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSeen(WatchFact):
    """Evidence about a node's hardware from elsewhere (kernel log, instance health). It is recorded. On a free node a
    grave one starts an examination; a fatal one is acted on too, if the program there shows no sign of life."""

    node: str
    evidence: str  #: a few words, then " | " and the raw line where there is one
    application: bool = False  #: the driver blames the program, not the hardware
    fatal: bool = False  #: a program on that GPU may wait for ever instead of ending
    grave: bool = False  #: a check that finds it condemns the node
    boot_id: str = ""  #: of the boot in which it was seen, where the sender tells

    @property
    def noted_as(self) -> str:
        return PROGRAM_FAULT if self.application else FAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePulse(WatchFact):
    """What a node says of its GPUs: a level, repeated while they stand still."""

    node: str
    state: str
    since: datetime
    trained: bool = False
    what: str = ""
    wrote: tuple[Wrote, ...] = ()  #: of whatever jobs it sees files


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStalled(Fact):
    """What the witnesses of a hang say together, as the sweeper has just heard them."""

    attempt: int
    still_since: datetime | None = None  #: none of its GPUs has worked since; None: not all nodes say so
    still_until: datetime | None = None  #: as far as was heard
    spinning: bool = False
    trained: bool = True
    odd: tuple[str, ...] = ()
    what: str = ""
    silent_since: datetime | None = None  #: no rank has written since; None: one has, or nobody knows
    works: bool = False  #: nobody stands still any more: the GPUs of every node have worked since
    patience: timedelta = timedelta(0)
    written: str = ""
    withheld: str = ""  #: why the gang may not be stopped now; empty: it has a permit, or needs none
    tell: Notify | None = None  #: what people are told of that


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Fact):
    """Time has passed: look at the deadlines."""

    may_stop: bool = True  #: the guard lets a gang be stopped of which no rank has ended; else
    why: str = ""  #: what that waits for, if it was asked for
    tell: Notify | None = None  #: and what people are told of it


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked(Fact):
    """A person wants the job to end."""

    by: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSent(Fact):
    """An order has been carried out, as far as the sender can tell."""

    key: str
    kept: str = ""  #: the archive of what a repair would wipe, where that is kept before it


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
    """A person wants something of a node: drain, move, release, check, reboot, spare or unspare."""

    node: str
    ask: str
    by: str
    why: str
    level: str = "quick"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReplaced(Fact):
    """Another machine has come for one that was taken away to be replaced, under a name of its own."""

    node: str
    by: str
