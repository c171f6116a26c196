"""Bad weather between AWS and us: events twice, late, out of order or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.aws.parse import WATCH_SOURCE, WATCH_TYPE
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from testbed.aws.model import Knobs
from tests.stories.arrivals import Event
from tests.stories.ends import check_end
from tests.stories.plots import BY_NAME, PLOTS, Plot
from tests.stories.world import CHECK, CLUSTER, POLICY, World, a_world, with_policy

#: These stories need nothing but the tables and the cluster to be told; the others differ in what a person does.
MAIN = [
    "gpu fault",
    "healthy GPU",
    "retry spent",
    "completion",
    "doubtful success",
    "verdict replace",
    "spot interruption",
]
SLOW_KNOBS = Knobs(check_s=5.0, reboot_s=60.0, stop_s=1.0, start_s=0.5, all_states=True, health_events=True)


@pytest.mark.parametrize("plot", PLOTS, ids=str)
def test_every_event_twice_changes_no_end(plot: Plot) -> None:
    with a_world(policy=plot.policy) as world:
        world.twice = True
        plot.tell(world)


@pytest.mark.parametrize("plot", [plot for plot in PLOTS if plot.name != "doubtful success"], ids=str)
def test_no_event_at_all_changes_no_end_only_its_time(plot: Plot) -> None:
    """A reboot that nobody ordered shows in its events alone: see `test_a_false_success_ends_no_job`."""
    with a_world(policy=plot.policy) as world:
        plot.begin(world)
        world.events = False
        plot.then(world)
        world.run()
        plot.end(world)


def test_a_false_success_ends_no_job(world: World) -> None:
    """Its reboot went unseen, so its 0 is believed. But one rank's success is not the job's, and the others notice."""
    world.begin(2)
    world.events = False
    world.cloud.control.next_reboot("n1", exit_code=0)
    world.cloud.control.reboot("n1")
    world.cloud.agenda.after(600, lambda: world.fail_rank(0))
    world.run()
    check_end(world, JobStatus.FAILED, messages=1, spontaneous=1)


def test_no_event_from_the_very_start_changes_no_end() -> None:
    plot = BY_NAME["gpu fault"]
    with a_world() as world:
        world.events = False
        plot.tell(world)


@pytest.mark.parametrize("plot", PLOTS, ids=str)
def test_everything_that_ecs_can_send_changes_no_end(plot: Plot) -> None:
    """Also states on the way, every instance event, and instance health, which the rules would keep away."""
    with a_world(policy=plot.policy, knobs=SLOW_KNOBS) as world:
        world.deliver_all = True
        plot.tell(world)


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.parametrize("seed", range(3))
def test_events_that_overtake_each_other_change_no_end(name: str, seed: int) -> None:
    plot = BY_NAME[name]
    with a_world(policy=plot.policy, seed=seed) as world:
        world.cloud.control.weather(reorder_s=8.0, duplicate=0.3, late=0.3, late_s=100.0)
        plot.tell(world)


@pytest.mark.parametrize("name", [name for name in MAIN if name != "doubtful success"])
@pytest.mark.parametrize("seed", range(3))
def test_half_of_the_events_lost_change_no_end(name: str, seed: int) -> None:
    plot = BY_NAME[name]
    with a_world(policy=plot.policy, seed=seed) as world:
        world.cloud.control.weather(drop=0.5, delay=0.3, delay_s=150.0)
        plot.tell(world)


def events_of(plot: Plot) -> int:
    """How many events the handlers are given after things went wrong, the clock's not counted."""
    with a_world(policy=plot.policy) as world:
        plot.begin(world)
        world.seen.clear()
        plot.then(world)
        world.run()
        return sum(event["source"] != "aws.scheduler" for event in world.seen)


def disturb(plot: Plot, act: Callable[[World, int, Event], None]) -> None:
    """`act` decides what becomes of each event; it is told how many came before."""
    with a_world(policy=plot.policy) as world:
        plot.begin(world)
        deliver, count = world.deliver, iter(range(10_000))

        def instead(event: Event, tries: int = 0) -> None:
            if event["source"] == "aws.scheduler":
                deliver(event, tries)
            else:
                act(world, next(count), event)

        world.deliver = instead  # type: ignore[method-assign]
        plot.then(world)
        world.run()
        plot.end(world)


def test_news_of_a_reboot_that_comes_after_the_restart_casts_no_doubt_on_the_next_task() -> None:
    """An old event of the node leads to the proof, and only then it is told how the node went down and came up."""
    with a_world(policy=with_policy(post_reboot_check=False)) as world:
        world.begin(2)
        world.cloud.control.knobs(reboot_s=5)
        world.cloud.control.health("n1", 1)
        arn, deliver = world.cloud.control.node("n1")["arn"], world.deliver
        told: list[Event] = []
        kept: list[Event] = []

        def instead(event: Event, tries: int = 0) -> None:
            reboots = world.job().ranks[1].node_status is NodeStatus.REBOOTING
            if event["source"] == "aws.ssm" or event["detail"].get("containerInstanceArn") != arn:
                return None if event["source"] == "aws.ssm" else deliver(event, tries)
            (kept if reboots else told).append(event)
            return None if reboots else deliver(event, tries)

        world.deliver = instead  # type: ignore[method-assign]
        world.fail_rank(0)
        world.pass_time(20)
        assert world.cloud.control.node("n1")["boots"] == 2
        world.new_process()
        deliver([event for event in told if "agentConnected" in event["detail"]][-1])
        assert world.job().status is not JobStatus.PENDING_RESTART
        for event in kept:
            deliver(event)
        assert not world.job().ranks[1].doubted


@pytest.mark.parametrize(
    "name",
    [
        "gpu fault",
        *(pytest.param(name, marks=pytest.mark.slow) for name in MAIN[1:] if name != "doubtful success"),
    ],
)
def test_any_single_event_lost_changes_no_end(name: str) -> None:
    plot = BY_NAME[name]
    for lost in range(events_of(plot)):
        disturb(
            plot, lambda world, number, event, lost=lost: None if number == lost else world.untouched(event)
        )


@pytest.mark.parametrize("later_s", [20.0, 70.0, pytest.param(400.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["gpu fault", *(pytest.param(name, marks=pytest.mark.slow) for name in MAIN[1:])]
)
def test_every_event_again_and_again_in_later_phases_changes_no_end(name: str, later_s: float) -> None:
    """What the first attempt said comes once more while nodes are examined, reboot, or run the second."""

    def twice(world: World, number: int, event: Event) -> None:
        world.untouched(event)
        world.cloud.agenda.after(later_s, lambda: world.late.append((event, 3)))

    disturb(BY_NAME[name], twice)


@pytest.mark.parametrize("order", [1, -1])
def test_news_of_a_reboot_that_comes_after_the_restart_spoils_no_success(world: World, order: int) -> None:
    """The node went away before the attempt began: what was heard too late says nothing about this one."""
    held: list[Event] = []
    deliver = world.deliver

    def instead(event: Event, tries: int = 0) -> None:
        if event["detail-type"] == "ECS Container Instance State Change":
            held.append(event)
        else:
            deliver(event, tries)

    world.begin(2)
    world.cloud.control.health("n1", 1)
    world.cloud.control.next_reboot("n1", seconds=5)  # over before the sweeper looks
    world.deliver = instead  # type: ignore[method-assign]
    world.fail_rank(0)
    world.until(lambda: [t["lastStatus"] for t in world.tasks(live=True)] == ["RUNNING"] * 2, step=1.0)
    assert world.job().attempt == 1
    world.deliver = deliver  # type: ignore[method-assign]
    assert any(not event["detail"]["agentConnected"] for event in held)
    for event in held[::order]:
        world.deliver(event)
    assert world.job().ranks[1].connected
    for rank in (0, 1):
        world.fail_rank(rank, 0)
    world.run()
    check_end(world, JobStatus.COMPLETE, attempt=1)


@pytest.mark.parametrize("name", MAIN)
def test_a_whole_night_told_again_changes_nothing(name: str) -> None:
    """Every event of the story comes once more after its end, oldest first, and then newest first."""
    plot = BY_NAME[name]
    with a_world(policy=plot.policy) as world:
        plot.tell(world)
        told = [event for event in world.seen if event["source"] != "aws.scheduler"]
        before, rows = world.job(), world.account.rows("task_table")
        started = world.sent("StartTask")
        for event in (*told, *reversed(told)):
            world.deliver(event)
        world.pass_time(200)
        world.tick()
        assert replace(world.job(), version=before.version) == before
        assert world.account.rows("task_table") == rows
        assert world.sent("StartTask") == started
        plot.end(world)


@pytest.mark.parametrize("name", ["gpu fault", "retry spent"])
def test_answers_that_lag_behind_change_no_end(name: str) -> None:
    """Right after a start, ECS may not show the task yet; the sweeper comes at that moment too."""
    plot = BY_NAME[name]
    with a_world(policy=plot.policy) as world:
        plot.begin(world)
        world.pass_time(10)
        world.cloud.control.knobs(read_lag_s=8.0)
        plot.then(world)
        for _ in range(150):
            world.pass_time(1)
            world.tick()
        world.run()
        plot.end(world)


def test_a_night_without_sweeper_and_events_is_made_up_for(world: World) -> None:
    """Two hours later ECS has forgotten the task that failed. Nobody knows how it ended: its node counts as lost."""
    world.begin(2)
    world.finish_attempt(1)
    world.events = False
    world.fail_rank(0)
    world.pass_time(2 * 3600)
    world.run()
    check_end(world, JobStatus.COMPLETE, attempt=1)


@pytest.mark.parametrize("limit", [100, 4], ids=["a short timeline", "one that is archived"])
def test_a_node_whose_clock_jumped_ahead_holds_up_no_job(limit: int) -> None:
    """Its watch tells of a fault in a year. Every wait of the recovery is as long as ever."""
    with a_world(policy=with_policy(timeline_limit=limit)) as world:
        world.begin(2)
        world.cloud.control.script(node="n1", family=CHECK, times=None)  # it never answers
        said = {
            "cluster": CLUSTER,
            "node": "n1",
            "what": "Xid 79 on GPU 0000:01:00",
            "evidence": "NVRM: Xid 79",
        }
        ahead = (world.now() + timedelta(days=365)).isoformat()
        world.deliver(
            {
                "source": WATCH_SOURCE,
                "detail-type": WATCH_TYPE,
                "time": ahead,
                "resources": [],
                "detail": said,
            }
        )
        assert any("Xid 79" in entry.evidence for entry in world.job().timeline)
        world.fail_rank(0)
        began = world.now()
        world.run()
        assert world.now() - began < 3 * POLICY.check_timeout
        check_end(world, JobStatus.FAILED, messages=1)
        assert world.job().updated_at <= world.now()
