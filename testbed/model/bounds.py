"""How large and how hostile the modelled world is. Every number is a budget; the search is exhaustive within them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import NamedTuple

from ecs_gpu_recovery.core.policy import Policy

#: One step of the modelled clock. Waits keep the order they have in the real policy, in few steps.
STEP = timedelta(minutes=1)


def quick_policy(
    *,
    max_retries: int = 1,
    post_reboot_check: bool = False,
    restart_when_healthy: str = "never",
    repair_rungs: str = "reboot",
) -> Policy:
    """The real policy's waits in small whole steps, so that few different moments exist."""
    return Policy(
        max_retries=max_retries,
        post_reboot_check=post_reboot_check,
        restart_when_healthy=restart_when_healthy,
        repair_rungs=repair_rungs,
        refill_after=10_000 * STEP,
        fault_grace=2 * STEP,
        lease=STEP,
        backoff_first=STEP,
        backoff_most=STEP,
        stop_timeout=2 * STEP,
        node_lost_after=2 * STEP,
        agent_report=2 * STEP,
        start_timeout=3 * STEP,
        check_timeout=3 * STEP,
        reboot_timeout=3 * STEP,
        replace_timeout=3 * STEP,
        alarm_tries=1_000_000,
        timeline_limit=1_000_000,
    )


class Left(NamedTuple):
    """What may still go wrong."""

    failures: int = 0
    flaps: int = 0
    deaths: int = 0
    asks: int = 0
    leaves: int = 0
    witnesses: int = 0
    stalls: int = 0
    hiccups: int = 0
    refusals: int = 0
    holds: int = 0
    delays: int = 0
    steps: int = 0
    faults: int = 0
    suspects: int = 0
    comers: int = 0
    strands: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """One configuration of the model."""

    nodes: int = 2
    check_first: bool = False
    policy: Policy = field(default_factory=quick_policy)
    #: How a training task may end besides success. Each end spends one of `failures`.
    ends: tuple[str, ...] = ("suspect",)
    verdicts: tuple[str, ...] = ("healthy", "reboot", "replace", "inconclusive")
    failures: int = 1  #: tasks that end badly
    flaps: int = 0  #: agents that disconnect and come back, while the tasks run on
    deaths: int = 0  #: nodes that go down by themselves; they come back, or never do
    asks: int = 0  #: a person stops the job
    leaves: int = (
        0  #: a person wants a node empty, and the job may move; another node is seen, and gone when it looks
    )
    witnesses: int = 0  #: two witnesses say that the job hangs, of this attempt or of the last, true or not
    stalls: int = 0  #: a process stops for a while, or for ever, between a commit and the end of its orders
    hiccups: int = 0  #: an order that could not be sent this time
    refusals: int = 0  #: a start or a reboot that the cluster refuses for good
    holds: int = (
        0  #: a reboot that the guard of the fleet does not let go now, or not on this evidence, or never
    )
    delays: int = 1  #: time passes although the world is about to do something: a wait runs out, or a lease
    faults: int = 0  #: a fatal GPU fault is seen under a task, which may or may not end of it
    strands: int = 0  #: machines that go down for their reboot and never come back
    suspects: int = 0  #: a GPU fault is seen on a node of a job that waits for another one
    comers: int = 0  #: machines that come for one that is gone, under its name or under one of their own
    steps: int = 0  #: the gang comes further than ever before
    lies: bool = (
        False  #: a task that died in a reboot of its node says exit code 0, as some container runtimes do
    )
    noticed: bool = False  #: that a node went down is told at once, so somebody knows
    blind: bool = False  #: nodes don't tell their boot id
    slow_reports: bool = (
        False  #: an agent that is back tells up to one step later what has become of its tasks
    )
    finds_ended: bool = True  #: a look for a token also finds tasks that have ended, as ECS does for an hour
    rows: bool = False  #: rows are written after the commit, not in it
    answers_stop: bool = True  #: a stop that finds no task says so
    stale_sights: bool = False  #: an older sighting of a node may arrive after a newer one
    slow_start: bool = False  #: a started task is pending first; that it runs is told later
    late_sweeper: bool = False  #: time may pass although something is due: the sweeper is away for long
    late_stamps: bool = False  #: facts carry the time they came to be, not the time they arrive
    forged: bool = (
        False  #: tasks of a neighbour say that they are ours, right in all but the token or the instance
    )
    fewer_gpus: bool = False  #: a node may come back from a reboot with a GPU missing
    moves: bool = False  #: a rank may take another node

    @property
    def left(self) -> Left:
        return Left(**{name: getattr(self, name) for name in Left._fields})

    def __str__(self) -> str:
        plain = Bounds()
        told = [
            f"{f.name}={_short(getattr(self, f.name))}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(plain, f.name)
        ]
        return ", ".join(told) or "as it comes"


def _short(value: object) -> str:
    if isinstance(value, Policy):
        more = [", check after reboot"] if value.post_reboot_check else []
        more += [", goes on"] if value.restart_when_healthy != "never" else []
        more += [", replaces"] if value.may_replace else []
        return f"retries {value.max_retries}" + "".join(more)
    return "/".join(value) if isinstance(value, tuple) else str(value)
