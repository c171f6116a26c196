"""What a recovery costs in calls: it grows with the gang and with nothing else."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.ends import check_end
from tests.stories.world import World, a_world


def recover(world: World, nodes: int) -> list[tuple[str, str]]:
    """The calls from the failing task's event until every rank has been seen running again."""
    world.begin(nodes)
    world.cloud.control.health("n1", 1)
    world.wire.forget()
    world.watch.modified_at.clear()
    world.fail_rank(0)

    def running() -> bool:
        job = world.job()
        return (
            job.status is JobStatus.IN_PROGRESS
            and job.attempt == 1
            and all(r.deadline is None for r in job.ranks)
        )

    world.until(running, minutes=30)
    return list(world.wire.calls)


def test_a_recovery_takes_a_dozen_calls_for_each_node_and_a_few_for_all() -> None:
    """Three to ECS are orders: stop, check, start. The rest keeps the record, the rows and the labels."""
    counts = {}
    for nodes in (2, 8, 32):
        with a_world() as world:
            counts[nodes] = len(recover(world, nodes))
            assert counts[nodes] <= 12 * nodes + 50, counts
    assert (counts[32] - counts[8]) / 24 <= 12, counts


def test_a_recovery_orders_what_it_must_and_nothing_twice(world: World) -> None:
    calls = recover(world, 8)
    assert calls.count(("ecs", "start_task")) == 16
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
    assert [action for _, action in world.wire.calls] == [
        "query",
        "get_item",
    ]  # a new process asks for the name first
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
    # Live, due, overdue and stray jobs (by each of four states), nodes and due nodes.
    assert actions.count("query") == 9
    assert sorted(action for action in actions if action != "query") == [
        "describe_container_instances",
        "describe_container_instances",
        "describe_tasks",
        "get_item",
    ]


@pytest.mark.parametrize("nodes", [8, pytest.param(32, marks=pytest.mark.slow)])
def test_a_process_for_every_event_stays_below_the_account_s_limit(nodes: int) -> None:
    """No process knows of the others; while one stops the gang at its pace, others check and label each node."""
    with a_world() as world:
        world.finish_attempt(1, after_s=300)
        world.concurrent = True
        recover(world, nodes)
        assert world.watch.most_in_a_second() <= 40
        world.run()
        check_end(world, JobStatus.COMPLETE, attempt=1)
