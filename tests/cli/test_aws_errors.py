"""What goes wrong on the way to AWS is told in words that say what to do next, and never as a traceback."""

from __future__ import annotations

from typing import Any

import botocore.exceptions
import pytest

from ecs_gpu_recovery.control.aws_errors import Where, of_answer, of_boto3
from ecs_gpu_recovery.core.errors import Refused, Transient
from tests.cli.aws_person import Person, named
from tests.cli.conftest import run_command
from tests.stories.memory import error
from tests.stories.world import CHECK, CLUSTER

WHERE = Where(region="eu-west-1", cluster="gpus", tables=("ecs_job",))


# -- before anything is asked --------------------------------------------------------------------------------


def test_without_a_region_nothing_is_guessed(person: Person) -> None:
    person.region_name = None
    person("jobs").refused("no AWS region is chosen: set AWS_REGION")
    assert person("doctor").code == 1
    assert "FAIL  region" in person("doctor").out


def test_the_region_of_the_aws_command_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """CloudShell and the AWS command set AWS_REGION; boto3 alone does not look at it."""
    from ecs_gpu_recovery.control.aws_settings import session

    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert session({"AWS_REGION": "cn-north-1"}).region_name == "cn-north-1"
    with pytest.raises(Refused, match="no AWS region"):
        session({})
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-gov-west-1")
    assert session({}).region_name == "us-gov-west-1"


def test_without_credentials_a_person_is_told_to_sign_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real boto3: nothing leaves this machine, because there is nothing to sign with."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("ECS_CLUSTER_NAME", "DCGM_HEALTH_CHECK_TASK", "SNS_TOPIC_ARN"):
        monkeypatch.delenv(name, raising=False)
    for args in (("jobs",), ("nodes",), ("stop", "j1"), ("notices",)):
        run_command(*args, "--backend", "aws").refused("no usable AWS credentials", "aws sso login")
    run_command("doctor", "--backend", "aws").tells("FAIL  credentials", code=1)


def test_a_profile_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "research")
    run_command("jobs", "--backend", "aws").refused("research", "AWS_PROFILE")


# -- which deployment ----------------------------------------------------------------------------------------


def test_without_variables_the_deployment_is_asked_for_its_own(person: Person) -> None:
    person.functions.environment["ECS_CLUSTER_NAME"] = CLUSTER
    assert person("jobs").code == 0
    assert ("lambda", "get_function_configuration") in person.made()


def test_with_all_variables_nobody_is_asked(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECS_CLUSTER_NAME", CLUSTER)
    monkeypatch.setenv("DCGM_HEALTH_CHECK_TASK", CHECK)
    monkeypatch.setenv("SNS_TOPIC_ARN", person.world.account.topic)
    assert person("jobs").code == 0
    assert not [call for call in person.made() if call[0] == "lambda"]


def test_a_stack_that_is_not_there_is_told_with_three_ways_out(person: Person) -> None:
    person.functions.names.clear()
    person("jobs").refused("EcsGpuRecoveryStack", "us-east-1", "AWS_REGION", "STACK_NAME", "ECS_CLUSTER_NAME")


def test_another_stack_is_chosen_by_its_name(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    person.functions.names.append("SecondCluster-EcsTaskHandler")
    monkeypatch.setenv("STACK_NAME", "SecondCluster")
    assert person("jobs").code == 0


def test_older_names_of_tables_come_before_the_deployments(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ecs_gpu_recovery.control.aws_settings import settings

    found = settings({"TRAINING_JOB_TABLE_NAME": "old_jobs", "MAX_RETRIES": "2"}, person)
    assert (found.JOB_TABLE_NAME, found.TASK_TABLE_NAME, found.policy.max_retries) == (
        "old_jobs",
        "ecs_task",
        2,
    )


# -- what AWS answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "action", "code", "exit_code", "word"),
    [
        ("dynamodb", "query", "AccessDeniedException", 4, "docs/permissions.md"),
        ("dynamodb", "query", "ExpiredTokenException", 4, "have expired: sign in again"),
        ("dynamodb", "query", "UnrecognizedClientException", 4, "aws sts get-caller-identity"),
        ("dynamodb", "query", "ThrottlingException", 5, "ThrottlingException"),
        ("dynamodb", "query", "ProvisionedThroughputExceededException", 5, "ProvisionedThroughput"),
        ("dynamodb", "query", "InternalServerError", 5, "InternalServerError"),
    ],
)
def test_an_answer_of_aws_becomes_a_sentence_and_an_exit_code(
    person: Person, service: str, action: str, code: str, exit_code: int, word: str
) -> None:
    person.world.wire.fail_all[(service, action)] = code
    told = person("jobs")
    assert told.code == exit_code, told
    assert word in told.err
    assert "Traceback" not in told.err
    assert told.out == ""


def test_a_busy_cluster_does_not_hide_the_nodes_that_are_known(person: Person) -> None:
    assert person("nodes").code == 0
    person.world.wire.fail_all[("ecs", "list_container_instances")] = "ThrottlingException"
    told = person("nodes", "--json")
    assert told.code == 0
    assert len(told.data["nodes"]) == 2
    assert "ThrottlingException" in told.err


def test_a_cluster_that_is_not_there_is_named(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECS_CLUSTER_NAME", "typo")
    for args in (("nodes",), ("submit", "--any", "1", "--image", "x:1", "--", "true")):
        person(*args).refused("there is no ECS cluster 'typo' in us-east-1", "aws ecs list-clusters")


@pytest.mark.parametrize("operation", ["GetItem", "Query", "TransactWriteItems", "UpdateItem"])
def test_a_missing_table_is_told_with_the_variables_that_choose_it(operation: str) -> None:
    told = of_answer(
        named(error("ResourceNotFoundException", "Requested resource not found"), operation), WHERE
    )
    assert isinstance(told, Refused)
    for word in ("ecs_job", "eu-west-1", "JOB_TABLE_NAME", "docs/deployment.md", "doctor"):
        assert word in str(told)


def test_what_nobody_foresaw_still_names_the_call_and_the_doctor() -> None:
    told = of_answer(named(error("StrangeException", "odd"), "StartTask"), WHERE)
    assert str(told) == (
        "AWS refused StartTask: StrangeException: odd. See:  gpu-recovery doctor --backend aws"
    )


@pytest.mark.parametrize(
    ("raised", "kind", "word"),
    [
        (botocore.exceptions.NoRegionError(), Refused, "AWS_REGION"),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="https://x"), Transient, "did not answer"),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="https://x"), Transient, "did not answer"),
        (botocore.exceptions.UnauthorizedSSOTokenError(), Refused, "aws sso login"),
        (botocore.exceptions.ParamValidationError(report="bad"), Refused, "never got as far as AWS"),
    ],
)
def test_errors_of_boto3_itself_are_told_too(raised: Any, kind: type, word: str) -> None:
    told = of_boto3(raised, WHERE)
    assert isinstance(told, kind)
    assert word in str(told)
