"""What people do to a job, and what strangers do beside it."""

from __future__ import annotations

import copy

import pytest

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.model import Job, JobStatus, Verdict
from tests.stories.ends import check_end
from tests.stories.plots import gpu_fault
from tests.stories.world import CHECK, CLUSTER, TRAIN, World

OK, FAILED, STOPPED = JobStatus.COMPLETE, JobStatus.FAILED, JobStatus.USER_STOPPED


AT_ANY_TIME = pytest.mark.parametrize(
    "status", [JobStatus.PENDING_HEALTHCHECK, JobStatus.PENDING_RESTART, JobStatus.IN_PROGRESS]
)


def recover_until(world: World, status: JobStatus) -> None:
    """A gang with a GPU fault, whose recovery has come so far."""
    world.begin(2)
    gpu_fault(world)
    world.pass_time(0.1)
    world.until(lambda: world.job().status is status, step=1)


def ends_stopped(world: World) -> Job:
    job = world.run()
    world.until(lambda: world.node_statuses() == {"n0": "AVAILABLE", "n1": "AVAILABLE"}, minutes=60)
    check_end(world, STOPPED, attempt=job.attempt)
    return job


# -- people ----------------------------------------------------------------------------------------------------


@AT_ANY_TIME
def test_a_person_may_stop_the_job_at_any_time(world: World, status: JobStatus) -> None:
    recover_until(world, status)
    world.stop()
    ends_stopped(world)


def test_a_person_may_stop_the_job_before_its_first_start(world: World) -> None:
    world.begin(2, check=True)
    world.stop()
    world.run()
    check_end(world, STOPPED)
    assert world.tasks() == []


# -- another tool's word ---------------------------------------------------------------------------------------


def write_stop(world: World) -> None:
    """As a console of another make does: it knows the schema's attributes and none of ours."""
    world.account.client("dynamodb").update_item(
        TableName=world.account.tables["job_table"],
        Key={"job_id": {"S": "j1"}},
        UpdateExpression="SET #s = :s",
        ConditionExpression="attribute_exists(#s)",
        ExpressionAttributeNames={"#s": "job_status"},
        ExpressionAttributeValues={":s": {"S": STOPPED.value}},
    )


@AT_ANY_TIME
def test_user_stopped_in_a_job_s_row_is_a_person_s_stop(world: World, status: JobStatus) -> None:
    recover_until(world, status)
    write_stop(world)
    job = ends_stopped(world)
    assert job.outcome == "stopped by another tool: USER_STOPPED was written into its row"


def test_a_stop_that_another_tool_wrote_is_not_written_over_by_an_event(world: World) -> None:
    """The event's process has the record at hand, and does not read the row first."""
    world.begin(2)
    write_stop(world)
    world.fail_rank(0)
    world.run()
    check_end(world, STOPPED)


def test_a_stop_in_the_row_of_an_ended_job_changes_nothing(world: World) -> None:
    world.begin(1)
    world.cloud.control.exit_task(world.task_of(0), 0)
    world.run()
    write_stop(world)
    world.pass_time(120)
    assert world.job().status is OK


@pytest.mark.ministack
def test_a_stop_in_a_row_is_heard_on_a_local_aws(http_world: World) -> None:
    http_world.begin(2)
    write_stop(http_world)
    http_world.fail_rank(0)
    http_world.run()
    check_end(http_world, STOPPED)


# -- strangers -------------------------------------------------------------------------------------------------


def test_two_jobs_recover_beside_each_other(world: World) -> None:
    names = world.add_nodes(4)
    world.submit(names[:2], job_id="j1")
    world.submit(names[2:], job_id="j2")
    world.finish_attempt(1)
    world.cloud.control.health("n1", 1)
    world.cloud.control.health("n2", 1)
    for job_id in ("j1", "j2"):
        world.cloud.control.exit_task(world.task_of(0, job_id), 1)
    world.run("j1")
    world.run("j2")
    check_end(world, OK, attempt=1, job_id="j1")
    check_end(world, OK, attempt=1, job_id="j2")


def test_two_jobs_that_share_a_night_end_differently(world: World) -> None:
    names = world.add_nodes(4)
    world.submit(names[:2], job_id="j1")
    world.submit(names[2:], job_id="j2")
    world.fail_rank(0)
    for rank in range(2):
        world.cloud.control.exit_task(world.task_of(rank, "j2"), 0)
    world.run("j1")
    world.run("j2")
    check_end(world, FAILED, messages=1, job_id="j1")
    check_end(world, OK, job_id="j2")


@pytest.mark.parametrize("attempt", ["0", "1", "7"])
def test_a_ghost_task_is_stopped(world: World, attempt: str) -> None:
    """It carries a token of ours, and nobody waits for it any more."""
    names = world.add_nodes(3)
    world.submit(names[:2])
    token = keys.token(f"j1/{attempt}/1/train/2", world.job().salt)
    env = {"JOB_ID": "j1", "JOB_ATTEMPT": attempt, "NODE_RANK": "1", "GPU_RECOVERY_KIND": "train"}
    pairs = [{"name": name, "value": value} for name, value in env.items()]
    ecs, node = world.cloud.client("ecs"), world.cloud.control.node("n2")
    reply = ecs.start_task(
        cluster=CLUSTER,
        taskDefinition=TRAIN,
        containerInstances=[node["arn"]],
        startedBy=token,
        overrides={"containerOverrides": [{"name": "main", "environment": pairs}]},
    )
    ghost = reply["tasks"][0]["taskArn"]
    world.pass_time(5)
    shown = next(t for t in world.cloud.control.tasks() if t["taskArn"] == ghost)
    assert (shown["lastStatus"], shown["stoppedReason"]) == (
        "STOPPED",
        "gpu-recovery j1/0: not the task of this attempt",
    )
    assert world.job().status is JobStatus.IN_PROGRESS
    assert len(world.tasks(live=True)) == 2


def test_tasks_of_strangers_cost_one_look(world: World) -> None:
    world.begin(2)
    world.add_nodes(1, first=2)
    node = world.cloud.control.node("n2")
    version = world.job().version
    world.wire.forget()
    world.cloud.client("ecs").start_task(
        cluster=CLUSTER, taskDefinition=TRAIN, containerInstances=[node["arn"]]
    )
    world.pass_time(1)
    assert world.job().version == version
    assert [call for call in world.wire.calls if call[1] not in ("query", "get_item")] == []


def test_a_check_that_nobody_ordered_changes_nothing(world: World) -> None:
    world.begin(2)
    world.add_nodes(1, first=2)
    version = world.job().version
    node = world.cloud.control.node("n2")
    world.cloud.control.script(family=CHECK, exit_code=1, after_s=1)
    world.cloud.client("ecs").start_task(
        cluster=CLUSTER, taskDefinition=CHECK, containerInstances=[node["arn"]]
    )
    world.pass_time(5)
    assert world.job().version == version


def test_the_answer_of_a_check_without_our_marks_counts_if_the_record_knows_the_check(world: World) -> None:
    world.begin(2)
    world.cloud.control.script(family=CHECK, exit_code=0, after_s=1000)
    world.fail_rank(0)
    world.until(lambda: all(rank.check_id for rank in world.job().ranks), step=1)
    known = world.job().ranks[1].check_id
    told = [e for e in world.cloud.control.events() if known in str(e["detail"].get("taskArn"))]
    for check_id, verdict in (("f" * 32, None), (known, Verdict.REBOOT)):
        event = copy.deepcopy(told[-1])
        detail = event["detail"]
        detail |= {"lastStatus": "STOPPED", "stopCode": "EssentialContainerExited", "overrides": {}}
        detail["taskArn"] = detail["taskArn"].replace(known, check_id)
        detail["containers"][0] |= {"lastStatus": "STOPPED", "exitCode": 1}
        world.deliver(event)
        assert world.job().ranks[1].verdict is verdict
