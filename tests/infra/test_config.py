"""What a deployment can choose, in both ways: variables, and the class itself."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from ecs_gpu_recovery.config import Config, ConfigError
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.core.setting import Setting, rows, text_of
from ecs_gpu_recovery.settings import LambdaSettings, lambda_settings

GUIDE = {
    "TASK_TABLE_NAME": "my_ecs_task",
    "JOB_TABLE_NAME": "my_ecs_job",
    "NODE_TABLE_NAME": "my_ecs_node",
    "ECS_CLUSTER_NAME": "my-gpu-cluster",
    "DCGM_HEALTH_CHECK_TASK": "arn:aws:ecs:region:account:task-definition/gpu-dcgm-health-check:1",
    "LAMBDA_TIMEOUT_SECONDS": "120",
    "LAMBDA_MEMORY_SIZE": "512",
    "SNS_TOPIC_NAME": "my-gpu-notifications",
    "SNS_TOPIC_DISPLAY_NAME": "My GPU Training Job Notifications",
}
TOLD = {
    "ECS_CLUSTER_NAME": "gpus",
    "DCGM_HEALTH_CHECK_TASK": "check:3",
    "SNS_TOPIC_ARN": "arn:aws:sns:us-east-1:123456789012:topic",
}


def problems(env: dict[str, str], config: type[Config] = Config) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config.from_env(env)
    return str(caught.value).split("; ")


def test_the_defaults_are_those_of_the_schema() -> None:
    config = Config.from_env({})
    assert (config.TASK_TABLE_NAME, config.JOB_TABLE_NAME, config.NODE_TABLE_NAME) == (
        "ecs_task",
        "ecs_job",
        "ecs_node",
    )
    assert config.policy.max_retries == 1


@pytest.mark.parametrize(
    ("env", "watches"),
    [
        ({}, False),
        ({"IMAGE": "x:1"}, True),
        ({"BUILD_IMAGE": "true"}, True),
        ({"IMAGE": "x:1", "WATCH_NODES": "false"}, False),
        ({"WATCH_NODES": "true"}, True),
    ],
)
def test_nodes_are_watched_where_the_image_is_known_to_be_there(env: dict[str, str], watches: bool) -> None:
    assert Config.from_env(env).watches_nodes is watches


def test_an_image_from_elsewhere_is_not_built_here() -> None:
    assert problems({"BUILD_IMAGE": "true", "IMAGE": "x:1"}) == [
        "BUILD_IMAGE builds the stack's own image: leave IMAGE out"
    ]


@pytest.mark.parametrize("owner", [Config, LambdaSettings, Policy])
def test_every_setting_is_a_row_that_reads_its_default_and_is_documented(owner: type) -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    table = rows(owner)
    # No variable sets these.
    ours = {
        "policy",
        "policy_texts",
        "alarm_tries",
        "timeline_limit",
        "labels",
        "keeps_evidence",
        "wait_told_after",
    }
    assert {row.attribute for row in table} == {each.name for each in fields(owner)} - ours
    for row in table:
        read_from(row, row.default)
        read_from(row, row.default if row.embedded is None else row.embedded)
        assert row.about
        assert all(f"`{name}`" in page for name in (row.name, *row.older))
    assert len({row.name for row in table}) == len(table)


def read_from(row: Setting, value: object) -> None:
    """What nothing can stand in for may be empty; everything else reads what it is without."""
    if value != "":
        assert row.parse(text_of(value)) == value, row.name


def test_what_is_chosen_reaches_the_functions_under_the_same_name() -> None:
    config = Config.from_env({"IDLE_CHECK_MINUTES": "30", "JOB_TABLE_NAME": "my_jobs", "MAX_RETRIES": "3"})
    assert config.told() == {"JOB_TABLE_NAME": "my_jobs", "IDLE_CHECK_MINUTES": "30"}
    told = lambda_settings({**TOLD, **config.told(), **config.policy_texts})
    assert (told.JOB_TABLE_NAME, told.IDLE_CHECK_MINUTES, told.policy.max_retries) == ("my_jobs", 30, 3)


def test_variables_come_before_the_class() -> None:
    config = Config.from_env(GUIDE)
    assert {name: str(getattr(config, name)) for name in GUIDE} == GUIDE
    assert config.LAMBDA_TIMEOUT_SECONDS == 120
    assert (config.check_family, config.makes_check_task) == ("gpu-dcgm-health-check", False)


def test_the_class_can_be_edited() -> None:
    class Edited(Config):
        TASK_TABLE_NAME = "my_ecs_task"
        LAMBDA_TIMEOUT_SECONDS = 300
        POLICY = {"MAX_RETRIES": 2}  # noqa: RUF012 (as somebody would write it)

    config = Edited.from_env({})
    assert (config.TASK_TABLE_NAME, config.LAMBDA_TIMEOUT_SECONDS) == ("my_ecs_task", 300)
    assert config.policy.max_retries == 2
    assert Edited.from_env({"MAX_RETRIES": "5"}).policy.max_retries == 5


def test_an_edited_class_is_read_as_strictly_as_variables() -> None:
    class Edited(Config):
        CREATE_FSX = "perhaps"
        POLICY = {"MAX_TRIES": "2"}  # noqa: RUF012

    said = problems({}, Edited)
    assert said == ["CREATE_FSX='perhaps': use true or false", "POLICY has no number 'MAX_TRIES'"]


def test_names_of_an_earlier_version_are_read_too() -> None:
    old = {"TRAINING_JOB_TABLE_NAME": "old_job", "CONTAINER_INSTANCE_TABLE_NAME": "old_node"}
    config = Config.from_env(old)
    assert (config.JOB_TABLE_NAME, config.NODE_TABLE_NAME) == ("old_job", "old_node")
    assert Config.from_env({**old, "JOB_TABLE_NAME": "new_job"}).JOB_TABLE_NAME == "new_job"
    settings = lambda_settings({**TOLD, **old})
    assert (settings.JOB_TABLE_NAME, settings.NODE_TABLE_NAME, settings.TASK_TABLE_NAME) == (
        "old_job",
        "old_node",
        "ecs_task",
    )


@pytest.mark.parametrize("text", ["False", "false", "0", "no", "off"])
def test_false_is_false(text: str) -> None:
    assert Config.from_env({"CREATE_EC2_INSTANCE": text}).CREATE_EC2_INSTANCE is False


def test_every_problem_is_reported_at_once() -> None:
    env = {"CREATE_FSX": "maybe", "LAMBDA_MEMORY_SIZE": "lots", "MAX_RETRIES": "-1", "SUBNET_ID": "here"}
    said = " ".join(problems(env))
    assert all(name in said for name in env)


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("FSX_STORAGE_GIB", "3000", "4800"),  # AWS sells no other sizes
        ("LOG_RETENTION_DAYS", "1000", "2192"),
        ("CONSOLE_ALLOWED_CIDRS", "10.0.0.0/8,10.0.0.0/33", "10.0.0.0/8,192.0.2.7/32"),
        ("CONSOLE_ALLOWED_CIDRS", "10.0.0.1/8", "10.0.0.0/8"),
    ],
)
def test_what_aws_would_refuse_is_refused_before_anything_is_deployed(name: str, bad: str, good: str) -> None:
    assert name in problems({name: bad})[0]
    assert str(getattr(Config.from_env({name: good}), name)) == good


def test_what_belongs_together_is_looked_at_together() -> None:
    assert problems({"CREATE_EC2_INSTANCE": "true"}) == ["CREATE_EC2_INSTANCE needs VPC_ID and SUBNET_ID"]
    assert problems({"JOB_TABLE_NAME": "ecs_task"}) == [
        "three tables need three names, not ecs_task, ecs_task, ecs_node"
    ]
    assert problems({"TRAINING_TASK": "gpu-dcgm-health-check"}) == [
        "TRAINING_TASK and DCGM_HEALTH_CHECK_TASK must be two families"
    ]
    assert "DISPATCH_LEASE_S" in problems({"DISPATCH_LEASE_S": "60"})[0]


def test_a_wrong_value_hides_no_contradiction_between_others() -> None:
    said = problems({"LAMBDA_MEMORY_SIZE": "lots", "CREATE_FSX": "true", "JOB_TABLE_NAME": "ecs_task"})
    assert said == [
        "LAMBDA_MEMORY_SIZE='lots': use a whole number",
        "three tables need three names, not ecs_task, ecs_task, ecs_node",
        "CREATE_FSX needs VPC_ID and SUBNET_ID",
    ]
    assert problems({"CREATE_FSX": "true", "VPC_ID": "here"}) == [
        "VPC_ID='here': use an id such as vpc-0123456789abcdef0"
    ], "what it needs is there, only wrong"


def test_a_function_says_everything_that_it_was_not_told() -> None:
    with pytest.raises(ConfigError) as caught:
        lambda_settings({"MAX_RETRIES": "many"})
    assert str(caught.value).split("; ") == [
        "ECS_CLUSTER_NAME is missing",
        "DCGM_HEALTH_CHECK_TASK is missing",
        "SNS_TOPIC_ARN is missing",
        "MAX_RETRIES='many': use a whole number",
    ]


def test_a_function_takes_a_cluster_by_name_or_arn() -> None:
    arn = "arn:aws-cn:ecs:cn-north-1:123456789012:cluster/gpus"
    assert lambda_settings({**TOLD, "ECS_CLUSTER_NAME": arn}).ECS_CLUSTER_NAME == "gpus"
    assert lambda_settings(TOLD).ECS_CLUSTER_NAME == "gpus"


def test_a_reboot_is_waited_for_at_least_as_long_as_it_may_be_on_its_way() -> None:
    """A node that was given up would be rebooted in other hands."""
    short = (
        "REBOOT_TIMEOUT_S must be 600 or more: an order that was given up could still be delivered until then"
    )
    assert problems({"REBOOT_TIMEOUT_S": "599"}) == [short]
    with pytest.raises(ConfigError, match="REBOOT_TIMEOUT_S must be 600 or more"):
        lambda_settings({**TOLD, "REBOOT_TIMEOUT_S": "599"})
    assert lambda_settings({**TOLD, "REBOOT_TIMEOUT_S": "600"}).policy.reboot_timeout.total_seconds() == 600


def test_no_deployment_may_reboot_machines_that_are_not_tagged() -> None:
    assert Config.from_env({"ECS_CLUSTER_NAME": "mine"}).node_tag == ("GpuRecovery", "mine")
    assert Config.from_env({"NODE_TAG": "Fleet=training"}).node_tag == ("Fleet", "training")

    class Open(Config):
        NODE_TAG = ""

    with pytest.raises(ConfigError, match="NODE_TAG='': use key=value, and give that tag to the nodes"):
        Open.from_env({})
