"""The process dies at every call of a story: whatever was half done is finished, and nothing is done twice.

Reads change nothing, so two deaths with only reads between them are one. What is left to try is the death right after
each call that writes; before the first of an invocation there is nothing to lose. The slow test dies at the reads too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

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
Recorder = Callable[[str, object], None]
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
    lost = world.invocations == 1  # then the event of a dead process is a dead letter
    plot.end(world, told_again=world.wire.deaths, errors=lost)


def die(
    plot: Plot,
    *,
    after: int = 0,
    before: int = 0,
    retry_after_s: float = 0.0,
    events: bool = True,
    invocations: int = 3,
) -> None:
    with a_world(policy=plot.policy) as world:
        world.retry_after_s, world.invocations = retry_after_s, invocations
        tell(plot, world, after=after, before=before, events=events)
        assert world.wire.deaths == 1, "the story ended before the call at which it should have died"


def gang(size: int) -> Plot:
    """The same story, told of more nodes. One that waits for its turn is not the first to be examined."""
    return replace(BY_NAME["gpu fault"], name=f"gpu fault of {size}", nodes=size)


@pytest.mark.parametrize("name", ["gpu fault", "healthy GPU"])
def test_a_death_after_any_write_changes_no_end(name: str, record_property: Recorder) -> None:
    plot = BY_NAME[name]
    points = calls_of(plot)
    record_property("crash_points", len(points))
    for number in points:
        die(plot, after=number)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN[2:])
def test_a_death_after_any_write_of_any_story_changes_no_end(name: str, record_property: Recorder) -> None:
    plot = BY_NAME[name]
    points = calls_of(plot)
    record_property("crash_points", len(points))
    for number in points:
        die(plot, after=number)


@pytest.mark.slow
def test_a_death_before_or_after_any_call_changes_no_end(record_property: Recorder) -> None:
    plot = BY_NAME["gpu fault"]
    points = calls_of(plot, reads=True)
    record_property("crash_points", 2 * len(points))
    for number in points:
        die(plot, after=number)
        die(plot, before=number)


@pytest.mark.slow
def test_a_death_before_or_after_any_call_of_a_gang_of_8_changes_no_end(record_property: Recorder) -> None:
    plot = gang(8)
    points = calls_of(plot, reads=True)
    record_property("crash_points", 2 * len(points))
    for number in points:
        die(plot, after=number)
        die(plot, before=number)


@pytest.mark.slow
def test_a_death_at_some_calls_of_a_gang_of_32_changes_no_end(record_property: Recorder) -> None:
    plot = gang(32)
    points = random.Random(32).sample(calls_of(plot, reads=True), 16)
    record_property("crash_points", len(points))
    for number in points:
        die(plot, after=number)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu fault", "retry spent"])
def test_a_death_whose_event_comes_again_a_minute_later_changes_no_end(
    name: str, record_property: Recorder
) -> None:
    plot = BY_NAME[name]
    points = calls_of(plot)
    record_property("crash_points", len(points))
    for number in points:
        die(plot, after=number, retry_after_s=60.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu fault", "healthy GPU"])
def test_a_death_whose_event_never_comes_again_changes_no_end(name: str, record_property: Recorder) -> None:
    """Neither Lambda nor a person sends it a second time; the sweeper and the events of others remain."""
    plot = BY_NAME[name]
    points = calls_of(plot)
    record_property("crash_points", len(points))
    for number in points:
        die(plot, after=number, invocations=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu fault", "healthy GPU", "retry spent"])
def test_a_death_of_the_sweeper_changes_no_end_where_no_event_arrives(
    name: str, record_property: Recorder
) -> None:
    """Nothing but the clock is left to find what a dead process has begun."""
    plot = BY_NAME[name]
    points = calls_of(plot, events=False)
    record_property("crash_points", len(points))
    for number in points:
        die(plot, after=number, events=False)


@pytest.mark.parametrize("seed", range(6))
def test_many_deaths_in_one_night_change_no_end(seed: int, record_property: Recorder) -> None:
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
        record_property("crash_points", world.wire.deaths)


@pytest.mark.parametrize("check", [False, True])
def test_a_death_while_a_job_is_submitted_leaves_no_node_behind(
    check: bool, record_property: Recorder
) -> None:
    """Either the job is recorded and runs to its end, or it never was and the nodes are free again."""
    deaths = 0
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
            deaths += world.wire.deaths
    record_property("crash_points", deaths)
