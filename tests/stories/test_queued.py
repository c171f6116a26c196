"""Gangs behind the deployment's queues, within the limits of DynamoDB, ECS, Lambda and SQS, in virtual time."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.aws.queues import TRIES
from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.queued import VISIBLE_AFTER_S, Process, a_queued_world, everybody_dies, queued_recovery


@pytest.mark.parametrize("nodes", [2, 48, pytest.param(1024, marks=pytest.mark.slow)])
def test_all_ranks_die_within_two_seconds_and_it_is_one_recovery(nodes: int) -> None:
    """No event becomes a dead letter, no function runs out of time, and few run at once."""
    with a_queued_world() as world:
        everybody_dies(world, nodes)
        assert (world.dead_letters, world.timeouts, world.errors) == ([], 0, [])
        assert (world.job().attempt, sum(world.watch.reboots.values())) == (1, 1)
        assert world.most_at_once <= 8


def test_what_arrives_together_is_written_together() -> None:
    """A gang four times as large takes a few commits more, not four times as many."""
    small, large = queued_recovery(8), queued_recovery(32)
    assert large.commits <= 1.5 * small.commits
    assert len(large.wire.calls) - len(small.wire.calls) <= 6 * 24


def test_an_event_that_nobody_can_handle_is_a_dead_letter_in_the_end_and_spoils_no_other() -> None:
    """Every function fails on whatever tells of one task. The sweeper learns of it from the cluster."""
    with a_queued_world() as world:
        world.begin(4)
        world.pass_time(10)
        world.lanes.clear()
        bad, whole = world.task_of(0), world.a_whole_process

        def spoiled() -> Process:
            process = whole()
            route = process.side.intake._route
            process.side.intake._route = lambda seen: 1 // 0 if seen.task_id == bad else route(seen)  # type: ignore[assignment,method-assign]
            return process

        world.a_whole_process = spoiled  # type: ignore[method-assign]
        world.fail_rank(2)
        world.run(minutes=60)
        world.pass_time(TRIES * VISIBLE_AFTER_S)
        assert {event["detail"]["taskArn"].rpartition("/")[2] for event in world.dead_letters} == {bad}
        assert world.job().status is JobStatus.FAILED
