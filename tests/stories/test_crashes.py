"""The process dies at every call of a story: whatever was half done is finished, and nothing is done twice.

Reads change nothing, so two deaths with only reads between them are one. What is left to try is the death right after
each call that writes; before the first of an invocation there is nothing to lose. The slow test dies at the reads too.
"""

from __future__ import annotations

import random

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.account import Died
from tests.stories.ends import check_end
from tests.stories.plots import BY_NAME, Plot
from tests.stories.world import World, a_world

READS = {
    "get_item",
    "batch_get_item",
    "query",
    "list_tasks",
    "describe_tasks",
    "describe_container_instances",
    "describe_task_definition",
    "list_command_invocations",
}
#: The others are the same up to the point where they part.
MAIN = [
    "gpu fault",
    "healthy GPU",
    "retry spent",
    "completion",
    "job stopped by a person",
    "task stopped by a person",
    "out of memory",
    "cannot pull",
    "doubtful success",
    "verdict replace",
    "inconclusive, then bad",
    "post-reboot check passes",
    "pre-flight passes",
    "slow reboot",
    "back with fewer GPUs",
    "spot interruption",
]


def calls_of(plot: Plot, *, reads: bool = False, events: bool = True) -> list[int]:
    """The numbers of the calls that an undisturbed run makes from the moment things go wrong."""
    with a_world(policy=plot.policy) as world:
        tell(plot, world, events=events)
        return [n for n, (_, action) in enumerate(world.wire.calls, 1) if reads or action not in READS]


def tell(plot: Plot, world: World, *, after: int = 0, before: int = 0, events: bool = True) -> None:
    plot.begin(world)
    world.wire.forget()
    world.wire.die_after, world.wire.die_before = after, before
    world.events = events
    plot.then(world)
    world.run()
    plot.end(world, told_again=world.wire.deaths)


def die(
    plot: Plot, *, after: int = 0, before: int = 0, retry_after_s: float = 0.0, events: bool = True
) -> None:
    with a_world(policy=plot.policy) as world:
        world.retry_after_s = retry_after_s
        tell(plot, world, after=after, before=before, events=events)


@pytest.mark.parametrize("name", ["gpu fault", "healthy GPU"])
def test_a_death_after_any_write_changes_no_end(name: str) -> None:
    plot = BY_NAME[name]
    for number in calls_of(plot):
        die(plot, after=number)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN[2:])
def test_a_death_after_any_write_of_any_story_changes_no_end(name: str) -> None:
    plot = BY_NAME[name]
    for number in calls_of(plot):
        die(plot, after=number)


@pytest.mark.slow
def test_a_death_before_or_after_any_call_changes_no_end() -> None:
    plot = BY_NAME["gpu fault"]
    for number in calls_of(plot, reads=True):
        die(plot, after=number)
        die(plot, before=number)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu fault", "retry spent"])
def test_a_death_whose_event_comes_again_a_minute_later_changes_no_end(name: str) -> None:
    plot = BY_NAME[name]
    for number in calls_of(plot):
        die(plot, after=number, retry_after_s=60.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu fault", "healthy GPU", "retry spent"])
def test_a_death_of_the_sweeper_changes_no_end_where_no_event_arrives(name: str) -> None:
    """Nothing but the clock is left to find what a dead process has begun."""
    plot = BY_NAME[name]
    for number in calls_of(plot, events=False):
        die(plot, after=number, events=False)


@pytest.mark.parametrize("seed", range(6))
def test_many_deaths_in_one_night_change_no_end(seed: int) -> None:
    """About one call in fifteen is the last of its process."""
    plot = BY_NAME["gpu fault"]
    chance = random.Random(seed)
    with a_world(policy=plot.policy, seed=seed) as world:
        plot.begin(world)
        world.wire.die_by_chance = lambda: chance.random() < 0.07
        plot.then(world)
        world.run()
        plot.end(world, told_again=world.wire.deaths, errors=True)
        assert world.wire.deaths


@pytest.mark.parametrize("check", [False, True])
def test_a_death_while_a_job_is_submitted_leaves_no_node_behind(check: bool) -> None:
    """Either the job is recorded and runs to its end, or it never was and the nodes are free again."""
    for number in range(1, 20):
        with a_world() as world:
            names = world.add_nodes(2)
            world.finish_attempt(0)
            world.wire.forget()
            world.wire.die_after = number
            try:
                world.submit(names, check=check)
            except Died:
                world.new_process()
            if "j1" in world.account.rows("job_table"):
                world.run()
                check_end(world, JobStatus.COMPLETE)
            else:
                world.until(lambda: set(world.node_statuses().values()) == {"AVAILABLE"})
