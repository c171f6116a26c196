"""The process dies at every call of a story: whatever was half done is finished, and nothing is done twice.

Reads change nothing, so two deaths with only reads between them are one. What is left to try is the death right after
each call that writes; before the first of an invocation there is nothing to lose. The slow test dies at the reads too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from tests.stories.account import Died
from tests.stories.ends import check_end
from tests.stories.plots import BY_NAME, Plot
from tests.stories.world import World, a_world, with_policy

READS = {
    "get_item",
    "batch_get_item",
    "query",
    "list_tasks",
    "describe_tasks",
    "list_container_instances",
    "describe_container_instances",
    "describe_instance_information",
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


@dataclass(frozen=True, kw_only=True)
class Deaths:
    """A story that is told once for each point at which its process can die."""

    plot: Plot
    reads: bool = False  #: also at the calls that only read, and right before each call
    some: int = 0  #: so many points of all, drawn
    events: bool = True  #: else nothing but the clock is left to find what a dead process has begun
    how: Mapping[str, float] = field(default_factory=dict)

    def happen(self) -> int:
        """How many."""
        points = calls_of(self.plot, reads=self.reads, events=self.events)
        points = random.Random(self.some).sample(points, self.some) if self.some else points
        ways = ("after", "before") if self.reads and not self.some else ("after",)
        for number, way in product(points, ways):
            die(self.plot, events=self.events, **{way: number}, **self.how)  # type: ignore[arg-type]
        return len(points) * len(ways)


QUICK = {f"after a write: {name}": Deaths(plot=BY_NAME[name]) for name in MAIN[:2]}
LONG = {
    **{f"after a write: {name}": Deaths(plot=BY_NAME[name]) for name in MAIN[2:]},
    "at any call": Deaths(plot=BY_NAME["gpu fault"], reads=True),
    "at any call of a gang of 8": Deaths(plot=gang(8), reads=True),
    "at some calls of a gang of 32": Deaths(plot=gang(32), reads=True, some=16),
    **{
        f"its event comes again a minute later: {name}": Deaths(
            plot=BY_NAME[name], how={"retry_after_s": 60.0}
        )
        for name in ("gpu fault", "retry spent")
    },
    # Neither Lambda nor a person sends it a second time; the sweeper and the events of others remain.
    **{
        f"its event never comes again: {name}": Deaths(plot=BY_NAME[name], how={"invocations": 1})
        for name in ("gpu fault", "healthy GPU")
    },
    **{
        f"of the sweeper, and no event arrives: {name}": Deaths(plot=BY_NAME[name], events=False)
        for name in ("gpu fault", "healthy GPU", "retry spent")
    },
}


@pytest.mark.parametrize(
    "deaths",
    [*QUICK.values(), *(pytest.param(one, marks=pytest.mark.slow) for one in LONG.values())],
    ids=[*QUICK, *LONG],
)
def test_a_death_changes_no_end(deaths: Deaths, record_property: Recorder) -> None:
    record_property("crash_points", deaths.happen())


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


@dataclass(frozen=True, kw_only=True)
class Admission:
    """A machine joins, is seen for the first time, examined, repaired if need be, and is free, whoever dies."""

    health: int = 0  #: what its first check says
    events: bool = True  #: else nobody but the sweeper meets it
    ends: NodeStatus = NodeStatus.AVAILABLE

    def happens(self, *, after: int = 0) -> tuple[list[int], list[str], int]:
        """The calls that write, what its timeline tells, and how often a process died."""
        with a_world(policy=with_policy(admission_check=True, post_reboot_check=True)) as world:
            world.events, world.wire.die_after = self.events, after
            world.joins("n0", health=self.health)
            world.until(lambda: self._over(world), minutes=60)
            world.watch.check()
            node = world.records().node("n0")
            assert node.deadline is None
            assert not world.tasks("check", live=True)
            bad, told = self.ends is NodeStatus.FAILED, len(world.messages())
            assert bad <= told <= (1 + world.wire.deaths) * bad, world.messages()
            calls = [n for n, (_, action) in enumerate(world.wire.calls, 1) if action not in READS]
            return calls, [f"{entry.after} {entry.why}" for entry in node.timeline], world.wire.deaths

    def _over(self, world: World) -> bool:
        node = next(iter(world.records().nodes()), None)
        if node is None or node.status is not self.ends or node.outbox:
            return False
        return node.verdict is not None  # it is not free before it was examined


@pytest.mark.parametrize(
    "admission",
    [
        pytest.param(Admission(), id="healthy"),
        pytest.param(Admission(events=False), id="healthy, met by the sweeper"),
        pytest.param(Admission(health=1), id="repaired first"),
        pytest.param(Admission(health=1, events=False), id="repaired first, met by the sweeper"),
        pytest.param(Admission(health=2, ends=NodeStatus.FAILED), id="for a person"),
    ],
)
def test_a_death_while_a_machine_is_admitted_changes_no_end(
    admission: Admission, record_property: Recorder
) -> None:
    points, story, _ = admission.happens()
    ends = [admission.happens(after=number) for number in points]
    assert [told for _, told, _ in ends] == [story] * len(points)
    assert {deaths for _, _, deaths in ends} == {1}
    record_property("crash_points", len(points))
