"""The stories' world as it is deployed: rules fill queues, functions take batches, few at once, within AWS's limits.

Everything runs in virtual time. The numbers of the queues are the deployment's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ecs_gpu_recovery.aws import queues, wiring
from ecs_gpu_recovery.aws.queues import FUNCTIONS_AT_ONCE
from ecs_gpu_recovery.aws.tables import CALLS, GUARD, JOBS, NODES, TASKS
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.engine import records
from ecs_gpu_recovery.lambdas.entry import EventClock, newest
from testbed.aws.crew import Crew, TimeIsUp
from testbed.aws.limits import Limits
from testbed.aws.model import Knobs
from tests.aws.test_store_cost import size
from tests.stories.account import InMemory, Session, _Wired, in_time_of
from tests.stories.arrivals import Event, passes_rules
from tests.stories.functions import handler_of
from tests.stories.memory import GUARDED, TURNS, error
from tests.stories.world import World, a_world

FUNCTION_S, COLD_START_S = 120.0, 1.0
VISIBLE_AFTER_S = FUNCTION_S + queues.MARGIN_S
KEYS = {table.name: table.key for table in (JOBS, TASKS, NODES)} | {
    TURNS: CALLS.key,
    GUARDED: GUARD.key,
}


@dataclass(eq=False)
class Process:
    """A function's process, which stays warm."""

    side: wiring.AwsSide
    clock: EventClock


@dataclass(eq=False)
class Message:
    event: Event
    received: int = 0


@dataclass(eq=False)
class Lane:
    """A queue and the function behind it."""

    world: QueuedWorld
    waiting: list[Message] = field(default_factory=list)
    warm: list[Process] = field(default_factory=list)
    running: int = 0
    gathering: bool = False
    batches: int = 0

    def put(self, message: Message) -> None:
        self.waiting.append(message)
        self.look()

    def look(self) -> None:
        if self.waiting and not self.gathering and self.running < FUNCTIONS_AT_ONCE:
            self.gathering = True
            self.world.cloud.agenda.after(queues.WINDOW_S, self._hand_over)

    def _hand_over(self) -> None:
        self.gathering = False
        some, self.waiting = self.waiting[: queues.MOST_AT_ONCE], self.waiting[queues.MOST_AT_ONCE :]
        self.batches += 1
        self.running += 1
        self.world.note_running()
        began = self.world.cloud.agenda.now()
        self.world.crew.begin(lambda: self._take(some, began), limit_s=FUNCTION_S)
        self.look()

    def _take(self, some: list[Message], began: float) -> None:
        failed = some
        process = self.warm.pop() if self.warm else None
        try:
            if process is None:
                self.world.crew.sleep(COLD_START_S)
                process = self.world.a_whole_process()
            events = [message.event for message in some]
            process.clock.set(newest(events))
            answers = process.side.intake.take_all(events)
            failed = [m for m, answer in zip(some, answers, strict=True) if isinstance(answer, Exception)]
            self.world.errors += [answer for answer in answers if isinstance(answer, Exception)]
            self.warm.append(process)
        except TimeIsUp:
            self.world.timeouts += 1
        for message in failed:
            message.received += 1
            if message.received >= queues.TRIES:
                self.world.dead_letters.append(message.event)
            else:
                back = began + VISIBLE_AFTER_S - self.world.cloud.agenda.now()
                self.world.cloud.agenda.after(max(0.0, back), lambda message=message: self.put(message))  # type: ignore[misc]
        self.running -= 1
        self.look()


@dataclass
class QueuedWorld(World):
    """Ticks and events become functions; `pass_time` lets them run."""

    most_at_once: int = 0
    timeouts: int = 0
    commits: int = 0

    def __post_init__(self) -> None:
        self.crew = Crew(self.cloud.agenda)
        account = self.account
        assert isinstance(account, InMemory)
        self.limits = Limits(
            now=self.cloud.agenda.now,
            sleep=self.crew.sleep,
            refused=error,
            size_of=lambda table, key: size(account._tables._rows[table].get(key, {})),
        )
        self.lanes: dict[str, Lane] = {}
        self.sweepers = 0
        self._sweeper: list[Process] = []
        super().__post_init__()
        self.session = LimitedSession(self)

    def a_whole_process(self) -> Process:
        clock = EventClock()
        side = wiring.build(
            {},
            now=clock.now,
            session=self.session,
            settings=self.settings,
            on_commit=self._committed,
            spread=self.crew.spread,
        )
        in_time_of(self.cloud, side, self.crew.sleep)
        side.fleet._pace._lock = self.crew.lock()
        side.fleet.definitions._looking = self.crew.lock()
        return Process(side, clock)

    def _committed(self, old: Any, new: Any) -> None:
        self.commits += 1
        super()._committed(old, new)

    def note_running(self) -> None:
        running = sum(lane.running for lane in self.lanes.values()) + self.sweepers
        self.most_at_once = max(self.most_at_once, running)

    def deliver(self, event: Event, tries: int = 0) -> None:
        """A tick calls the sweeper; all else waits in its queue."""
        name = handler_of(event)
        if name != "recovery_sweeper":
            self.lanes.setdefault(name, Lane(self)).put(Message(event))
            return
        if self.sweepers < FUNCTIONS_AT_ONCE:
            self.sweepers += 1
            self.note_running()
            self.crew.begin(lambda: self._sweep(event), limit_s=FUNCTION_S)

    def _sweep(self, event: Event) -> None:
        process = self._sweeper.pop() if self._sweeper else self.a_whole_process()
        process.clock.set(event)
        try:
            process.side.intake.take(event)
            self._sweeper.append(process)
        except TimeIsUp:
            self.timeouts += 1
        except Exception as exc:  # noqa: BLE001 - Lambda catches whatever a function raises
            self.errors.append(exc)
        self.sweepers -= 1

    def pump(self) -> None:
        while self.queue:
            event = self.queue.popleft()
            if self.events and (self.deliver_all or passes_rules(event)):
                self.deliver(event)
        self.crew.run()
        if self.queue:
            self.pump()

    def _check_labels(self) -> None:
        """Functions may be in the middle of it."""


class LimitedSession(Session):
    """Every call takes its time, and may be refused."""

    def __init__(self, world: QueuedWorld) -> None:
        super().__init__(world.cloud, world.account, world.wire)
        self._world = world

    def client(self, name: str, config: Any = None) -> Any:
        made = super().client(name, config)
        if isinstance(made, _Wired):
            made._client = _Limited(made._client, name, self._world.limits)
        return made


class _Limited:
    def __init__(self, client: Any, service: str, limits: Limits) -> None:
        self._client, self._service, self._limits = client, service, limits

    def __getattr__(self, action: str) -> Any:
        method = getattr(self._client, action)
        if action == "get_paginator":
            return method
        return lambda **request: self._limits.call(self._service, action, method, request, KEYS)


@contextmanager
def a_queued_world(*, knobs: Knobs | None = None) -> Iterator[QueuedWorld]:
    with a_world(knobs=knobs) as plain:
        world = QueuedWorld(plain.cloud, plain.account, plain.settings)
        plain.cloud._subscribers.remove(plain.queue.append)
        with patch.object(
            records, "time", SimpleNamespace(monotonic=plain.cloud.agenda.now, sleep=world.crew.sleep)
        ):
            yield world


def running_again(world: World) -> bool:
    """Every rank of the second attempt has been seen running."""
    job = world.job()
    return (
        job.status is JobStatus.IN_PROGRESS
        and job.attempt == 1
        and all(r.deadline is None for r in job.ranks)
    )


def _begun(world: QueuedWorld, nodes: int) -> float:
    """A job that has run for a while, with one bad node; from here on it is counted."""
    world.begin(nodes)
    world.pass_time(120)
    world.cloud.control.health("n1", 1)
    world.wire.forget()
    world.limits.forget()
    world.watch.modified_at.clear()
    world.commits = world.most_at_once = 0
    return world.cloud.agenda.now()


def _recovered(world: QueuedWorld, began: float) -> float:
    """Until all ranks run again: one recovery, and nothing that must not happen. How long it took, in seconds."""
    world.until(lambda: running_again(world), minutes=60, step=1.0)
    world.watch.check()
    assert not world.rules_broken, world.rules_broken
    return world.cloud.agenda.now() - began


def queued_recovery(nodes: int) -> QueuedWorld:
    """From the failing task's event until all ranks run again; one node is rebooted."""
    with a_queued_world() as world:
        began = _begun(world, nodes)
        world.fail_rank(0)
        _recovered(world, began)
        return world


def everybody_dies(world: QueuedWorld, nodes: int) -> float:
    """All ranks within two seconds; the seconds until all run again."""
    began = _begun(world, nodes)
    for rank in world.job().ranks:
        after = 2.0 * rank.index / nodes
        world.cloud.agenda.after(after, partial(world.cloud.control.exit_task, rank.task_id, 1))
    return _recovered(world, began)
