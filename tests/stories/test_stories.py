"""The stories people were promised, on the AWS side: records, rows, labels, calls and messages."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.errors import NodesTaken
from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.core.policy import Policy
from tests.stories.ends import check_end, check_node_rows
from tests.stories.plots import BY_NAME, PLOTS, Plot, flaps, gpu_fault
from tests.stories.world import CLUSTER, TRAIN, World, a_world, container

OK, FAILED, STOPPED = JobStatus.COMPLETE, JobStatus.FAILED, JobStatus.USER_STOPPED


@pytest.mark.parametrize("plot", PLOTS, ids=str)
def test_a_story_ends_as_it_must(plot: Plot) -> None:
    with a_world(policy=plot.policy) as world:
        plot.tell(world)


@pytest.mark.ministack
@pytest.mark.parametrize(
    "name", ["gpu fault", "healthy GPU", "retry spent", "job stopped by a person", "terminated"]
)
def test_a_story_ends_so_in_real_tables_too(aws_url: str, name: str) -> None:
    plot = BY_NAME[name]
    with a_world(aws_url, policy=plot.policy) as world:
        plot.tell(world)


# -- step by step ----------------------------------------------------------------------------------------------


def test_each_step_of_a_recovery_shows_in_the_rows(world: World) -> None:
    """What the state graphs draw, seen from outside."""
    world.begin(2)
    world.finish_attempt(1)
    world.cloud.control.health("n1", 1)
    check_node_rows(world, world.job(), {"n0": "IN_PROGRESS", "n1": "IN_PROGRESS"})
    first = {world.task_of(0), world.task_of(1)}
    world.fail_rank(0)
    world.pass_time(0.1)
    assert world.job().status is JobStatus.PENDING_HEALTHCHECK
    check_node_rows(world, world.job(), {"n0": "PENDING_HEALTHCHECK", "n1": "PENDING"})
    world.pass_time(2)
    check_node_rows(world, world.job(), {"n0": "PENDING_HEALTHCHECK", "n1": "PENDING_HEALTHCHECK"})
    assert {row["task_status"] for row in world.account.rows("task_table").values()} == {"TERMINATED"}
    world.pass_time(8)
    assert world.job().status is JobStatus.PENDING_RESTART
    check_node_rows(world, world.job(), {"n0": "AVAILABLE", "n1": "REBOOTING"})
    assert world.account.rows("job_table")["j1"]["retry"] == "1"
    world.pass_time(70)
    assert world.job().status is JobStatus.IN_PROGRESS
    check_node_rows(world, world.job(), {"n0": "IN_PROGRESS", "n1": "IN_PROGRESS"})
    rows = world.account.rows("task_table")
    assert {rows[task]["task_status"] for task in first} == {"TERMINATED"}
    assert {rows[task]["retry"] for task in first} == {"0"}
    assert {row["retry"] for task, row in rows.items() if task not in first} == {"1"}


def test_our_own_stops_say_so(world: World) -> None:
    world.begin(2)
    world.fail_rank(0)
    world.run()
    reasons = {t["stoppedReason"] for t in world.tasks() if t.get("stopCode") == "UserInitiated"}
    assert reasons == {"gpu-recovery j1/0: another rank failed"}


def test_a_message_tells_what_to_do_next(world: World) -> None:
    world.begin(2)
    world.cloud.control.health("n1", 2)
    world.fail_rank(0)
    world.run()
    (message,) = world.messages()
    assert message.startswith("Job j1 failed: GPU fault that no reboot cures: n1 must be replaced\n")
    for part in (
        "n1",
        "verdict replace",
        "exit code 1",
        "Done: ",
        "marked failed",
        "Next: ",
        "gpu-recovery node release n1",
    ):
        assert part in message, message


# -- starting --------------------------------------------------------------------------------------------------


def test_a_start_that_the_agent_missed_is_tried_again(world: World) -> None:
    names = world.add_nodes(2)
    world.cloud.control.disconnect("n1", 200)
    world.finish_attempt(0)
    world.submit(names)
    assert world.job().ranks[1].task_status is None
    world.run()
    check_end(world, OK)
    assert world.sent("StartTask") > 2


def test_an_agent_that_stays_away_ends_the_start_in_time(world: World) -> None:
    names = world.add_nodes(2)
    world.cloud.control.power_off("n1")
    world.submit(names)
    job = world.run()
    check_end(
        world,
        job.status,
        attempt=job.attempt,
        messages=1,
        nodes={"n1": job.ranks[1].node_status},
        unreachable=("n1",),
    )
    assert job.status is FAILED


def test_a_task_definition_that_is_gone_fails_the_job_with_the_reason(world: World) -> None:
    names = world.add_nodes(2)
    world.cloud.client("ecs").deregister_task_definition(taskDefinition=f"{TRAIN}:1")
    world.submit(names)
    world.run()
    check_end(world, FAILED, messages=1)
    assert "TaskDefinition is inactive" in world.messages()[0]


def test_a_check_waits_for_gpus_that_are_still_held(world: World) -> None:
    """Somebody's own task took the GPUs of a node; the check is refused until it is gone."""
    world.begin(2)
    world.finish_attempt(1)
    world.cloud.control.health("n1", 1)
    ecs, node = world.cloud.client("ecs"), world.cloud.control.node("n0")
    world.cloud.control.script(node="n0", env={"MINE": "1"}, exit_code=0, after_s=400)
    world.fail_rank(0)
    own = {"containerOverrides": [{"name": "main", "environment": [{"name": "MINE", "value": "1"}]}]}
    assert ecs.start_task(
        cluster=CLUSTER, taskDefinition=TRAIN, containerInstances=[node["arn"]], overrides=own
    )["tasks"]
    world.pass_time(60)
    assert world.job().status is JobStatus.PENDING_HEALTHCHECK
    assert "RESOURCE:GPU" in world.job().outbox[0].error
    world.run()
    check_end(world, OK, attempt=1)


def test_a_restart_waits_for_gpus_that_are_still_held(world: World) -> None:
    world.begin(2)
    gpu_fault(world)
    ecs, node = world.cloud.client("ecs"), world.cloud.control.node("n0")
    world.until(lambda: world.job().status is JobStatus.PENDING_RESTART)
    world.cloud.control.script(node="n0", env={"MINE": "1"}, exit_code=0, after_s=200)
    own = {"containerOverrides": [{"name": "main", "environment": [{"name": "MINE", "value": "1"}]}]}
    assert ecs.start_task(
        cluster=CLUSTER, taskDefinition=TRAIN, containerInstances=[node["arn"]], overrides=own
    )["tasks"]
    world.run()
    check_end(world, OK, attempt=1)


def test_the_container_with_the_gpus_is_the_one_that_counts(world: World) -> None:
    """A helper is listed first, is essential too, and ends with 143 when the training ends."""
    helper = {"name": "log-router", "image": "router:1", "cpu": 10, "memory": 64, "essential": True}
    world.cloud.client("ecs").register_task_definition(
        family=TRAIN, containerDefinitions=[helper, container("main", 8)]
    )
    names = world.add_nodes(2)
    world.submit(names, task_def=f"{TRAIN}:2", container_name="")
    gpu_fault(world)
    world.run()
    check_end(world, OK, attempt=1)
    overridden = {
        o["name"]: bool(o.get("environment"))
        for t in world.tasks()
        for o in t["overrides"]["containerOverrides"]
    }
    assert overridden == {"log-router": False, "main": True}


def test_a_slow_stop_is_waited_for(world: World) -> None:
    """The sibling ignores SIGTERM; it is killed 30 seconds later, and only then is its node examined."""
    names = world.add_nodes(2)
    world.cloud.control.knobs(kill_s=30.0)
    world.cloud.control.script(node="n1", env={"JOB_ATTEMPT": "0"}, on_term=None)
    world.submit(names)
    gpu_fault(world)
    world.pass_time(20)
    assert len(world.tasks("check")) == 1
    world.run()
    check_end(world, OK, attempt=1)


# -- examining -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verdict", "bad"), [(1, {"n1": "FAILED"}), (2, {"n1": "FAILED"}), (3, {})])
def test_a_bad_node_is_refused_before_the_first_start(
    world: World, verdict: int, bad: dict[str, str]
) -> None:
    names = world.add_nodes(3)
    world.cloud.control.health("n1", verdict)
    world.submit(names, check=True)
    world.run()
    check_end(world, FAILED, nodes=bad, messages=1)
    assert world.tasks() == []
    assert world.sent("SendCommand") == 0


def test_a_check_that_never_answers_is_stopped(world: World) -> None:
    world.begin(2)
    BY_NAME["check never answers"].then(world)
    world.run()
    stopped = [
        t
        for t in world.cloud.control.tasks()
        if t["node"] == "n1" and t["env"].get("GPU_RECOVERY_KIND") == "check"
    ]
    assert all("did not answer in time" in t["stoppedReason"] for t in stopped)
    check_end(world, FAILED, messages=1)
    assert "n1 could not be tested" in world.messages()[0]


def test_the_check_knows_what_to_expect(world: World) -> None:
    world.begin(2)
    world.fail_rank(0)
    world.pass_time(4)
    env = world.tasks("check")[0]["env"]
    assert (env["JOB_ID"], env["GPU_HEALTH_EXPECT_GPUS"], env["GPU_HEALTH_LEVEL"]) == ("j1", "8", "2")


# -- nodes -----------------------------------------------------------------------------------------------------


def test_agents_that_flap_mean_nothing(world: World) -> None:
    world.begin(2)
    flaps(world)
    world.run()
    check_end(world, OK)
    assert world.tasks("check") == []


def test_a_host_that_restarts_under_its_task_is_found_out_though_its_agent_takes_long_to_say_so(
    world: World,
) -> None:
    """Meanwhile the agent is back, and whoever asks is told that the task runs."""
    world.begin(2)
    world.finish_attempt(1)
    world.cloud.control.knobs(reboot_s=30, report_s=100)
    world.cloud.control.next_reboot("n1", exit_code=0, deaths_first=False)
    world.cloud.control.reboot("n1")
    world.run()
    check_end(world, OK, attempt=1, spontaneous=1)


def test_a_draining_instance_keeps_its_job_and_cannot_be_restarted_on(world: World) -> None:
    world.begin(2)
    ecs, node = world.cloud.client("ecs"), world.cloud.control.node("n0")
    ecs.update_container_instances_state(cluster=CLUSTER, containerInstances=[node["arn"]], status="DRAINING")
    world.pass_time(120)
    world.tick()
    assert world.job().status is JobStatus.IN_PROGRESS
    world.cloud.control.health("n1", 1)
    world.fail_rank(1)
    world.run()
    check_end(world, FAILED, attempt=1, messages=1)
    assert "INACTIVE" in world.messages()[0]


@pytest.mark.parametrize("how", ["it is set to DRAINING", "EC2 takes its spot instance back"])
def test_a_job_that_may_move_leaves_a_node_before_that_is_taken_away(world: World, how: str) -> None:
    world.add_nodes(3, alike=True)
    world.submit(["n0", "n1"], failover="any")
    world.pass_time(60)
    node = world.cloud.control.node("n1")
    if "DRAINING" in how:
        world.cloud.client("ecs").update_container_instances_state(
            cluster=CLUSTER, containerInstances=[node["arn"]], status="DRAINING"
        )
    else:
        detail = {"instance-id": node["host_id"], "instance-action": "terminate"}
        what, at = "EC2 Spot Instance Interruption Warning", world.now().isoformat()
        world.deliver({"source": "aws.ec2", "detail-type": what, "time": at, "detail": detail})
    world.until(lambda: world.job().status is JobStatus.IN_PROGRESS and world.job().attempt == 1)
    job = world.job()
    assert ([rank.node for rank in job.ranks], job.spent.charged) == (["n0", "n2"], 0)
    assert "rank 1 moved from n1 to n2" in [entry.why for entry in job.timeline]
    left = world.records().node("n1")
    assert (left.job_id, left.status, left.claimable) == ("", "AVAILABLE", False)
    assert world.sent("ssm:SendCommand") == 0, "nothing was wrong with it"
    for rank in range(2):
        world.fail_rank(rank, 0)
    world.run()
    assert (world.job().status, world.messages()) == (JobStatus.COMPLETE, [])


def test_a_node_that_a_person_drained_keeps_its_job_and_gets_no_other(world: World) -> None:
    names = world.begin(2)
    world.side.runtime.handle_node(
        "n0", [NodeAsked(at=world.now(), node="n0", ask="drain", by="ann", why="new fan")]
    )
    for rank in range(2):
        world.fail_rank(rank, 0)
    world.run()
    check_end(world, OK)
    with pytest.raises(NodesTaken, match="drained by ann: new fan"):
        world.submit(names, job_id="j2")


def test_a_failed_node_that_a_person_releases_says_so_on_its_instance(world: World) -> None:
    world.begin(2)
    BY_NAME["verdict replace"].then(world)
    world.run()
    assert world.labels()["n1"] == "FAILED"
    world.side.runtime.handle_node(
        "n1", [NodeAsked(at=world.now(), node="n1", ask="release", by="ann", why="new GPU")]
    )
    assert (world.labels()["n1"], world.node_statuses()["n1"]) == ("AVAILABLE", "AVAILABLE")


def test_new_nodes_are_labelled_by_the_sweeper(world: World) -> None:
    world.add_nodes(3)
    assert set(world.labels().values()) == {""}
    world.tick()
    assert set(world.labels().values()) == {"AVAILABLE"}
    calls = world.sent("PutAttributes")
    world.tick()
    assert world.sent("PutAttributes") == calls


def test_a_free_node_can_be_checked_and_rebooted(world: World) -> None:
    world.add_nodes(1)
    world.cloud.control.health("n0", 1)
    for ask in ("check", "reboot", "check"):
        world.side.runtime.handle_node(
            "n0", [NodeAsked(at=world.now(), node="n0", ask=ask, by="ann", why="odd noises")]
        )
        world.until(lambda: world.node_statuses()["n0"] in ("AVAILABLE", "FAILED"), minutes=40)
        assert world.node_statuses()["n0"] == world.labels()["n0"] == "AVAILABLE"
    assert (world.sent("SendCommand"), world.messages()) == (2, []), "the first check had it repaired"
    world.watch.check()


def test_ecs_reporting_a_gpu_fault_is_evidence_and_no_verdict(world: World) -> None:
    world.begin(2)
    world.cloud.control.impair("n1", reason="XID_79")
    world.pass_time(0.1)
    assert any("XID_79" in entry.evidence for entry in world.job().timeline)
    world.fail_rank(0)
    world.run()
    check_end(world, FAILED, messages=1)


def test_on_aws_too_a_killed_rank_is_restarted_and_tells_so() -> None:
    """A job that tells no progress, once in its life."""
    with a_world(policy=Policy(admission_check=False)) as world:
        world.begin(2)
        world.fail_rank(1, 137)
        world.finish_attempt(1)
        job = world.run()
        assert (job.status, job.attempt) == (JobStatus.COMPLETE, 1)
        why = [entry.why for entry in job.timeline if entry.after == JobStatus.PENDING_RESTART]
        assert why == ["rank 1 on n1 was killed (SIGKILL); GPUs healthy; restarted"]
        assert not world.messages()
