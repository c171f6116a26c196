"""Tasks: whose they are, which container speaks for them, and what their states say."""

from __future__ import annotations

from typing import Any

import pytest

from ecs_gpu_recovery.aws.parse import UNKNOWN, parse_event
from ecs_gpu_recovery.aws.parsed import Kind
from ecs_gpu_recovery.core.events import CheckStarted, NodeChecked, Origin, TaskEnded, TaskStarted
from ecs_gpu_recovery.core.exits import classify, is_passing, our_reason
from ecs_gpu_recovery.core.keys import token
from ecs_gpu_recovery.core.model import Exit, Verdict
from ecs_gpu_recovery.core.policy import Policy
from tests.aws.event_builders import (
    AT,
    CHECK,
    INSTANCE,
    PREFIX,
    TASK_ID,
    TRAIN,
    container,
    health_event,
    instance_event,
    override,
    stopped,
    task_event,
)

ORIGIN = Origin(token=token("j1/1/2/train/1"), instance=INSTANCE, family="train")


def ended(made: dict[str, Any]) -> TaskEnded:
    (fact,) = parse_event(made).facts
    assert isinstance(fact, TaskEnded)
    return fact


def meaning(made: dict[str, Any]) -> Exit:
    return classify(ended(made), doubted=False, policy=Policy())


def checked(*containers: dict[str, Any], **detail: object) -> NodeChecked:
    (fact,) = parse_event(stopped(*containers, env=CHECK, **detail)).facts
    assert isinstance(fact, NodeChecked)
    return fact


# -- training tasks ------------------------------------------------------------------------------------------


def test_a_running_task_names_its_job_attempt_and_rank() -> None:
    seen = parse_event(task_event())
    assert seen.ours
    assert seen.kind is Kind.TASK
    assert (seen.job, seen.attempt, seen.rank, seen.version) == ("j1", 1, 2, 4)
    assert (seen.task_id, seen.cluster, seen.instance, seen.at) == (TASK_ID, "gpu", INSTANCE, AT)
    assert seen.origin == ORIGIN
    assert seen.facts == (
        TaskStarted(at=AT, task_id=TASK_ID, attempt=1, rank=2, running=True, origin=ORIGIN),
    )


@pytest.mark.parametrize("status", ["PROVISIONING", "PENDING", "ACTIVATING"])
def test_a_task_on_its_way_in_exists_but_does_not_run(status: str) -> None:
    assert parse_event(task_event(lastStatus=status)).facts == (
        TaskStarted(at=AT, task_id=TASK_ID, attempt=1, rank=2, running=False, origin=ORIGIN),
    )


def test_a_running_task_that_shall_stop_is_not_called_running() -> None:
    seen = parse_event(task_event(desiredStatus="STOPPED", stopCode="SpotInterruption"))
    assert seen.facts == (
        TaskStarted(at=AT, task_id=TASK_ID, attempt=1, rank=2, running=False, origin=ORIGIN),
    )
    assert "being stopped" in seen.why


def test_a_stopped_task_has_ended_with_its_exit_code_and_reasons() -> None:
    fact = ended(stopped(container(1, reason="ECC error")))
    assert fact == TaskEnded(
        at=AT,
        task_id=TASK_ID,
        attempt=1,
        rank=2,
        exit_code=1,
        stop_code="EssentialContainerExited",
        reason="ECC error; Essential container in task exited",
        origin=ORIGIN,
    )


@pytest.mark.parametrize("status", ["DEACTIVATING", "STOPPING", "DEPROVISIONING"])
def test_an_exit_code_before_stopped_is_noted_and_waited_for(status: str) -> None:
    """One failure tells its exit code twice; only STOPPED frees the GPUs."""
    seen = parse_event(stopped(container(1), lastStatus=status))
    assert seen.ours
    assert seen.facts == ()
    assert seen.end is not None
    assert seen.end.exit_code == 1
    assert "counts at STOPPED" in seen.why


def test_a_status_that_nobody_has_heard_of_says_nothing() -> None:
    seen = parse_event(task_event(lastStatus="HIBERNATING"))
    assert seen.ours
    assert seen.facts == ()
    assert "HIBERNATING" in seen.why


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (stopped(container(0)), Exit.DONE),
        (stopped(container(1)), Exit.SUSPECT),
        (
            stopped(container(1, reason="OutOfMemoryError: Container killed due to memory usage")),
            Exit.OUT_OF_MEMORY,
        ),
        (stopped(container(139)), Exit.FAULT),
        (
            stopped(
                container(),
                stopCode="TaskFailedToStart",
                stoppedReason="CannotPullContainerError: no such image",
            ),
            Exit.NEVER_STARTED,
        ),
        (
            stopped(
                container(137),
                stopCode="UserInitiated",
                stoppedReason=our_reason("j1", 1, "another rank failed"),
            ),
            Exit.STOPPED_BY_US,
        ),
        (
            stopped(
                container(137, reason="told to stop"),
                stopCode="UserInitiated",
                stoppedReason=our_reason("j1", 1, "another rank failed"),
            ),
            Exit.STOPPED_BY_US,
        ),
        (
            stopped(container(0), stopCode="UserInitiated", stoppedReason="Task stopped by user"),
            Exit.STOPPED_BY_PERSON,
        ),
        (
            stopped(
                container(), stopCode="SpotInterruption", stoppedReason="Your Spot Task was interrupted."
            ),
            Exit.LOST,
        ),
        (
            stopped(stopCode="TerminationNotice", stoppedReason="Host EC2 (instance i-0a1b2c3d) terminated."),
            Exit.LOST,
        ),
        (stopped(container(reason="ContainerVanishedError: no container")), Exit.LOST),
    ],
)
def test_the_end_reaches_the_core_in_words_it_understands(made: dict[str, Any], expected: Exit) -> None:
    assert meaning(made) is expected


def test_a_refusal_that_passes_is_told_by_its_first_word() -> None:
    fact = ended(stopped(container(reason="x"), stopCode="TaskFailedToStart", stoppedReason="RESOURCE:GPU"))
    assert is_passing(fact.reason)


# -- whose task it is ----------------------------------------------------------------------------------------


def test_a_task_without_our_marks_is_looked_up_by_its_id() -> None:
    seen = parse_event(stopped(container(1), env={}, startedBy="older-tool"))
    assert not seen.ours
    assert seen.may_be_ours
    assert (seen.kind, seen.job, seen.attempt, seen.rank) == (Kind.TASK, "", None, None)
    assert f"task table knows {TASK_ID}" in seen.why
    (fact,) = seen.facts
    assert isinstance(fact, TaskEnded)
    assert (fact.task_id, fact.attempt, fact.rank) == (TASK_ID, UNKNOWN, UNKNOWN)


def test_job_id_alone_is_a_name_that_others_use_too() -> None:
    seen = parse_event(task_event({"JOB_ID": "nightly-etl"}, startedBy="etl"))
    assert (seen.ours, seen.may_be_ours, seen.job) == (False, True, "")


def test_job_attempt_and_rank_together_are_enough() -> None:
    seen = parse_event(task_event({"JOB_ID": "j1", "JOB_ATTEMPT": "0", "NODE_RANK": "0"}, startedBy=None))
    assert (seen.ours, seen.job, seen.attempt, seen.rank) == (True, "j1", 0, 0)


def test_our_token_alone_says_that_it_is_ours_but_not_whose() -> None:
    seen = parse_event(task_event({}))
    assert (seen.ours, seen.job) == (True, "")
    assert TASK_ID in seen.why


@pytest.mark.parametrize("attempt", ["-1", "one", "1.0", "²", "", "1" * 5000])
def test_an_attempt_that_is_no_number_is_unknown(attempt: str) -> None:
    seen = parse_event(task_event({**TRAIN, "JOB_ATTEMPT": attempt}))
    (fact,) = seen.facts
    assert isinstance(fact, TaskStarted)
    assert (seen.job, seen.attempt, fact.attempt) == ("j1", None, UNKNOWN)


@pytest.mark.parametrize("job", ["", " ", "a\nb", "x" * 300, "\ud800"])
def test_a_job_id_that_is_no_name_is_none(job: str) -> None:
    assert parse_event(task_event({**TRAIN, "JOB_ID": job})).job == ""


def test_overrides_that_contradict_each_other_are_not_believed() -> None:
    both = {"containerOverrides": [override(TRAIN, "a"), override({**TRAIN, "JOB_ID": "j2"}, "b")]}
    seen = parse_event(task_event(overrides=both))
    assert (seen.job, seen.attempt) == ("", None)
    assert "contradict" in seen.why


def test_a_role_from_the_future_is_not_taken_for_training() -> None:
    seen = parse_event(task_event({**TRAIN, "GPU_RECOVERY_KIND": "rehearsal"}, startedBy=""))
    assert (seen.ours, seen.job) == (False, "")


@pytest.mark.parametrize(
    "marks", [{"group": "service:web"}, {"group": None, "startedBy": "ecs-svc/0941323315"}]
)
def test_a_service_is_never_ours(marks: dict[str, Any]) -> None:
    seen = parse_event(task_event(**marks))
    assert (seen.ours, seen.may_be_ours, seen.facts) == (False, False, ())
    assert "service" in seen.why


@pytest.mark.parametrize("ours", ["gpu", f"{PREFIX}:cluster/gpu", ""])
def test_our_cluster_may_be_given_by_name_or_arn(ours: str) -> None:
    assert parse_event(task_event(), cluster=ours).ours


@pytest.mark.parametrize("other", ["gp", "gpu-2", "GPU", "arn:aws:ecs:eu-west-1:111122223333:cluster/gpu"])
@pytest.mark.parametrize("made", [task_event(), instance_event(), health_event("IMPAIRED")])
def test_another_cluster_is_not_ours_however_alike_its_name(made: dict[str, Any], other: str) -> None:
    seen = parse_event(made, cluster=other)
    assert (seen.ours, seen.may_be_ours, seen.job, seen.facts) == (False, False, "", ())
    assert "cluster gpu" in seen.why


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov", "aws-iso-b"])
@pytest.mark.parametrize("path", [TASK_ID, f"gpu/{TASK_ID}"])
def test_every_partition_and_both_arn_formats_are_read(partition: str, path: str) -> None:
    prefix = PREFIX.replace("arn:aws:", f"arn:{partition}:")
    seen = parse_event(
        task_event(clusterArn=f"{prefix}:cluster/gpu", taskArn=f"{prefix}:task/{path}"), cluster="gpu"
    )
    assert (seen.ours, seen.task_id) == (True, TASK_ID)


def test_a_task_on_somebodys_own_machine_is_read_like_any_other() -> None:
    assert parse_event(task_event(launchType="EXTERNAL", availabilityZone=None)).ours


def test_the_task_may_be_named_by_the_envelope_alone() -> None:
    made = task_event()
    made["resources"] = [made["detail"].pop("taskArn")]
    assert parse_event(made).task_id == TASK_ID


# -- which container -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent", "speaks", "env"),
    [
        (
            container(1, "helper", gpuIds=["GPU-0"]),
            container(0, "worker"),
            {**TRAIN, "GPU_RECOVERY_CONTAINER": "worker"},
        ),
        (container(2, "helper"), container(143, "main"), TRAIN),
        (container(1, "uploader"), container(0, "model", gpuIds=["GPU-0"]), {}),
        (container(1, "aws-otel-collector"), container(0, "model"), {}),
    ],
    ids=["we named it", "has our overrides", "holds GPUs", "the other is a known helper"],
)
def test_one_container_speaks_for_the_task(
    silent: dict[str, Any], speaks: dict[str, Any], env: dict[str, str]
) -> None:
    assert ended(stopped(silent, speaks, env=env)).exit_code == speaks["exitCode"]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0, 143, 1, 143, 0), 1), ((143, 0, 137), 0), ((137, 143), 137), ((143, 139, 0), 139)],
)
def test_among_unknown_containers_an_end_that_nobody_ordered_speaks(
    codes: tuple[int, ...], expected: int
) -> None:
    made = stopped(*(container(code, f"c{n}") for n, code in enumerate(codes)), env={})
    assert ended(made).exit_code == expected


def test_a_container_killed_for_memory_is_an_end_that_nobody_ordered() -> None:
    oom = container(137, "b", reason="OutOfMemoryError: Container killed due to memory usage")
    assert meaning(stopped(container(0, "a"), oom, env={})) is Exit.OUT_OF_MEMORY


# -- health checks -------------------------------------------------------------------------------------------


def test_a_check_that_runs_is_known_by_node_and_try() -> None:
    seen = parse_event(task_event({**CHECK, "JOB_ID": "j1", "NODE_RANK": "2"}))
    assert (seen.kind, seen.ours, seen.job, seen.node, seen.rank) == (Kind.CHECK, True, "j1", "node-a", 2)
    assert seen.facts == (CheckStarted(at=AT, node="node-a", check_id=TASK_ID, check_try=3, origin=ORIGIN),)


def test_a_check_of_another_family_is_none_whatever_its_variables_say() -> None:
    made = stopped(container(1), env=CHECK)
    assert parse_event(made, check_family="train").ours
    seen = parse_event(made, check_family="gpu-health")
    assert (seen.ours, seen.may_be_ours) == (False, False)
    assert "of the family train" in seen.why


@pytest.mark.parametrize(
    ("exit_code", "verdict"),
    [
        (0, Verdict.HEALTHY),
        (1, Verdict.REBOOT),
        (2, Verdict.REPLACE),
        (3, Verdict.INCONCLUSIVE),
        (137, Verdict.INCONCLUSIVE),
        (226, Verdict.INCONCLUSIVE),
    ],
)
def test_a_check_answers_by_its_exit_code(exit_code: int, verdict: Verdict) -> None:
    fact = checked(container(exit_code))
    assert (fact.node, fact.check_id, fact.check_try, fact.verdict) == ("node-a", TASK_ID, 3, verdict)
    assert f"exit code {exit_code}" in fact.findings


@pytest.mark.parametrize(
    ("made", "detail"),
    [
        (container(), {"stopCode": "TaskFailedToStart", "stoppedReason": "CannotPullContainerError"}),
        (container(1), {"stopCode": "UserInitiated", "stoppedReason": "Task stopped by user"}),
        (container(0), {"stopCode": "UserInitiated", "stoppedReason": "Task stopped by user"}),
        (container(1, reason="OutOfMemoryError: Container killed due to memory usage"), {}),
        (container(1), {"stopCode": "TerminationNotice", "stoppedReason": "Host EC2 terminated."}),
    ],
)
def test_a_check_that_did_not_end_by_itself_proves_nothing(
    made: dict[str, Any], detail: dict[str, str]
) -> None:
    assert checked(made, **detail).verdict is Verdict.INCONCLUSIVE


def test_a_check_without_marks_is_known_by_its_task_definition_and_counts_for_no_try() -> None:
    made = stopped(
        container(1), env={}, startedBy="older-tool", taskDefinitionArn=f"{PREFIX}:task-definition/dcgm:3"
    )
    for name in ("dcgm", "dcgm:9", f"{PREFIX}:task-definition/dcgm:3"):
        seen = parse_event(made, check_family=name)
        assert (seen.kind, seen.ours, seen.node) == (Kind.CHECK, True, "")
        (fact,) = seen.about("node-a")
        assert isinstance(fact, NodeChecked)
        assert (fact.node, fact.check_try, fact.verdict) == ("node-a", UNKNOWN, Verdict.REBOOT)
    assert parse_event(made, check_family="dcgm-2").kind is Kind.TASK
