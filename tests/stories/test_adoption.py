"""Jobs that another tool wrote into the three tables, with the schema's attributes alone, and started itself."""

from __future__ import annotations

from functools import partial

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.account import Row
from tests.stories.ends import check_end
from tests.stories.other_tool import CREATED, NODES, OtherTool, listed, text
from tests.stories.world import CLUSTER, TRAIN, World, a_world

OK, FAILED, STOPPED = JobStatus.COMPLETE, JobStatus.FAILED, JobStatus.USER_STOPPED


def recovers(world: World, *, bad: str, failed: str) -> None:
    """One node is bad, and one of their tasks fails."""
    world.finish_attempt(1)
    world.cloud.control.health(bad, 1)
    world.cloud.control.exit_task(failed, 1)
    world.run("t1")
    check_end(world, OK, attempt=1, job_id="t1")


def check_their_rows(world: World, tasks: list[str]) -> None:
    """What they wrote stays, and only what changed is changed."""
    rows = world.account.rows("task_table")
    for rank, task in enumerate(tasks):
        assert (rows[task]["task_status"], rows[task]["retry"], rows[task]["created_at"]) == (
            "TERMINATED",
            "0",
            CREATED,
        )
        assert rows[task]["node_index_in_job"] == str(rank)
    row = world.account.rows("job_table")["t1"]
    assert (row["created_at"], row["assigned_nodes"]) == ("2026-11-15T01:00:00+00:00", list(NODES))


@pytest.mark.parametrize("lists", ["list", "text"])
@pytest.mark.parametrize("fails", [0, 1])
@pytest.mark.parametrize("bad", [0, 1])
def test_their_job_is_recovered_like_ours(world: World, lists: str, fails: int, bad: int) -> None:
    tasks = OtherTool(world, lists).submit()
    recovers(world, bad=NODES[bad], failed=tasks[fails])
    check_their_rows(world, tasks)
    assert world.cloud.control.node(NODES[bad])["boots"] == 2


def test_a_restart_uses_what_the_task_was_first_started_with(world: World) -> None:
    tasks = OtherTool(world).submit()
    world.cloud.control.health("gpu-a", 1)
    world.cloud.control.exit_task(tasks[1], 1)
    world.until(lambda: len(world.tasks(live=True)) == 2)
    for task in world.tasks(live=True):
        rank = task["env"]["NODE_RANK"]
        (main,) = task["overrides"]["containerOverrides"]
        assert main["command"] == ["torchrun", "train.py", f"--node_rank={rank}"]
        assert (task["env"]["EPOCHS"], task["env"]["RANK"], task["env"]["MASTER_ADDR"]) == (
            "90",
            rank,
            "10.0.1.5",
        )
        assert (task["env"]["JOB_ID"], task["env"]["JOB_ATTEMPT"]) == ("t1", "1")
        assert task["overrides"]["taskRoleArn"].endswith("role/train")
        assert task["taskDefinitionArn"].endswith(f"{TRAIN}:1")


def test_a_restart_starts_what_ecs_ran_whatever_the_row_says(world: World) -> None:
    """A row is text of whoever may write the table; it must not choose what runs with the training's role."""
    other = OtherTool(world)
    tasks = other.submit()
    for rank, task in enumerate(tasks):
        other.write_task(task, NODES[rank], rank, task_def_arn="evil:7")
    world.finish_attempt(1)
    world.cloud.control.health("gpu-a", 1)
    world.cloud.control.exit_task(tasks[1], 1)
    assert world.run("t1").spec.task_def.endswith(f"task-definition/{TRAIN}:1")
    check_end(world, OK, attempt=1, job_id="t1")


def test_their_healthy_job_fails_with_one_message(world: World) -> None:
    tasks = OtherTool(world).submit()
    world.cloud.control.exit_task(tasks[0], 1)
    world.run("t1")
    check_end(world, FAILED, job_id="t1", messages=1)


def test_their_job_completes(world: World) -> None:
    tasks = OtherTool(world).submit()
    for task in tasks:
        world.cloud.control.exit_task(task, 0)
    world.run("t1")
    check_end(world, OK, job_id="t1")


def test_their_task_stopped_by_a_person_stops_their_job(world: World) -> None:
    tasks = OtherTool(world).submit()
    world.cloud.client("ecs").stop_task(cluster=CLUSTER, task=tasks[1])
    world.run("t1")
    check_end(world, STOPPED, job_id="t1")


def test_a_job_whose_retry_is_spent_is_not_tried_again(world: World) -> None:
    tasks = OtherTool(world).submit(retry=text("1"))
    world.cloud.control.health("gpu-b", 1)
    world.cloud.control.exit_task(tasks[1], 1)
    world.run("t1")
    check_end(world, FAILED, attempt=1, job_id="t1", nodes={"gpu-b": "FAILED"}, messages=1)


def test_no_event_is_needed_to_take_a_job_over(world: World) -> None:
    tasks = OtherTool(world).submit()
    world.events = False
    world.finish_attempt(1)
    world.cloud.control.health("gpu-a", 1)
    world.cloud.control.exit_task(tasks[1], 1)
    world.tick()
    world.run("t1")
    check_end(world, OK, attempt=1, job_id="t1")


def test_nodes_that_are_known_to_us_are_taken_over_too(world: World) -> None:
    """Somebody listed the cluster before: the nodes have records of ours beside the other tool's rows."""
    world.add_nodes(2)
    ids = [world.cloud.control.node(f"n{i}") for i in range(2)]
    other = OtherTool(world)
    other.nodes = dict(zip(NODES, ids, strict=True))
    tasks = [other.start(name, rank) for rank, name in enumerate(NODES)]
    for rank, task in enumerate(tasks):
        other.write_task(task, NODES[rank], rank, node_name=f"n{rank}")
    other.write_job(tasks, assigned_nodes=listed(["n0", "n1"], "list"))
    world.pass_time(2)
    recovers(world, bad="n1", failed=tasks[0])


def test_nodes_without_a_row_are_made(world: World) -> None:
    other = OtherTool(world)
    world.account._tables._rows["ecs_node"].clear()  # type: ignore[attr-defined]
    tasks = other.submit(node_status="")
    recovers(world, bad="gpu-a", failed=tasks[1])


@pytest.mark.parametrize("alive", [True, False])
def test_their_job_is_taken_over_while_its_nodes_are_examined(world: World, alive: bool) -> None:
    """Their check has never been ours: we examine every node again, once nothing runs on it any more."""
    tasks = OtherTool(world).submit(job_status=text("PENDING_HEALTHCHECK"), node_status="PENDING")
    world.finish_attempt(1)
    world.cloud.control.health("gpu-b", 1)
    world.cloud.control.exit_task(tasks[1], 1)
    if not alive:
        world.cloud.control.exit_task(tasks[0], 1)
    world.pass_time(1)
    world.run("t1")
    check_end(world, OK, attempt=1, job_id="t1")
    check_their_rows(world, tasks)


@pytest.mark.parametrize("status", ["PENDING_RESTART", "RESTARTING"])
@pytest.mark.parametrize("retry", ["0", "1"])
def test_their_job_is_taken_over_while_it_waits_for_its_restart(
    world: World, status: str, retry: str
) -> None:
    other = OtherTool(world)
    tasks = other.submit()
    world.events = False
    for rank, task in enumerate(tasks):
        world.cloud.control.exit_task(task, 1)
        other.write_task(task, NODES[rank], rank, task_status="TERMINATED")
    other.write_job(tasks, job_status=text(status), retry=text(retry))
    other.write_node("gpu-b", "REBOOTING")
    world.cloud.control.reboot("gpu-b")
    world.pass_time(1)
    world.events = True
    world.finish_attempt(1)
    world.tick()
    world.run("t1")
    check_end(world, OK, attempt=1, job_id="t1", spontaneous=1)


def test_a_task_that_their_restart_left_running_is_stopped_first(world: World) -> None:
    other = OtherTool(world)
    tasks = other.submit()
    world.events = False
    world.cloud.control.exit_task(tasks[1], 1)
    world.pass_time(1)
    other.write_task(tasks[1], NODES[1], 1, task_status="TERMINATED")
    other.write_job(tasks, job_status=text("RESTARTING"))
    world.events = True
    world.finish_attempt(1)
    world.tick()
    world.run("t1")
    check_end(world, OK, attempt=1, job_id="t1")
    stopped = next(t for t in world.cloud.control.tasks() if t["taskArn"].endswith(tasks[0]))
    assert stopped["stoppedReason"].startswith("gpu-recovery t1/")


@pytest.mark.parametrize("status", ["COMPLETE", "FAILED", "USER_STOPPED"])
def test_a_job_that_has_ended_is_left_alone(world: World, status: str) -> None:
    other = OtherTool(world, "text")
    tasks = other.submit(job_status=text(status))
    before = (
        world.account.rows("job_table"),
        world.account.rows("task_table"),
        world.account.rows("node_table"),
    )
    for task in tasks:
        world.cloud.control.exit_task(task, 1)
    world.pass_time(30)
    world.tick()
    assert (
        world.account.rows("job_table"),
        world.account.rows("task_table"),
        world.account.rows("node_table"),
    ) == before
    assert not world.errors


GARBAGE: dict[str, dict[str, Row]] = {
    "an unknown status": {"job_status": text("FAILED_OTHERS")},
    "no status": {"job_status": text(" ")},
    "no tasks": {"submitted_ecs_task_ids": {"L": []}},
    "tasks that are a number": {"submitted_ecs_task_ids": {"N": "7"}},
    "one task for two nodes": {"submitted_ecs_task_ids": text("0123456789abcdef0123456789abcdef")},
    "the same node twice": {"assigned_nodes": text("gpu-a,gpu-a")},
    "more nodes than tasks": {"assigned_nodes": text("gpu-a,gpu-b,gpu-c")},
    "nothing": {"submitted_ecs_task_ids": {"NULL": True}, "assigned_nodes": {"NULL": True}},
}


@pytest.mark.parametrize("row", GARBAGE.values(), ids=GARBAGE)
def test_a_row_that_makes_no_sense_is_nobody_s_job(
    world: World, row: dict[str, Row], caplog: pytest.LogCaptureFixture
) -> None:
    tasks = OtherTool(world).submit(**row)
    before = world.account.rows("job_table")
    world.cloud.control.exit_task(tasks[0], 1)
    world.pass_time(30)
    with caplog.at_level("INFO", "ecs_gpu_recovery"):
        world.tick()
        world.tick()
    assert not world.errors
    assert world.account.rows("job_table") == before
    assert world.sent("StartTask") == 2
    assert world.messages() == []
    assert len([r for r in caplog.records if r.message == "not taken over"]) <= 1


def test_a_garbled_retry_counts_as_none(world: World) -> None:
    tasks = OtherTool(world).submit(retry=text("many"))
    recovers(world, bad="gpu-b", failed=tasks[0])


def test_instance_events_of_their_nodes_are_not_ours_until_then(world: World) -> None:
    OtherTool(world)
    world.cloud.control.disconnect("gpu-a", 5)
    world.pass_time(10)
    assert not world.errors
    assert world.node_statuses() == {"gpu-a": "AVAILABLE", "gpu-b": "AVAILABLE"}


def test_a_node_that_another_job_holds_is_not_taken_away(world: World) -> None:
    names = world.add_nodes(2)
    world.submit(names, job_id="j1")
    other = OtherTool(world)
    tasks = [other.start(name, rank) for rank, name in enumerate(NODES)]
    for rank, task in enumerate(tasks):
        other.write_task(task, NODES[rank], rank)
    other.write_job(tasks, assigned_nodes=listed(["n0", "gpu-b"], "list"))
    world.cloud.control.exit_task(tasks[1], 1)
    world.pass_time(10)
    world.tick()
    assert world.job("j1").status is JobStatus.IN_PROGRESS
    assert not world.errors
    assert "record" not in world.account.rows("job_table")["t1"]


def fail_beside(world: World, task: str) -> None:
    """The other rank fails too, and another process takes that event while this one stands still."""
    mine, world.side = world.side, world.a_process()
    world.cloud.control.exit_task(task, 1)
    world.pass_time(1)
    world.side = mine


@pytest.mark.parametrize("kind", ["die_after", "meanwhile"])
def test_a_job_is_taken_over_once_whatever_happens_meanwhile(kind: str) -> None:
    """The process dies after any of its first calls, or others hear of the same job just then."""
    for number in range(1, 18):
        with a_world() as world:
            tasks = OtherTool(world).submit()
            world.finish_attempt(1)
            world.cloud.control.health("gpu-b", 1)
            world.wire.forget()
            if kind == "die_after":
                world.wire.die_after = number
            else:
                world.wire.meanwhile[number] = partial(fail_beside, world, tasks[1])
            world.cloud.control.exit_task(tasks[0], 1)
            world.run("t1")
            check_end(world, OK, attempt=1, job_id="t1")
            check_their_rows(world, tasks)
