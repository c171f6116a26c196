"""A neighbour who may run tasks and register machines on the cluster: no verdict, no reboot, no end is taken from him.

In every state of a job, whatever he can choose is chosen badly; and the true story goes on as if nobody had spoken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus
from tests.stories import forgeries
from tests.stories.arrivals import Event
from tests.stories.plots import completes, gpu_fault
from tests.stories.world import World, a_world

START, STOP, SEND = ("ecs", "start_task"), ("ecs", "stop_task"), ("ssm", "send_command")


def starts_are_awaited(world: World) -> None:
    world.wire.fail_all[START] = "ThrottlingException"
    world.begin(2)


def runs(world: World) -> None:
    world.begin(2)


def stops_are_awaited(world: World) -> None:
    world.begin(2)
    world.wire.fail_all[STOP] = "ThrottlingException"
    world.fail_rank(0)
    world.pass_time(5)


def first_checks_are_awaited(world: World) -> None:
    names = world.add_nodes(2)
    world.wire.fail_all[START] = "ThrottlingException"
    world.submit(names, check=True)


def checks_are_awaited(world: World) -> None:
    world.begin(2)
    world.wire.fail_all[START] = "ThrottlingException"
    world.fail_rank(0)
    world.pass_time(5)


def checks_run(world: World) -> None:
    world.begin(2)
    world.cloud.control.knobs(check_s=6000)
    world.fail_rank(0)
    world.pass_time(5)


def a_reboot_is_awaited(world: World) -> None:
    world.begin(2)
    world.wire.fail_all[SEND] = "ThrottlingException"
    gpu_fault(world)
    world.until(lambda: world.job().status is JobStatus.PENDING_RESTART)


def a_reboot_is_under_way(world: World) -> None:
    world.begin(2)
    world.cloud.control.next_reboot("n1", seconds=1200)
    gpu_fault(world)
    world.until(lambda: world.job().status is JobStatus.PENDING_RESTART)
    world.pass_time(60)


def second_starts_are_awaited(world: World) -> None:
    a_reboot_is_under_way(world)
    world.until(lambda: world.side.store.node("n1").check_id != "", step=1.0)  # its gate
    world.wire.fail_all[START] = "ThrottlingException"
    world.until(lambda: world.job().status is JobStatus.RESTARTING)


def completed(world: World) -> None:
    world.begin(2)
    completes(world)
    world.run()


def failed(world: World) -> None:
    world.begin(2)
    world.fail_rank(0)
    world.run()


def stopped(world: World) -> None:
    world.begin(2)
    world.stop()
    world.run()


STATES: dict[str, tuple[Callable[[World], None], JobStatus]] = {
    "its starts are awaited": (starts_are_awaited, JobStatus.IN_PROGRESS),
    "it runs": (runs, JobStatus.IN_PROGRESS),
    "its stops are awaited": (stops_are_awaited, JobStatus.PENDING_HEALTHCHECK),
    "its first checks are awaited": (first_checks_are_awaited, JobStatus.PENDING_HEALTHCHECK),
    "its checks are awaited": (checks_are_awaited, JobStatus.PENDING_HEALTHCHECK),
    "its checks run": (checks_run, JobStatus.PENDING_HEALTHCHECK),
    "a reboot is awaited": (a_reboot_is_awaited, JobStatus.PENDING_RESTART),
    "a reboot is under way": (a_reboot_is_under_way, JobStatus.PENDING_RESTART),
    "its second starts are awaited": (second_starts_are_awaited, JobStatus.RESTARTING),
    "it is complete": (completed, JobStatus.COMPLETE),
    "it has failed": (failed, JobStatus.FAILED),
    "it was stopped": (stopped, JobStatus.USER_STOPPED),
}


def test_there_is_a_story_for_every_state_of_a_job() -> None:
    assert {status for _, status in STATES.values()} == set(JobStatus)


def told(job: Job) -> object:
    """All that is decided by; not what is only written down."""
    orders = {order.key for order in job.outbox if "/ghost/" not in order.key and "/labels/" not in order.key}
    return replace(job, timeline=(), outbox=(), version=0, updated_at=job.created_at), orders


def acted(world: World) -> list[int]:
    return [world.sent(action) for action in ("StartTask", "StopTask", "SendCommand")]


def forged(world: World) -> Iterator[tuple[str, Event, bool]]:
    job, at = world.job(), world.now().isoformat()
    yield from forgeries.tasks(job, at)
    for what, event in (*forgeries.instances(job, at), *forgeries.others(job, at)):
        yield what, event, False


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("state", STATES)
def test_nothing_is_taken_from_a_neighbour_while(
    state: str, every: int, record_property: Callable[[str, object], None]
) -> None:
    """What carries the true token is stopped as one of ours too many; it is his own. A fault that he makes up has a
    node examined that is free, or only waits for others, and no more."""
    begin, status = STATES[state]
    with a_world() as world:
        begin(world)
        before, calls, nodes, ghosts = told(world.job()), acted(world), world.node_statuses(), 0
        assert world.job().status is status
        made = list(forged(world))[::every]
        idle = status.final or status is JobStatus.PENDING_RESTART
        record_property("forgeries", len(made))
        world.clock.set({"time": world.now().isoformat()})
        for what, event, may_be_stopped in made:
            world.side.intake.take(event)
            job = world.job()
            if idle and what == "a fault":
                assert job.status is status, what
                before = told(job)
            assert told(job) == before, what
            ours_too_many = sum("/ghost/" in order.key for order in job.outbox)
            assert may_be_stopped or ours_too_many == ghosts, what
            ghosts = ours_too_many
            calls[1] = world.sent("StopTask") if may_be_stopped else calls[1]
            calls[0] = world.sent("StartTask") if idle and what == "a fault" else calls[0]
            assert acted(world) == calls, what
        changed = {now for name, now in world.node_statuses().items() if now != nodes[name]}
        assert changed <= ({"PENDING_HEALTHCHECK"} if idle else set())
        assert world.rules_broken == []


def test_a_cron_task_of_another_family_on_another_node_gets_no_healthy_node_rebooted(world: World) -> None:
    """As it was done: the marks of a check in its overrides, exit code 1, and first to answer."""
    checks_are_awaited(world)
    job, at = world.job(), world.now().isoformat()
    for what, event, _ in forgeries.tasks(job, at):
        if "check STOPPED (1" in what and ("all" in what or "token 'cron'" in what):
            world.deliver(event)
    del world.wire.fail_all[START]
    ended = world.run()
    assert ended.status is JobStatus.FAILED
    assert "no GPU fault found" in ended.outcome
    assert world.sent("SendCommand") == 0
    assert any("ignored a task" in entry.why for entry in ended.timeline)


def test_the_job_of_another_stack_with_the_same_id_is_left_alone(world: World) -> None:
    """Both hear of all tasks of the cluster. Neither takes the other's for its own, or stops them."""
    world.begin(2)
    with a_world() as neighbour:
        neighbour.begin(2)
        theirs = neighbour.cloud.control.events()
        stops = world.sent("StopTask")
        before = told(world.job())
        for event in theirs:
            if event["detail-type"] == "ECS Task State Change":
                world.side.intake.take(event)
        assert told(world.job()) == before
        assert world.sent("StopTask") == stops


def test_a_check_that_a_person_asked_for_is_answered_by_nobody_else(world: World) -> None:
    (name,) = world.add_nodes(1)
    world.submit([name])
    job = world.job()
    completes(world)
    world.run()
    world.wire.fail_all[START] = "ThrottlingException"
    ask = NodeAsked(at=world.now(), node=name, ask="check", by="ann", why="to see")
    world.side.runtime.handle_node(name, [ask])
    node = world.side.store.node(name)
    tries = replace(job, ranks=(replace(job.ranks[0], check_try=node.check_try - 1),))
    for what, event, _ in forgeries.tasks(tries, world.now().isoformat()):
        world.side.intake.take(event)
        assert world.side.store.node(name).status is NodeStatus.PENDING_HEALTHCHECK, what
