"""What a recovery costs in calls: it grows with the gang and with nothing else."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.events import NodeSeen
from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.queued import queued_recovery, running_again
from tests.stories.world import World, a_world


def recover(world: World, nodes: int) -> list[tuple[str, str]]:
    """The calls from the failing task's event until every rank has been seen running again."""
    world.begin(nodes)
    world.cloud.control.health("n1", 1)
    world.wire.forget()
    world.watch.modified_at.clear()
    world.fail_rank(0)
    world.until(lambda: running_again(world), minutes=30)
    return list(world.wire.calls)


def test_a_recovery_takes_eight_calls_for_each_node_twenty_for_all_and_thirteen_for_the_bad_one() -> None:
    """Three to ECS are orders: stop, check, start. The rest keeps the records, the rows and the labels.

    One of the thirteen reads the report of the node that is not healthy, three are its hand-over, one asks for its
    permit, two who else is there, six are its gate. Events that arrive together cost less than these, which come one by
    one. That the sweeper looks for new nodes each minute is no part of it.
    """
    counts = {}
    for nodes in (2, 8, 32):
        with a_world() as world:
            calls = [call for call in recover(world, nodes) if call != ("ecs", "list_container_instances")]
            counts[nodes] = len(calls)
            assert counts[nodes] <= 8 * nodes + 20 + 13, counts
    assert (counts[32] - counts[8]) / 24 <= 8, counts


def test_a_process_that_knows_nothing_finds_its_way_with_a_few_calls_more() -> None:
    """Every event meets a new process: it reads the record, and which node an instance is."""
    with a_world() as world:
        names = world.add_nodes(8)
        world.submit(names)
        world.concurrent = True
        world.cloud.control.health("n1", 1)
        world.wire.forget()
        world.fail_rank(0)
        world.until(lambda: world.job().attempt == 1 and world.job().status is JobStatus.IN_PROGRESS)
        assert len(world.wire.calls) <= 28 * 8, len(world.wire.calls)


def test_that_a_rank_runs_is_written_once_for_the_whole_gang(world: World) -> None:
    """Nobody waits for it, so the news of the first ranks are kept until the last one runs."""
    names = world.add_nodes(8)
    written: list[str] = []
    world.wire.after.append(lambda _, action, request: written.append(request.get("TableName", action)))
    world.submit(names)
    running = [event for event in world.seen if event["detail"].get("lastStatus") == "RUNNING"]
    assert len(running) == 8
    assert all(rank.deadline is None for rank in world.job().ranks)
    assert written.count("ecs_job") == 1


def test_that_a_rank_runs_is_known_within_a_minute_even_if_the_rest_never_tells(world: World) -> None:
    names = world.add_nodes(3)
    world.cloud.control.knobs(start_s=5.0)
    world.submit(names)
    first = world.task_of(0)
    world.events = False
    world.pass_time(10)
    running = next(
        e
        for e in world.cloud.control.events()
        if e["detail"].get("lastStatus") == "RUNNING" and first in e["detail"]["taskArn"]
    )
    world.deliver(running)
    assert world.job().ranks[0].deadline is not None, "it is kept in memory"
    world.new_process()
    world.tick()
    assert all(rank.deadline is None for rank in world.job().ranks)


def test_facts_that_come_together_are_committed_together(world: World) -> None:
    names = world.begin(8)
    world.wire.forget()
    gone = [NodeSeen(at=world.now(), node=name, connected=False) for name in names]
    world.side.runtime.handle("j1", gone)
    assert [action for _, action in world.wire.calls] == ["update_item"]
    assert not any(rank.connected for rank in world.job().ranks)


def test_a_recovery_orders_what_it_must_and_nothing_twice(world: World) -> None:
    calls = recover(world, 8)
    assert calls.count(("ecs", "start_task")) == 8 + 1 + 8, "checks, the gate, and the ranks"
    assert calls.count(("ecs", "stop_task")) == 7
    assert calls.count(("ssm", "send_command")) == 1
    assert calls.count(("ecs", "describe_task_definition")) <= 1
    assert ("dynamodb", "scan") not in calls


def test_an_instance_event_without_news_costs_one_read_at_most(world: World) -> None:
    world.begin(2)
    world.new_process()
    event = next(e for e in reversed(world.seen) if e["detail-type"] == "ECS Container Instance State Change")
    world.wire.forget()
    world.deliver(event)
    assert [action for _, action in world.wire.calls] == ["get_item"]
    world.wire.forget()
    world.deliver(event)
    assert world.wire.calls == []
    world.cloud.control.disconnect("n0")
    world.pass_time(0.1)
    assert not world.job().ranks[0].connected


def test_a_quiet_minute_costs_a_look_at_each_list_and_one_at_each_job(world: World) -> None:
    world.begin(2)
    world.add_nodes(2, first=2)
    world.tick()
    world.wire.forget()
    world.tick()
    actions = [action for _, action in world.wire.calls]
    # Live jobs, due jobs, another tool's jobs, nodes; now and then such jobs in each of three more states.
    assert actions.count("query") == 4 + (3 if world.now().minute % 5 == 0 else 0)
    assert sorted(action for action in actions if action != "query") == [
        "describe_container_instances",
        "describe_container_instances",
        "describe_tasks",
        "get_item",
        "list_container_instances",
    ]


@pytest.mark.parametrize("nodes", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_functions_beside_each_other_stay_below_the_account_s_limit(nodes: int) -> None:
    """While one stops the gang, others check and label its nodes. ECS lets pass a hundred at once, and 40 a second."""
    world = queued_recovery(nodes)
    assert world.watch.most_in_a_second(over=5) <= 40
    assert not world.limits.throttled
