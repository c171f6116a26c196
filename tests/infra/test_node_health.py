"""Daemons and idle checks: all there when asked for, with rights for just that, and nothing when not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ecs_gpu_recovery.config import Config, ConfigError
from ecs_gpu_recovery.health.watch import node_metrics, sinks
from ecs_gpu_recovery.infra import image_build
from ecs_gpu_recovery.settings import lambda_settings
from tests.infra.stacks import faults, synthesize
from tests.infra.test_permissions import check_known, statements
from tests.infra.test_rules import resolved, takers
from tests.programs import python

if TYPE_CHECKING:
    from tests.infra.stacks import Made

WATCH = "Nodes-watch"
ASKED = {
    "STACK_NAME": "Nodes",
    "CREATE_ECS_CLUSTER": "true",
    "BUILD_IMAGE": "true",
    "IDLE_CHECK_MINUTES": "720",
    "IDLE_CHECK_LEVEL": "1",
    "TRAINING_TASK_FAMILIES": "train-*",
    "PROGRESS_DIR": "/data/progress",
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With all of it, checked against the AWS Solutions rules while it is made."""
    return synthesize(tmp_path_factory.mktemp("nodes"), ASKED, nag=True)


def definitions(made: Made) -> dict[str, dict[str, Any]]:
    return {d["Family"]: d for d in made.properties("AWS::ECS::TaskDefinition")}


def rights(made: Made, function: str) -> list[tuple[str, str]]:
    """Action and place, for each right of one function."""
    return [
        (action, place)
        for role, _, actions, places in statements(made)
        if role.startswith(f"Functions{function}Role")
        for action in actions
        for place in places
    ]


def test_without_being_asked_for_there_is_none_of_it(stack: Made) -> None:
    assert stack.all("AWS::ECS::Service") == {}
    assert not [family for family in definitions(stack) if family.endswith("-watch")]
    for function in stack.functions().values():
        told = function["Environment"]["Variables"]
        assert not {"NODE_DAEMON_TASKS", "IDLE_CHECK_MINUTES", "IDLE_CHECK_LEVEL"} & set(told)


def test_codebuild_may_read_this_checkout_push_one_image_and_write_one_log(stack: Made, asked: Made) -> None:
    assert stack.all("AWS::CodeBuild::Project") == {}
    (project,) = asked.properties("AWS::CodeBuild::Project")
    (archive,) = (path for path in asked.path.parent.glob("asset.*") if (path / "docker").exists())
    kept = {path.name for path in archive.iterdir()}
    assert kept == {*image_build.PARTS}, "what the Dockerfile copies, and nothing else of a checkout"
    assert str(project["Source"]["Location"]).endswith(f"/{archive.suffix[1:]}.zip']]}}")
    told = asked.template["Outputs"]["BuildImageCommand"]["Value"]
    assert told == "aws codebuild start-build --project-name Nodes-image"
    assert project["Name"] == "Nodes-image"
    (role,) = {role for role, *_ in statements(asked) if role.startswith("ImageBuild")}
    may = {action for name, _, actions, _ in statements(asked) if name == role for action in actions}
    wide = [actions for name, _, actions, places in statements(asked) if name == role and "*" in places]
    assert wide == [["ecr:GetAuthorizationToken"]]
    assert {action.partition(":")[0] for action in may} == {"s3", "ecr", "logs"}


def test_every_ec2_node_gets_the_watch_after_the_cluster_is_there(asked: Made) -> None:
    (service,) = asked.all("AWS::ECS::Service").values()
    (cluster,) = asked.all("AWS::ECS::Cluster")
    properties = service["Properties"]
    assert (properties["SchedulingStrategy"], properties["LaunchType"]) == ("DAEMON", "EC2")
    assert properties["Cluster"] == "gpu-cluster"
    assert cluster in service["DependsOn"]
    (definition,) = [
        d for d in asked.all("AWS::ECS::TaskDefinition").values() if d["Properties"]["Family"] == WATCH
    ]
    (bus,) = asked.all("AWS::Events::EventBus")
    hears = {
        name for name, rule in asked.all("AWS::Events::Rule").items() if "EventBusName" in rule["Properties"]
    }
    assert {bus, *hears} <= set(definition["DependsOn"]), "what is said where nobody listens yet is lost"


def test_the_watch_reads_the_kernel_log_and_holds_no_gpu(asked: Made) -> None:
    definition = definitions(asked)[WATCH]
    assert definition["RequiresCompatibilities"] == ["EC2", "EXTERNAL"]
    assert definition["NetworkMode"] == "host", "the ECS agent answers on the host's own address only"
    (container,) = definition["ContainerDefinitions"]
    check = definitions(asked)["gpu-dcgm-health-check"]["ContainerDefinitions"][0]
    assert container["Image"] == check["Image"]
    assert container["LinuxParameters"] == check["LinuxParameters"]
    assert "ResourceRequirements" not in container, "a GPU that it holds is one the training lacks"
    assert not container.get("Privileged")
    assert container["ReadonlyRootFilesystem"] is True
    paths = {volume["Name"]: volume["Host"]["SourcePath"] for volume in definition["Volumes"]}
    seen = {mount["ContainerPath"]: paths[mount["SourceVolume"]] for mount in container["MountPoints"]}
    (written,) = [mount["ContainerPath"] for mount in container["MountPoints"] if not mount["ReadOnly"]]
    markers = "/var/lib/gpu-recovery/reboots"
    assert not markers.startswith(seen[written]), "it can't write markers of reboots"
    assert container["Command"][-1].startswith(written + "/"), "what it remembers is on the node"
    assert seen == {
        written: written,
        "/host/root": "/var/lib/gpu-recovery/disk",
        "/host/fsx": "/fsx",
        "/host/progress": "/data/progress",
    }, "no more than it measures"


def test_every_number_of_the_nodes_has_a_graph_that_finds_nodes_of_tomorrow(asked: Made) -> None:
    (page,) = [
        resolved(dashboard["DashboardBody"])
        for dashboard in asked.properties("AWS::CloudWatch::Dashboard")
        if dashboard["DashboardName"] == "Nodes-nodes"
    ]
    shown = [w["properties"] for w in json.loads(page)["widgets"] if w["type"] == "metric"]
    searches = [graph["metrics"][0][0]["expression"] for graph in shown]
    start = f'SEARCH(\'Namespace="{node_metrics.NAMESPACE}" MetricName="'
    assert [search.removeprefix(start).partition('"')[0] for search in searches] == list(node_metrics.UNITS)
    assert all('Cluster="gpu-cluster"' in search for search in searches)


def test_the_watch_is_started_with_options_that_it_has(asked: Made, tmp_path: Path) -> None:
    (container,) = definitions(asked)[WATCH]["ContainerDefinitions"]
    command = container["Command"]
    assert command[0] == "gpu-health"
    env = {**os.environ, "GPU_HEALTH_SIMULATED": str(tmp_path)}
    state = str(tmp_path / "watch.json")
    done = python("-m", "ecs_gpu_recovery.health", *command[1:-1], state, "--once", env=env)
    assert done.returncode == 0, done.stderr


def test_the_watch_may_put_two_kinds_of_events_on_the_stacks_own_bus_and_nothing_else(asked: Made) -> None:
    (found,) = [
        (statement, actions, places)
        for role, statement, actions, places in statements(asked)
        if role.startswith("WatchTaskRole")
    ]
    statement, actions, places = found
    assert actions == ["events:PutEvents"]
    assert [place.rpartition(":")[2] for place in places] == ["event-bus/Nodes-watch"]
    assert statement["Condition"] == {
        "StringEquals": {
            "events:source": sinks.SOURCE,
            "events:detail-type": [sinks.DETAIL_TYPE, sinks.PULSE_TYPE],
        }
    }


def test_the_functions_are_told_of_the_watch_and_of_the_idle_checks(asked: Made) -> None:
    told = asked.functions()["RecoverySweeper"]["Environment"]["Variables"]
    plain = {name: value for name, value in told.items() if isinstance(value, str)}
    topic = "arn:aws:sns:us-east-1:123456789012:topic"
    settings = lambda_settings({**plain, "SNS_TOPIC_ARN": topic, "DCGM_HEALTH_CHECK_TASK": "check"})
    assert settings.node_daemons == (WATCH,)
    assert set(settings.node_daemons) <= set(definitions(asked))
    assert settings.idle_check_every is not None
    assert (settings.idle_check_every.total_seconds(), settings.IDLE_CHECK_LEVEL) == (720 * 60, "1")


def test_only_the_sweeper_gets_more_rights_and_just_those_it_needs(stack: Made, asked: Made) -> None:
    def plain(made: Made, function: str) -> set[str]:
        return {action for action, _ in rights(made, function)}

    for function in ("EcsTaskHandler", "DcgmTaskMonitor", "EcsInstanceMonitor"):
        assert plain(asked, function) == plain(stack, function)
        started = [place for action, place in rights(asked, function) if action == "ecs:StartTask"]
        assert not [place for place in started if "watch" in place]
    assert plain(asked, "RecoverySweeper") == plain(stack, "RecoverySweeper"), (
        "the same rights, in more places"
    )
    started = [
        place.rpartition("/")[2]
        for action, place in rights(asked, "RecoverySweeper")
        if action == "ecs:StartTask"
    ]
    assert started == ["gpu-dcgm-health-check:*", "train-*:*", f"{WATCH}:*"]
    (listing,) = [
        place for action, place in rights(asked, "RecoverySweeper") if action == "ecs:ListContainerInstances"
    ]
    assert listing.endswith(":cluster/gpu-cluster")


def test_every_role_of_the_watch_may_be_passed_on_by_the_sweeper(asked: Made) -> None:
    definition = definitions(asked)[WATCH]
    wanted = {asked.name(definition[key]) for key in ("TaskRoleArn", "ExecutionRoleArn")}
    resources = asked.template["Resources"]
    (sweeper,) = [
        r["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
        for name, r in resources.items()
        if name.startswith("FunctionsRecoverySweeperRole") and r["Type"] == "AWS::IAM::Role"
    ]
    passed = set()
    for statement in sweeper:
        if statement["Action"] == "iam:PassRole":
            places = (
                statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            )
            passed |= {asked.name(place) for place in places}
            assert statement["Condition"] == {
                "StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}
            }
    assert wanted <= passed


def test_every_right_exists_and_fits_its_resource_and_conditions(asked: Made) -> None:
    for _, statement, actions, places in statements(asked):
        check_known(statement, actions, places)


def test_a_gpu_fault_goes_to_the_instance_monitor_and_is_not_lost(stack: Made) -> None:
    rules = stack.properties("AWS::Events::Rule")
    patterns = {
        stack.name(rule["Targets"][0]["Arn"]).removeprefix("Queues")[:-8]: [resolved(rule["EventPattern"])]
        for rule in rules
        if rule["EventPattern"]["source"] == [sinks.SOURCE]
    }
    event = {"source": sinks.SOURCE, "detail-type": sinks.DETAIL_TYPE, "detail": {"cluster": "gpu-cluster"}}
    assert takers(patterns, event) == ["EcsInstanceMonitor"]
    for elsewhere in ({"cluster": "gpu-cluster-2"}, {"node": "n1"}):
        assert takers(patterns, {**event, "detail": elsewhere}) == [], (
            "another stack's node has that name too"
        )
    assert takers(patterns, {**event, "detail-type": "something else"}) == []
    (rule,) = [rule for rule in rules if rule["EventPattern"]["source"] == [sinks.SOURCE]]
    (bus,) = stack.all("AWS::Events::EventBus")
    assert stack.name(rule["EventBusName"]) == bus, "on the default bus others could speak for a watch"
    (target,) = rule["Targets"]
    assert stack.name(target["DeadLetterConfig"]["Arn"]) == stack.dead_letters()
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 3600, "MaximumRetryAttempts": 30}


def test_two_pages_show_the_fleet_and_its_nodes(asked: Made) -> None:
    pages = {page["DashboardName"]: page for page in asked.properties("AWS::CloudWatch::Dashboard")}
    assert set(pages) == {"Nodes", "Nodes-nodes"}
    body = json.dumps(pages["Nodes-nodes"]["DashboardBody"])
    assert body.count("SEARCH(") > 8, "a node that comes tomorrow is on the page tomorrow"


def test_people_hear_of_unhealthy_nodes_stuck_jobs_and_dead_letters(stack: Made, asked: Made) -> None:
    for made, prefix in ((stack, "EcsGpuRecoveryStack"), (asked, "Nodes")):
        alarms = {alarm["AlarmName"] for alarm in made.properties("AWS::CloudWatch::Alarm")}
        assert {f"{prefix}-{name}" for name in ("UnhealthyNodes", "StuckJobs", "DeadLetters")} <= alarms


@pytest.mark.slow
def test_the_template_has_no_mistake_that_a_linter_knows(asked: Made) -> None:
    assert faults(asked.path) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WATCH_NODES", "perhaps"),
        ("IDLE_CHECK_MINUTES", "-1"),
        ("IDLE_CHECK_MINUTES", "often"),
        ("IDLE_CHECK_LEVEL", "5"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Config.from_env({name: value})
