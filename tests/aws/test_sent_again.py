"""Orders that are sent again after their sender died: what it started may have ended since."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.account import Died
from tests.stories.ends import check_end
from tests.stories.world import CLUSTER, World, a_world


def a_sender_that_dies_after_its_start(world: World, ended_before: int = 0) -> str:
    """The task runs; no record knows it, and no event will tell."""
    names = world.add_nodes(1)
    failing_daemon(world, names[0], ended_before)
    world.wire.forget()
    world.events = False
    world.wire.die_after = next(
        number for number, (_, action) in enumerate(_calls_of_a_submission(), 1) if action == "start_task"
    )
    with pytest.raises(Died):
        world.submit(names)
    world.new_process()
    world.wire.die_after = 0
    world.pass_time(5)
    assert not world.task_of(0)
    (task,) = world.tasks()
    return str(task["taskArn"])


def failing_daemon(world: World, node: str, times: int) -> None:
    """Something that somebody keeps starting on the node, and that ends at once."""
    ecs, control = world.cloud.client("ecs"), world.cloud.control
    ecs.register_task_definition(
        family="daemon", containerDefinitions=[{"name": "d", "image": "d:1", "memory": 8}]
    )
    for _ in range(times):
        (task,) = ecs.start_task(
            cluster=CLUSTER, taskDefinition="daemon", containerInstances=[control.node(node)["arn"]]
        )["tasks"]
        world.cloud.advance(1)
        assert control.exit_task(task["taskArn"].rpartition("/")[2], 1)
    world.cloud.advance(1)


def _calls_of_a_submission() -> list[tuple[str, str]]:
    with a_world() as world:
        names = world.add_nodes(1)
        world.wire.forget()
        world.submit(names)
        return list(world.wire.calls)


@pytest.mark.parametrize("ended_before", [0, 120])
def test_a_task_that_ended_before_its_start_was_recorded_is_found_and_not_started_again(
    ended_before: int,
) -> None:
    """Even among more than ECS tells in one answer."""
    with a_world() as world:
        arn = a_sender_that_dies_after_its_start(world, ended_before)
        assert world.cloud.control.exit_task(arn.rpartition("/")[2], 0, "")
        assert world.run().status is JobStatus.COMPLETE
        assert len(world.tasks()) == 1, "it was started once"
        check_end(world, JobStatus.COMPLETE)


def test_a_task_that_still_runs_is_found_first() -> None:
    with a_world() as world:
        arn = a_sender_that_dies_after_its_start(world)
        world.until(lambda: bool(world.task_of(0)), minutes=15)
        assert world.task_of(0) == arn.rpartition("/")[2]
        assert len(world.tasks()) == 1
