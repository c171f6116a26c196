"""One record that nobody can read, or that a sweep stumbles over: all else goes on, and a person is told once."""

from __future__ import annotations

from typing import Any

import pytest

from ecs_gpu_recovery.aws.adopt import StoreAdopter
from ecs_gpu_recovery.aws.upkeep import Upkeep
from ecs_gpu_recovery.core.model import Job, JobStatus
from tests.stories.ends import check_end
from tests.stories.other_tool import OtherTool
from tests.stories.world import World


def damage(world: World, role: str, key: str) -> dict[str, Any]:
    """What stood there before."""
    table = world.account.tables[role]
    name = "job_id" if role == "job_table" else "node_name"
    client = world.account.client("dynamodb")
    item = dict(client.get_item(TableName=table, Key={name: {"S": key}}, ConsistentRead=True)["Item"])
    world.account.write(role, item | {"record": {"S": '{"id": 5'}})
    return item


def ticks(world: World, count: int) -> None:
    for _ in range(count):
        world.pass_time(60)
        world.new_process()  # which knows nothing of the one before
        world.tick()


def told(world: World) -> list[str]:
    return [text for text in world.messages() if "cannot be worked on" in text]


def test_a_job_that_cannot_be_read_stops_no_other(world: World) -> None:
    """Another job is recovered by the clock alone, and another tool's is taken over."""
    world.begin(1)
    world.submit(world.add_nodes(2, first=1), job_id="j2")
    tasks = OtherTool(world).submit()
    item = damage(world, "job_table", "j1")
    world.events = False
    world.cloud.control.health("n2", 1)
    world.finish_attempt(1)
    world.cloud.control.exit_task(world.task_of(0, "j2"), 1)
    world.run("j2")
    check_end(world, JobStatus.COMPLETE, attempt=1, job_id="j2")
    assert "record" in world.account.rows("job_table")["t1"], tasks
    assert all(set(bad) == {("job", "j1")} for bad in world.bad)
    ticks(world, 10)
    assert len(told(world)) == 1
    assert "job j1" in told(world)[0]
    assert world.errors == []
    world.account.write("job_table", item)
    world.stop("j1")
    world.run("j1")
    assert world.job("j1").status is JobStatus.USER_STOPPED


def test_a_node_that_cannot_be_read_stops_no_other(world: World) -> None:
    names = world.begin(3)
    damage(world, "node_table", names[2])
    world.finish_attempt(1)
    world.cloud.control.health(names[1], 1)
    world.fail_rank(0)
    assert world.run().status is JobStatus.COMPLETE
    ticks(world, 5)
    assert {n: s for n, s in world.node_statuses().items() if n != names[2]} == dict.fromkeys(
        names[:2], "AVAILABLE"
    )
    assert set(world.bad[-1]) == {("node", names[2])}
    assert len(told(world)) == 1
    assert world.errors == []


def test_what_a_sweep_stumbles_over_is_named_and_then_raised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody foresaw, with one job only: strays are looked for, and free nodes are looked after."""
    world.begin(1)
    world.submit(world.add_nodes(1, first=1), job_id="j2")
    done: list[str] = []
    observe = world.side.fleet.__class__.observe_job

    def stumbles(fleet: Any, job: Job) -> Any:
        if job.id == "j1":
            raise ZeroDivisionError(f"in {job.version}")
        return observe(fleet, job)

    monkeypatch.setattr(world.side.fleet.__class__, "observe_job", stumbles)
    monkeypatch.setattr(StoreAdopter, "adopt_strays", lambda *args: done.append("strays"))
    monkeypatch.setattr(Upkeep, "look", lambda *args: done.append("upkeep"))
    world.invocations = 1
    ticks(world, 3)
    assert done == ["strays", "upkeep"] * 3
    assert [type(exc) for exc in world.errors] == [ZeroDivisionError] * 3
    assert [set(bad) for bad in world.bad] == [{("job", "j1")}] * 3
    assert len(told(world)) == 1


def test_a_right_that_was_lost_is_one_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All records have the same trouble then."""
    names = world.add_nodes(3)
    for index, name in enumerate(names):
        world.submit([name], job_id=f"j{index}")

    def refused(fleet: Any, job: Job) -> Any:
        raise PermissionError("not yours")

    monkeypatch.setattr(world.side.fleet.__class__, "observe_job", refused)
    ticks(world, 2)
    assert len(told(world)) == 1
    assert "job j0, job j1, job j2" in told(world)[0]


def test_a_trouble_that_is_over_and_another_one_are_two_messages(world: World) -> None:
    world.begin(1)
    item = damage(world, "job_table", "j1")
    ticks(world, 2)
    world.account.write("job_table", item | {"record": {"S": "[]"}})
    ticks(world, 2)
    assert len(told(world)) == 2
