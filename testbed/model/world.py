"""The modelled cluster: nodes, training tasks, checks and reboots, as honest as Amazon ECS is about them.

A start and a stop are idempotent by token; a reboot happens once per key; a check is refused with RESOURCE:GPU while
a task lives on the node; a start is refused with AGENT while the agent is away. Whatever was true once may be told at
any later time, any number of times, in any order, or never. So nothing is kept "in flight": `facts` lists all that
can still arrive, and delivering one does not use it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, TypeVar

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.events import (
    CheckStarted,
    Fact,
    FaultSeen,
    NodeChecked,
    NodeSeen,
    Origin,
    ProgressSeen,
    RebootProven,
    TaskEnded,
    TaskStarted,
)
from ecs_gpu_recovery.core.exits import OUR_REASON
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus, Rank, Verdict

from .bounds import Bounds

#: How a task can end: exit code, reason, stop code.
ENDS: dict[str, tuple[int | None, str, str]] = {
    "done": (0, "", "EssentialContainerExited"),
    "suspect": (1, "Essential container in task exited", "EssentialContainerExited"),
    "fault": (139, "Essential container in task exited", "EssentialContainerExited"),
    "oom": (1, "OutOfMemoryError: Container killed due to memory usage", "EssentialContainerExited"),
    "host gone": (None, "Host EC2 (instance i-0) terminated.", "TerminationNotice"),
    "no room": (None, "TaskFailedToStart: RESOURCE:GPU", "TaskFailedToStart"),
    "no image": (None, "CannotPullContainerError: no such image", "TaskFailedToStart"),
    "person": (143, "Task stopped by user", "UserInitiated"),
    "stopped": (143, f"{OUR_REASON} j/0: stopped", "UserInitiated"),
    "killed": (137, "node restarted while the task ran", "EssentialContainerExited"),
    "lie": (0, "", "EssentialContainerExited"),
}
GPUS = 8
#: The id of a task that nobody here has started.
FORGED = "x"


class Run(NamedTuple):
    """A training task. `copy` counts tasks with the same token: more than one only where ended ones are not found."""

    rank: int
    attempt: int
    start_try: int
    copy: int
    token: str
    alive: bool = True
    stopping: bool = False
    asked: datetime | None = None  #: when it was first told to stop
    end: str = ""
    told: bool = True  #: the cluster knows how it ended; not while its node is away
    born: datetime | None = None
    at: datetime | None = None  #: when it ended, or, where that was told later, when it was told

    @property
    def id(self) -> str:
        return f"t{self.rank}.{self.attempt}.{self.start_try}.{self.copy}"


class Check(NamedTuple):
    """A health check on a node. `own`: of the node's own record."""

    rank: int
    attempt: int
    check_try: int
    copy: int
    token: str
    alive: bool = True
    stopping: bool = False
    verdict: str = ""  #: empty while it runs, and for ever if it was stopped
    at: datetime | None = None
    own: bool = False

    @property
    def id(self) -> str:
        return f"{'own' if self.own else 'c'}{self.rank}.{self.check_try}.{self.copy}"


class Reboot(NamedTuple):
    """An order to reboot that the host has accepted."""

    key: str
    done: bool = False
    boot: int = 0  #: what it booted into
    at: datetime | None = None  #: when it was accepted
    proof: str = ""  #: token of the check that asked for it


class Sight(NamedTuple):
    """The cluster's view of a node. Its position in the history is its version."""

    connected: bool
    boot: int
    gpus: int = GPUS
    gone: bool = False
    life: int = 0  #: how many machines have had this name before


@dataclass(frozen=True, slots=True)
class Machine:
    """One node as it really is."""

    sights: tuple[Sight, ...] = (Sight(True, 0),)  #: what may still be told of it; the last is how it is
    version: int = 1  #: of the last sight
    faulty: datetime | None = None  #: when a fatal GPU fault was last seen here
    suspect: bool = False  #: a GPU fault was seen here while its job waits, and nobody has looked since
    down: bool = False  #: without power or booting; its tasks are dead
    stranded: bool = False  #: down for good, as long as nobody takes it away
    back: datetime | None = None  #: when its agent came back, while it has not reported its tasks yet
    runs: tuple[Run, ...] = ()
    checks: tuple[Check, ...] = ()
    reboots: tuple[Reboot, ...] = ()
    taken: str = ""  #: the order by which its group takes it away
    proof: str = ""  #: what its checks have found last, as far as a repair goes by it
    followed: bool = False  #: it is gone, and another machine has come

    @property
    def sight(self) -> Sight:
        return self.sights[-1]

    @property
    def connected(self) -> bool:
        return self.sights[-1].connected

    @property
    def busy(self) -> bool:
        return any(run.alive for run in self.runs) or any(check.alive for check in self.checks)

    def run(self, token: str, *, ended_too: bool) -> Run | None:
        found = [run for run in self.runs if run.token == token and (run.alive or ended_too)]
        return found[-1] if found else None

    def check(self, token: str, *, ended_too: bool) -> Check | None:
        found = [check for check in self.checks if check.token == token and (check.alive or ended_too)]
        return found[-1] if found else None

    def proven_by(self, answer: Check) -> str:
        """What a repair may go by once this is known: a reboot that has happened, and cured nothing, asks for more."""
        if answer.verdict == "inconclusive":
            return self.proof
        in_vain = answer.own and any(reboot.done for reboot in self.reboots)
        if answer.verdict == "reboot" and (in_vain or self.proof == "replace"):
            return "replace"
        return "" if answer.verdict == "healthy" else answer.verdict

    def tidy(self) -> Machine:
        """Forget what is too old to be told again: of all that is over, only the latest of each kind is still about.

        A late piece of news from two lives ago is no different from one of the last life.
        """
        runs, checks = _latest(self.runs), _latest(self.checks)
        if (
            len(runs) == len(self.runs)
            and len(checks) == len(self.checks)
            and len(self.sights) <= 2
            and len(self.reboots) <= 1
        ):
            return self
        return replace(self, runs=runs, checks=checks, sights=self.sights[-2:], reboots=self.reboots[-1:])


OneOf = TypeVar("OneOf", Run, Check)


def _latest(things: tuple[OneOf, ...]) -> tuple[OneOf, ...]:
    over = [thing for thing in things if not thing.alive]
    return tuple(
        thing for thing in things if thing.alive or thing is over[-1] or thing.token == things[-1].token
    )


def node_name(rank: int) -> str:
    return f"n{rank}"


def instance_name(rank: int, life: int = 0) -> str:
    """Which machine it is that has the node's name."""
    return f"{node_name(rank)}.{life}" if life else node_name(rank)


def started(run: Run, at: datetime) -> TaskStarted:
    return TaskStarted(at=at, task_id=run.id, attempt=run.attempt, rank=run.rank, running=True)


def ended(run: Run, at: datetime) -> TaskEnded:
    code, reason, stop_code = ENDS[run.end]
    return TaskEnded(
        at=at,
        task_id=run.id,
        attempt=run.attempt,
        rank=run.rank,
        exit_code=code,
        reason=reason,
        stop_code=stop_code,
        stopped_at=run.at,
    )


def checked(check: Check, at: datetime) -> NodeChecked:
    return NodeChecked(
        at=at,
        node=node_name(check.rank),
        check_id=check.id,
        check_try=check.check_try,
        verdict=Verdict(check.verdict),
    )


def check_started(check: Check, at: datetime) -> CheckStarted:
    return CheckStarted(at=at, node=node_name(check.rank), check_id=check.id, check_try=check.check_try)


def proven(rank: int, reboot: Reboot, at: datetime, *, blind: bool) -> RebootProven:
    return RebootProven(
        at=at, node=node_name(rank), key=reboot.key, boot_id="" if blind else f"boot{reboot.boot}"
    )


def seen(rank: int, sight: Sight, version: int, at: datetime, *, blind: bool) -> NodeSeen:
    gpus = sight.gpus if sight.connected else None
    boot = "" if blind else f"boot{sight.boot}"
    instance = instance_name(rank, sight.life)
    return NodeSeen(
        at=at,
        node=node_name(rank),
        instance=instance,
        host=instance,
        called=node_name(rank),
        connected=sight.connected,
        gpus=gpus,
        boot_id=boot,
        version=version,
        gone=sight.gone,
    )


def seen_now(rank: int, machine: Machine, at: datetime, *, blind: bool) -> NodeSeen:
    return seen(rank, machine.sight, machine.version, at, blind=blind)


def facts(
    rank: int, machine: Machine, now: datetime, *, bounds: Bounds
) -> Iterator[tuple[str, tuple[Fact, ...]]]:
    """All that may still arrive about a node: everything that was ever true and told, stale or not.

    The end of a task that died with its node is told together with a fresh sighting of the node: whoever brings the
    news of an exit code looks at the node first. That is a duty of the adapters.
    """
    for run in machine.runs:
        born, at = (run.born or now, run.at or now) if bounds.late_stamps else (now, now)
        yield f"{run.id} has started", (started(run, born),)
        if run.end and run.told:
            news: tuple[Fact, ...] = (ended(run, at),)
            if run.end in ("lie", "killed"):
                news = (seen_now(rank, machine, at, blind=bounds.blind), *news)
            yield f"{run.id} has ended ({run.end})", news
    for check in machine.checks:
        at = (check.at or now) if bounds.late_stamps else now
        yield f"{check.id} has started", (check_started(check, at),)
        if check.verdict:
            yield f"{check.id} says {check.verdict}", (checked(check, at),)
    for reboot in machine.reboots:
        if reboot.done:
            yield f"{reboot.key} is proven", (proven(rank, reboot, now, blind=bounds.blind),)
    first = 0 if bounds.stale_sights else len(machine.sights) - 1
    for k, sight in enumerate(machine.sights[first:], first):
        if machine.version > 1 or machine.sight.life:
            version = machine.version - len(machine.sights) + 1 + k
            how = "gone" if sight.gone else "connected" if sight.connected else "away"
            yield (
                f"{node_name(rank)} seen {how} (version {version})",
                (seen(rank, sight, version, now, blind=bounds.blind),),
            )


def gang_trains(job: Job, machines: Sequence[Machine]) -> bool:
    """Whether every rank of this attempt runs: a collective needs all of them."""
    alive = [
        run
        for machine in machines
        for run in machine.runs
        if run.alive and not machine.down and run.attempt == job.attempt
    ]
    return len({run.rank for run in alive}) == len(job.ranks)


def is_ready(job: Job, i: int) -> bool:
    """Whether a job that waits for other nodes would start on this one."""
    ready = (rank.node for rank in job.ranks if rank.node_status is NodeStatus.AVAILABLE and not rank.handed)
    return job.status is JobStatus.PENDING_RESTART and job.ending is None and node_name(i) in ready


def trained(steps: tuple[int, ...], now: datetime) -> list[Fact]:
    """How far the training says that it has come."""
    return [ProgressSeen(at=now, step=len(steps), attempt=steps[-1])] if steps else []


def fatal(rank: int, at: datetime) -> Fact:
    return FaultSeen(at=at, node=node_name(rank), evidence="Xid 119", fatal=True)


def grave(rank: int, machine: Machine, at: datetime) -> Fact:
    boot = f"boot{machine.sight.boot}"
    return FaultSeen(at=at, node=node_name(rank), evidence="Xid 48", grave=True, boot_id=boot)


def forgeries(job: Job, rank: Rank, now: datetime) -> Iterator[tuple[str, tuple[Fact, ...]]]:
    """What a neighbour can have told of a task of his own, who knows the tokens, or has the node's instance."""
    start, check = keys.start_token(job.id, rank, job.salt), keys.token(keys.check(job.id, rank), job.salt)
    for wrong in ("token", "instance"):
        where = rank.instance if wrong == "token" else "elsewhere"
        run = Origin(token="" if wrong == "token" else start, instance=where)
        test = Origin(token="" if wrong == "token" else check, instance=where)
        began = TaskStarted(
            at=now, task_id=FORGED, attempt=rank.task_attempt, rank=rank.index, running=True, origin=run
        )
        yield f"forged start on {rank.node}, wrong {wrong}", (began,)
        for code in (0, 1):
            over = TaskEnded(
                at=now,
                task_id=FORGED,
                attempt=rank.task_attempt,
                rank=rank.index,
                exit_code=code,
                stop_code="EssentialContainerExited",
                origin=run,
            )
            yield f"forged end {code} on {rank.node}, wrong {wrong}", (over,)
        answer = NodeChecked(
            at=now,
            node=rank.node,
            check_id=FORGED,
            check_try=rank.check_try,
            verdict=Verdict.REBOOT,
            origin=test,
        )
        yield f"forged verdict on {rank.node}, wrong {wrong}", (answer,)


def go_down(machine: Machine, now: datetime, end: str, *, told: bool = False) -> Machine:
    """Without power or booting: what ran there is dead, and the cluster knows or does not."""
    runs = tuple(r._replace(alive=False, end=end, told=told, at=now) if r.alive else r for r in machine.runs)
    checks = tuple(
        c._replace(alive=False, verdict="inconclusive", at=now) if c.alive else c for c in machine.checks
    )
    return sight(
        replace(machine, runs=runs, checks=checks, suspect=False, down=True, back=None), connected=False
    )


def sight(machine: Machine, **changes: object) -> Machine:
    """The cluster takes note of a change."""
    new = machine.sight._replace(**changes)  # type: ignore[arg-type]
    return replace(machine, sights=(*machine.sights, Sight(*new)), version=machine.version + 1)
