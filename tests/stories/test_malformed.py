"""Malformed events of every kind: no exception, no change to any job, a clear answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ecs_gpu_recovery.aws.parse import parse_event
from ecs_gpu_recovery.core.model import Job, JobStatus
from tests.stories.arrivals import Event
from tests.stories.malformed import NOT_EVENTS, noisy, one_of_each, spoiled
from tests.stories.plots import gpu_fault
from tests.stories.world import World, a_world

KINDS = (
    "ECS Task State Change",
    "ECS Container Instance State Change",
    "ECS Container Instance Health Change",
    "EC2 Command Status-change Notification",
    "EC2 Command Invocation Status-change Notification",
)


def a_night() -> list[Event]:
    """One event of every kind and status, from a recovery that went well."""
    with a_world() as world:
        world.begin(2)
        world.cloud.control.impair("n1")
        gpu_fault(world)
        world.run()
        return one_of_each(world.cloud.control.events())


NIGHT = a_night()


def test_the_night_has_events_of_every_kind() -> None:
    assert {event["detail-type"] for event in NIGHT} == set(KINDS)


def test_what_is_no_event_is_answered(world: World, record_property: Callable[[str, object], None]) -> None:
    record_property("bad_inputs", len(NOT_EVENTS))
    for thing in NOT_EVENTS:
        answer = world.side.intake.take(thing)
        assert (answer.taken, answer.kind) == (False, "malformed")
        assert len(answer.why) > 10


def told(job: Job) -> Job:
    """What may change by being looked at: only that and when it was seen."""
    ranks = tuple(
        replace(r, seen_version=0, away_since=None, connected=True, gpus_seen=None, doubted=False)
        for r in job.ranks
    )
    return replace(job, ranks=ranks, timeline=(), version=0, updated_at=job.created_at, outbox=())


@pytest.mark.parametrize(
    "event",
    NIGHT,
    ids=lambda e: f"{e['detail-type']} {e['detail'].get('lastStatus') or e['detail'].get('status') or ''}",
)
def test_a_spoiled_event_never_raises_and_moves_no_job(
    event: Event, record_property: Callable[[str, object], None]
) -> None:
    """They are told to a world in which the job they came from still runs its first attempt."""
    with a_world() as world:
        world.begin(2)
        before = told(world.job())
        calls = world.sent("StartTask"), world.sent("SendCommand")
        whole = world.side.intake.take
        record_property("bad_inputs", sum(1 for _ in spoiled(event)))
        for what, made in spoiled(event):
            answer = whole(made)
            assert answer.why, what
            assert told(world.job()) == before, what
        assert (world.sent("StartTask"), world.sent("SendCommand")) == calls
        assert not world.rules_broken


def test_noise_around_an_event_changes_nothing_about_it(
    record_property: Callable[[str, object], None],
) -> None:
    made = [(event, what, odd) for event in NIGHT for what, odd in noisy(event)]
    record_property("bad_inputs", len(made))
    for event, what, odd in made:
        assert parse_event(odd, cluster="gpus") == parse_event(event, cluster="gpus"), what


def test_a_task_with_more_containers_than_ecs_allows_is_still_understood(world: World) -> None:
    """None of them is ours, so nothing follows from their ends."""
    world.begin(2)
    before = told(world.job())
    ended = next(e for e in NIGHT if e["detail"].get("lastStatus") == "STOPPED")
    crowd = [{"name": f"c{i}", "exitCode": i % 256, "reason": "r" * 30} for i in range(2500)]
    answer = world.side.intake.take(ended | {"detail": ended["detail"] | {"containers": crowd}})
    assert answer.why
    assert told(world.job()) == before


def test_a_spoiled_end_of_a_running_task_never_raises_and_never_completes_the_job() -> None:
    """What is left of it may still be true. It may start an examination; it may not end the job as a success."""
    with a_world() as world:
        world.begin(2)
        world.fail_rank(0)
        world.pass_time(0.1)
        ended = next(e for e in reversed(world.seen) if e["detail"].get("lastStatus") == "STOPPED")
    for number, (what, made) in enumerate(spoiled(ended)):
        if number % 6 == 0:
            with a_world() as world:
                world.begin(2)
                assert world.side.intake.take(made).why, what
                assert world.job().status in (JobStatus.IN_PROGRESS, JobStatus.PENDING_HEALTHCHECK), what
                assert not world.rules_broken
                world.watch.check()
