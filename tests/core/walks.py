"""Jobs that can really come to be: random walks through plausible facts, for properties that hold for every job."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from hypothesis import strategies as st

from ecs_gpu_recovery.core.events import (
    CheckRefused,
    CheckStarted,
    Fact,
    FaultSeen,
    NodeChecked,
    NodeGivenUp,
    NodeRepaired,
    NodeSeen,
    OrderFailed,
    OrderSent,
    RebootProven,
    StartRefused,
    StopAsked,
    TaskEnded,
    TaskStarted,
    Tick,
)
from ecs_gpu_recovery.core.exits import our_reason
from ecs_gpu_recovery.core.model import Job, MachineRecord, Rank, Verdict
from tests.core.story import MINUTE, OOM, T0, Story, with_retries

ENDS: list[tuple[int | None, str, str]] = [
    (0, "", "EssentialContainerExited"),
    (1, "", "EssentialContainerExited"),
    (139, "", "EssentialContainerExited"),
    (1, OOM, "EssentialContainerExited"),
    (143, our_reason("j", 0, "stopped"), "UserInitiated"),
    (143, "Task stopped by user", "UserInitiated"),
    (None, "TaskFailedToStart: RESOURCE:GPU", "TaskFailedToStart"),
    (None, "Host EC2 (instance i-1) terminated.", "TerminationNotice"),
]
WAITS = [timedelta(0), timedelta(seconds=30), timedelta(minutes=6), timedelta(minutes=31)]


def plausible(job: Job, story: Story) -> list[Fact]:
    """Facts that may arrive now, most of them news, some of them old, wrong or out of order."""
    found: list[Fact] = [Tick(at=story.now)]
    for order in job.outbox:
        found += [
            OrderSent(at=story.now, key=order.key),
            OrderFailed(at=story.now, key=order.key, error="no answer"),
        ]
    for rank in job.ranks:
        found += _about(rank, job, story)
    return found


def _about(rank: Rank, job: Job, story: Story) -> Iterator[Fact]:
    at, task = story.now, rank.task_id or story.task_id(rank.index)
    for attempt in {rank.task_attempt, max(0, job.attempt - 1)}:
        yield TaskStarted(at=at, task_id=task, attempt=attempt, rank=rank.index, running=True)
        for code, reason, stop_code in ENDS:
            yield TaskEnded(
                at=at,
                task_id=task,
                attempt=attempt,
                rank=rank.index,
                exit_code=code,
                reason=reason,
                stop_code=stop_code,
            )
    yield TaskEnded(
        at=at,
        task_id="",
        attempt=rank.task_attempt,
        rank=rank.index,
        exit_code=None,
        reason=our_reason("j", 0, "x"),
        stop_code="UserInitiated",
    )
    yield from (
        StartRefused(at=at, attempt=job.attempt, rank=rank.index, reason=why) for why in ("AGENT", "MISSING")
    )
    for check_try in {rank.check_try, 1}:
        name = f"c{rank.index}.{check_try}"
        yield CheckStarted(at=at, node=rank.node, check_id=name, check_try=check_try)
        yield CheckRefused(at=at, node=rank.node, check_try=check_try, reason="RESOURCE:GPU")
        for verdict in (
            Verdict.HEALTHY,
            Verdict.REBOOT,
            Verdict.REBOOT,
            Verdict.REPLACE,
            Verdict.INCONCLUSIVE,
        ):
            yield NodeChecked(
                at=at, node=rank.node, check_id=name, check_try=check_try, verdict=verdict, findings="seen"
            )
    yield from _repairs(rank, job, story)
    yield from (
        NodeSeen(at=at, node=rank.node, connected=up, boot_id=boot)
        for up in (True, False)
        for boot in ("boot-1", "boot-2")
    )
    yield from (
        NodeSeen(
            at=at,
            node=rank.node,
            connected=up,
            version=1,
            instance=f"instance/{number}",
            host="host",
            registered=T0 + number * MINUTE,
        )
        for up in (True, False)
        for number in (1, 2)
    )
    yield FaultSeen(at=at, node=rank.node, evidence="Xid 79")


def _repairs(rank: Rank, job: Job, story: Story) -> Iterator[Fact]:
    """That a node is back is told by its own record only; a job may hear of an earlier time, or that it is given up."""
    at, node, key = story.now, story.nodes[rank.node], f"j/{job.attempt}/{rank.index}/reboot"
    machine = MachineRecord(boot_id="boot-2")
    earlier = f"j/{max(0, job.attempt - 1)}/{rank.index}/reboot"
    if node.returned == node.handed or key != node.handed:
        yield NodeRepaired(at=at, node=rank.node, key=key, machine=machine)
    yield NodeRepaired(
        at=at, node=rank.node, key=earlier if earlier != key else "j/9/0/reboot", machine=machine
    )
    yield NodeGivenUp(at=at, node=rank.node, key=key, reason="not managed")


def _proofs(story: Story) -> list[Fact]:
    """What the nodes themselves may hear."""
    ordered = [node for node in story.nodes.values() if node.reboot_key]
    return [RebootProven(at=story.now, node=n.name, key=n.reboot_key, boot_id="boot-2") for n in ordered]


def walk(choices: list[int], *, nodes: int, check: bool, retries: int) -> Story:
    """Take one plausible fact after the other; each number chooses the fact and, now and then, lets time pass."""
    registered = {"instance": "instance/0", "host": "host", "registered_at": T0}
    story = Story(nodes=nodes, check=check, policy=with_retries(retries), **registered)
    for choice in choices:
        if choice % 7 == 0:
            story.now += WAITS[choice // 7 % len(WAITS)]
        facts = [*plausible(story.job, story), *_proofs(story)]
        story.hears(facts[choice % len(facts)])
    return story


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """A job somewhere on its way."""
    choices = draw(st.lists(st.integers(0, 9999), max_size=40))
    return walk(
        choices, nodes=draw(st.integers(1, 3)), check=draw(st.booleans()), retries=draw(st.integers(0, 2))
    )


def next_facts(story: Story, draw: st.DataObject, *, asks: bool = True) -> Fact:
    """Any fact that may come next."""
    facts = plausible(story.job, story)
    if asks and not story.job.status.final:
        facts.append(StopAsked(at=story.now, by="ann"))
    return draw.draw(st.sampled_from(facts), label="fact")
