"""Why a check says what it says: the record, the timeline and the message tell it, not just an exit code."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ecs_gpu_recovery.aws.definitions import Definitions
from ecs_gpu_recovery.aws.last_words import LastWords
from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.messages import job_failed, node_failed
from ecs_gpu_recovery.core.model import Job, NodeStatus, Verdict
from tests.core.story import some_nodes
from tests.stories.plots import gpu_fault
from tests.stories.world import CHECK, TRAIN, World, container

WHY = "Xid 79 on 0000:3b:00: the GPU has fallen off the bus"
GET = ("logs", "get_log_events")


def why_rebooted(world: World) -> str:
    (ordered,) = [entry for entry in world.run().timeline if entry.after == "REBOOTING"]
    return ordered.evidence


def test_the_message_about_a_bad_node_names_the_fault_and_the_gpu(world: World) -> None:
    world.begin(2)
    world.cloud.control.health("n1", 2)
    world.fail_rank(0)
    world.run()
    (message,) = world.messages()
    (uuid, *_) = [n["gpus"][0] for n in world.cloud.control.nodes() if n["name"] == "n1"]
    assert f"n1: verdict replace ({WHY} [{uuid}])" in message
    assert world.account.rows("node_table")["n1"]["node_status"] == "FAILED"
    assert world.side.store.node("n1").findings == f"{WHY} [{uuid}]"


def test_a_reboot_has_its_reason_in_the_timeline(world: World) -> None:
    world.begin(2)
    gpu_fault(world)
    assert WHY in why_rebooted(world)


def test_the_log_is_read_once_for_each_node_that_is_not_healthy(world: World) -> None:
    world.begin(8)
    world.finish_attempt(1)
    for node in ("n1", "n5"):
        world.cloud.control.health(node, 1)
    world.fail_rank(0)
    world.run()
    assert world.wire.calls.count(GET) == 2


def test_the_check_of_a_free_node_tells_its_reason_too(world: World) -> None:
    world.add_nodes(1)
    world.cloud.control.health("n0", 2)
    ask = NodeAsked(at=world.now(), node="n0", ask="check", by="ann", why="noise")
    world.side.runtime.handle_node("n0", [ask])
    world.until(lambda: world.side.store.node("n0").status is NodeStatus.FAILED)
    assert WHY in world.side.store.node("n0").findings


@pytest.mark.parametrize(
    "code", ["AccessDeniedException", "ResourceNotFoundException", "ThrottlingException"]
)
def test_a_report_that_cannot_be_read_holds_up_nothing(world: World, code: str) -> None:
    world.begin(2)
    world.wire.fail_all[GET] = code
    gpu_fault(world)
    assert "exit code 1" in why_rebooted(world)


@pytest.mark.parametrize(
    "line",
    [
        "Segmentation fault",
        "{",
        "[1]",
        json.dumps({"schema": "something-else/1", "verdict": "reboot", "why": "believe me"}),
        json.dumps({"schema": "gpu-health-report/1", "verdict": "replace", "why": "believe me"}),
        json.dumps({"schema": "gpu-health-report/1", "verdict": "reboot", "why": None, "findings": 3}),
    ],
)
def test_a_log_that_is_no_report_of_this_verdict_is_not_believed(world: World, line: str) -> None:
    world.begin(2)
    world.finish_attempt(1)
    world.cloud.control.script(family=CHECK, node="n1", exit_code=1, after_s=1.0, lines=(line,))
    world.fail_rank(0)
    why = why_rebooted(world)
    assert "exit code 1" in why
    assert "believe me" not in why


def killed(world: World, progress: object, *, check: bool = False) -> Job:
    """A job of four ranks whose nodes are healthy: rank 3 is killed in each attempt, and these checks read so far."""
    world.submit(world.add_nodes(4), check=check, checkpoints="/fsx/j1", restart_when_healthy="progress")
    report = {"schema": "gpu-health-report/1", "verdict": "healthy", "why": "fine", "progress": progress}
    world.cloud.control.script(
        family=CHECK, times=None, exit_code=0, after_s=1.0, lines=("a table", json.dumps(report))
    )
    world.until(lambda: all(rank.deadline is None for rank in world.job().ranks))
    world.fail_rank(3, 137)
    world.until(lambda: world.job().attempt == 1 or world.job().status.final)
    return world.job()


def test_the_check_reads_how_far_the_training_has_come_and_the_job_goes_on(world: World) -> None:
    job = killed(world, {"step": 4200, "checkpoint": "", "attempt": 0, "reached": world.now().isoformat()})
    assert (job.attempt, job.marker and (job.marker.step, job.marker.attempt)) == (1, (4200, 0))
    assert any("GPUs healthy; restarted after step 4,200" in entry.why for entry in job.timeline)
    asked = {
        t["env"]["GPU_RECOVERY_NODE"]: t["env"].get("GPU_HEALTH_CHECKPOINTS") for t in world.tasks("check")
    }
    assert asked == {"n0": "/fsx/j1", "n1": "/fsx/j1", "n2": None, "n3": None}
    assert world.wire.calls.count(GET) == 2, "the log of the two that looked"
    world.until(lambda: all(rank.deadline is None for rank in world.job().ranks))
    world.fail_rank(3, 137)
    assert "the same step twice" in world.run().outcome


@pytest.mark.parametrize(
    "progress", [None, 7, [], {"step": "far"}, {"step": -3}, {"step": True, "checkpoint": 5}]
)
def test_what_makes_no_sense_is_no_progress(world: World, progress: object) -> None:
    job = killed(world, progress)
    assert (job.attempt, job.marker, job.spent.blind) == (1, None, 1), (
        "restarted once, as if nothing was told"
    )


LOGGED = {
    "logConfiguration": {
        "logDriver": "awslogs",
        "options": {
            "awslogs-group": "/gpu/train",
            "awslogs-region": "us-east-1",
            "awslogs-stream-prefix": "rank",
        },
    }
}


def ended(world: World) -> Job:
    """A job whose rank 1 died, by a definition that logs to CloudWatch."""
    world.begin(2)
    world.fail_rank(1)
    job = world.run()
    world.cloud.client("ecs").register_task_definition(
        family=TRAIN, containerDefinitions=[{**container("main", 8), **LOGGED}]
    )
    return replace(job, spec=replace(job.spec, task_def=f"{TRAIN}:2"))


def words(world: World, job: Job) -> LastWords:
    clients = world.cloud.client
    return LastWords(clients("logs"), Definitions(clients("ecs"), world.now), lambda _: job)


def test_the_message_about_a_failed_job_says_what_its_rank_wrote_last(world: World) -> None:
    job = ended(world)
    stream = f"rank/main/{job.ranks[1].task_id}"
    world.cloud.cluster.write_log("/gpu/train", stream, ["step 7", "ValueError: \x1b[31mno batch", "bye"])
    message = job_failed(job.id, 0, job.outcome, job.ranks)
    assert words(world, job).about(message) == "rank 1 on n1 wrote last: ValueError:  [31mno batch"
    assert words(world, job).about(node_failed(some_nodes(2)[1], "why")) == "", "it is about a job only"


def test_a_message_goes_out_without_what_cannot_be_read(world: World) -> None:
    job = ended(world)
    message = job_failed(job.id, 0, job.outcome, job.ranks)
    assert words(world, job).about(message) == "", "there is no such stream"
    elsewhere = replace(job, spec=replace(job.spec, task_def=f"{TRAIN}:1"))
    assert words(world, elsewhere).about(message) == ""
    assert world.messages(), "somebody was told all the same"


def test_a_check_of_ones_own_that_logs_elsewhere_speaks_by_its_exit_code(world: World) -> None:
    world.begin(2)
    ecs = world.cloud.client("ecs")
    ecs.register_task_definition(family=CHECK, containerDefinitions=[container("check", 8)])
    world.cloud.control.health("n1", 2)
    world.fail_rank(0)
    job = world.run()
    assert job.ranks[1].verdict is Verdict.REPLACE
    assert GET not in world.wire.calls
