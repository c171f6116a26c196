"""What stands in the world of a night: machines, the tasks on them, and what happens to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ecs_gpu_recovery.core.model import Verdict

GPUS = 8


@dataclass(slots=True, eq=False)
class Task:
    """A training task or a health check, as the machine knows it."""

    id: str
    token: str
    check: bool
    job: str  #: empty: a check of a node that no job holds
    machine: Machine
    rank: int
    attempt: int
    check_try: int
    start_key: str
    began: float
    instance: str  #: as what its machine was registered
    running: bool = False
    alive: bool = True
    stopping: bool = False
    stop_reason: str = ""
    asked: float = -1.0  #: when the cluster was first told to stop it
    exit_code: int | None = None
    reason: str = ""
    stop_code: str = ""
    ended: float = -1.0  #: as the cluster sees it
    finished: bool = False  #: did its work to the end
    told: bool = False  #: the cluster knows that it has ended
    left: bool = False  #: its rank has moved away from its machine, which was out of reach
    stray: bool = False  #: its start had been withdrawn when it got through
    forgotten: bool = False  #: its machine has registered anew: the cluster shows it for ever as it was
    frozen: bool = False  #: waits for a GPU that will never answer
    idle: bool = False  #: of a check: it must find the GPUs unused
    still: float = -1.0  #: since when it stands still, though no GPU is at fault


@dataclass(slots=True, eq=False)
class Reboot:
    """An order to reboot that reached the host."""

    key: str
    at: float
    done: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A GPU fault, as the kernel log tells it."""

    at: float
    boot: int

    @property
    def line(self) -> str:
        return f"Xid 79 in boot {self.boot} at {self.at:.3f}"


@dataclass(slots=True, eq=False)
class Machine:
    """One node as it really is."""

    name: str
    up: bool = True
    agent: bool = True
    gone: bool = False
    boot: int = 0
    gpus: int = GPUS
    fault: str = ""  #: "", "reboot" or "replace"
    froze: float | None = None  #: when a fatal fault froze what ran here last
    version: int = 1  #: of how the cluster sees it
    registration: int = 0  #: how often it has registered anew
    registered: float = 0.0  #: when it did so last
    away_since: float | None = None  #: truly not connected since
    last_away: float = -1.0  #: when it was truly not connected last
    tasks: list[Task] = field(default_factory=list)
    reboots: dict[str, Reboot] = field(default_factory=dict)
    tombstones: set[str] = field(default_factory=set)
    strangers: int = 0  #: tasks that others run here
    new: bool = False  #: it joined in the night
    draining: bool = False  #: the cluster shows that it is to be taken away
    announced: bool = (
        False  #: that it will be taken away was said of it some time tonight, and not only that it may
    )

    @property
    def connected(self) -> bool:
        return self.up and self.agent and not self.gone

    @property
    def busy(self) -> bool:
        return any(task.alive and not task.forgotten for task in self.tasks)

    @property
    def orphans(self) -> list[Task]:
        """What runs here and nobody knows of."""
        return [task for task in self.tasks if task.alive and task.forgotten]


@dataclass(frozen=True, slots=True)
class Warned:
    """EC2 says that a machine will be taken away, or that it may be."""

    at: float
    until: float | None


News = Task | Reboot | Fault | Warned | None


def verdict_of(task: Task) -> Verdict:
    """A check that did not end by itself proves nothing."""
    if task.stop_code != "EssentialContainerExited":
        return Verdict.INCONCLUSIVE
    return Verdict.from_exit_code(task.exit_code)
