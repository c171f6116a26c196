"""What AWS documents, line by line, where another test does not hold it already: limits of calls, words, and order.

Each test names the fact. The simulated ECS refuses what AWS would refuse; here the requests themselves are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecs_gpu_recovery.aws import reboots
from ecs_gpu_recovery.aws.errors import NOT_NOW, translated
from ecs_gpu_recovery.aws.evidence import Evidence
from ecs_gpu_recovery.aws.observe import instances_as_facts
from ecs_gpu_recovery.aws.parse import parse_event
from ecs_gpu_recovery.aws.parsed import Kind
from ecs_gpu_recovery.core.errors import Transient
from ecs_gpu_recovery.core.events import FAULT, NodeSeen
from ecs_gpu_recovery.core.exits import our_reason
from ecs_gpu_recovery.core.keys import token
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.settings import lambda_settings
from testbed.aws.cloud import Cloud
from tests.aws.event_builders import AT, event, task_event
from tests.aws.shell_host import Host
from tests.stories.memory import error
from tests.stories.plots import gpu_fault
from tests.stories.world import CLUSTER, DOCUMENT, World, a_world

NAMES = st.text(min_size=0, max_size=300)


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as made:
        yield made


def requests(world: World) -> list[tuple[str, dict[str, Any]]]:
    """Every request from now on, with the name of its action."""
    found: list[tuple[str, dict[str, Any]]] = []
    world.wire.before.append(lambda service, action, request: found.append((action, request)))
    return found


def of(found: list[tuple[str, dict[str, Any]]], action: str) -> list[dict[str, Any]]:
    return [request for name, request in found if name == action]


# -- limits of the calls ---------------------------------------------------------------------------------------


@given(NAMES)
def test_started_by_has_at_most_36_characters_that_ecs_takes(key: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9/_-]{1,36}", token(key))


@given(NAMES, st.integers(0, 10**6), NAMES)
def test_the_reason_of_a_stop_has_at_most_255_characters(job: str, attempt: int, why: str) -> None:
    assert len(our_reason(job, attempt, why)) <= 255


@given(NAMES)
def test_the_comment_of_a_command_has_at_most_100_characters_and_tells_one_order_from_another(
    key: str,
) -> None:
    ssm: Any = Cloud().client("ssm")
    mine, other = (
        reboots.Reboots(ssm, Evidence(None, ""), document="d", cluster=name) for name in ("gpus", "gpus-2")
    )
    assert len(mine.comment(key)) <= 100
    assert len({mine.comment(key), mine.comment(key + "x"), other.comment(key)}) == 3


def test_a_recovery_keeps_to_every_limit_of_every_call(world: World) -> None:
    """StartTask: ten instances, 36 characters, one task each. PutAttributes: ten. ListTasks: startedBy stands alone."""
    asked = requests(world)
    world.begin(12)
    gpu_fault(world)
    world.run()
    starts = of(asked, "start_task")
    assert starts
    assert all(len(request["containerInstances"]) == 1 for request in starts)
    assert all(len(request["startedBy"]) <= 36 for request in starts)
    assert all(len(str(request["overrides"])) <= 8192 for request in starts)
    labels = of(asked, "put_attributes")
    assert max(len(request["attributes"]) for request in labels) == 10
    assert all(
        set(request) == {"cluster", "startedBy"}
        for request in of(asked, "list_tasks")
        if "startedBy" in request
    )
    commands = of(asked, "send_command")
    assert commands
    assert all(len(request["InstanceIds"]) == 1 for request in commands)
    assert all(30 <= request["TimeoutSeconds"] <= 2592000 for request in commands)


def test_a_hundred_tasks_or_instances_are_described_at_a_time(world: World) -> None:
    world.add_nodes(101)
    asked = requests(world)
    world.tick()
    sizes = [len(request["containerInstances"]) for request in of(asked, "describe_container_instances")]
    assert sorted(sizes) == [1, 100]


# -- refusals come with success, and what is busy comes later --------------------------------------------------


@pytest.mark.parametrize("reason", ["AGENT", "RESOURCE:GPU", "RESOURCE:MEMORY"])
def test_a_refusal_in_failures_that_passes_is_tried_again(world: World, reason: str) -> None:
    """HTTP 200 with `failures` is a refusal, too."""
    names = world.add_nodes(1)
    refusals = [reason, reason]
    ecs = world.cloud.actions["ecs"]
    start = ecs["StartTask"]

    def refuse(data: dict[str, Any]) -> dict[str, Any]:
        if refusals:
            return {
                "tasks": [],
                "failures": [{"arn": data["containerInstances"][0], "reason": refusals.pop()}],
            }
        return start(data)

    ecs["StartTask"] = refuse
    world.submit(names)
    world.until(lambda: bool(world.tasks(live=True)), minutes=20)
    assert world.job().status is JobStatus.IN_PROGRESS
    assert not refusals


@pytest.mark.parametrize("reason", ["MISSING", "INACTIVE", "ATTRIBUTE", "LOCATION"])
def test_a_refusal_in_failures_that_stays_ends_the_job_with_the_reason(world: World, reason: str) -> None:
    names = world.add_nodes(2)
    ecs = world.cloud.actions["ecs"]
    start = ecs["StartTask"]
    bad = world.cloud.control.node(names[1])["arn"]

    def refuse(data: dict[str, Any]) -> dict[str, Any]:
        if data["containerInstances"] == [bad]:
            return {"tasks": [], "failures": [{"arn": bad, "reason": reason, "detail": "see the console"}]}
        return start(data)

    ecs["StartTask"] = refuse
    world.submit(names)
    job = world.run()
    assert job.status is JobStatus.FAILED
    assert reason in job.outcome
    assert world.tasks(live=True) == [], "all tasks or none"


@pytest.mark.parametrize(
    "code", ["ThrottlingException", "ServerException", "RequestLimitExceeded", "SlowDown"]
)
def test_throttling_comes_with_status_400_and_is_waited_for(code: str) -> None:
    assert code in NOT_NOW
    with pytest.raises(Transient, match="starting: " + code), translated("starting"):
        raise error(code, "Rate exceeded")


# -- order and repetition --------------------------------------------------------------------------------------


def test_a_thousand_commands_of_others_leave_no_dead_letter_when_ssm_is_busy(world: World) -> None:
    """One of ours whose end could not be looked at is found by the sweeper."""
    world.wire.fail_all[("ssm", "list_command_invocations")] = "ThrottlingException"
    for number in range(1000):
        detail = {"command-id": str(UUID(int=number)), "document-name": DOCUMENT, "status": "Success"}
        world.deliver(event("EC2 Command Invocation Status-change Notification", detail, "aws.ssm"))
    assert (world.errors, world.dead_letters) == ([], [])


def test_an_instance_event_older_than_the_last_one_changes_nothing(world: World) -> None:
    """Versions order what the bus does not."""
    world.add_nodes(1)
    world.cloud.control.disconnect("n0")
    world.pass_time(5)
    world.cloud.control.connect("n0")
    world.pass_time(5)
    seen = [e for e in world.seen if e["detail-type"] == "ECS Container Instance State Change"]
    away = next(e for e in seen if not e["detail"]["agentConnected"])
    node = world.side.store.node("n0")
    assert node.connected
    world.new_process()
    world.deliver({**away, "id": "late", "time": world.now().isoformat()})
    assert world.side.store.node("n0") == node


@pytest.mark.parametrize(
    ("kind", "status"), [("ACCELERATED_COMPUTE", "PENDING_HEALTHCHECK"), ("DAEMON", "AVAILABLE")]
)
def test_a_health_event_is_noted_once_however_often_it_comes(world: World, kind: str, status: str) -> None:
    """It has no version. What it says of GPUs has a free node examined; it is no verdict itself."""
    world.add_nodes(1)
    told = event(
        "ECS Container Instance Health Change",
        {
            "clusterArn": world.cloud.place.cluster(CLUSTER),
            "containerInstanceArn": world.cloud.control.node("n0")["arn"],
            "overallStatus": "IMPAIRED",
            "healthChecks": [{"type": kind, "status": "IMPAIRED", "statusReason": "XID_46"}],
        },
        time=world.now().isoformat(),
    )
    for _ in range(3):
        world.deliver(told)
    node = world.side.store.node("n0")
    faults = [entry.evidence for entry in node.timeline if entry.why == FAULT]
    assert faults == [f"{kind} IMPAIRED XID_46"]
    assert (node.status, node.verdict, node.check_try) == (status, None, int(status != "AVAILABLE"))


def test_what_is_not_in_an_event_is_not_needed_and_what_is_new_is_tolerated() -> None:
    """No tags, no healthStatus; `cpu` may be the word null; AWS adds properties without asking."""
    seen = parse_event(
        task_event(cpu="null", somethingNew={"a": [1]}, attachments=None, availabilityZone=None)
    )
    assert seen.kind is Kind.TASK
    assert seen.ours


# -- reboots ---------------------------------------------------------------------------------------------------


def test_exit_194_asks_for_a_reboot_and_success_comes_only_after_another_boot(tmp_path: Path) -> None:
    """The SSM agent runs the script again after the reboot: it must be the one that says so."""
    host = Host(tmp_path)
    assert host.run("j1/1/0/reboot") == (194, "rebooting from first")
    assert host.run("j1/1/0/reboot") == (194, "rebooting from first"), "not rebooted yet: ask again"
    host.boot("second")
    assert host.run("j1/1/0/reboot") == (0, "booted as second")
    host.boot("third")
    assert host.run("j1/1/0/reboot") == (0, "booted as third"), "the same order never reboots it twice"
    assert host.run("j1/2/0/reboot")[0] == 194, "another order does"


def test_a_node_that_reboots_keeps_its_container_instance(world: World) -> None:
    """So the record finds it again; the GPUs are counted as they are registered afresh."""
    world.begin(2)
    before = {name: world.side.store.node(name).instance for name in ("n0", "n1")}
    gpu_fault(world)
    world.run()
    assert {name: world.side.store.node(name).instance for name in before} == before


# -- places ----------------------------------------------------------------------------------------------------

PARTITIONS = [("aws", "us-east-1"), ("aws-cn", "cn-north-1"), ("aws-us-gov", "us-gov-west-1")]


@pytest.mark.parametrize(("partition", "region"), PARTITIONS)
def test_china_and_gov_cloud_are_read_like_any_other_place(partition: str, region: str) -> None:
    prefix = f"arn:{partition}:ecs:{region}:123456789012"
    arn = f"{prefix}:container-instance/gpus/0123456789abcdef"
    reply = {
        "containerInstances": [
            {
                "containerInstanceArn": arn,
                "ec2InstanceId": "mi-0123456789abcdef0",
                "agentConnected": True,
                "status": "ACTIVE",
                "version": 7,
                "registeredResources": [
                    {"name": "GPU", "type": "STRINGSET", "stringSetValue": ["GPU-1", "GPU-2"]}
                ],
            }
        ],
        "failures": [],
    }
    (seen,) = instances_as_facts(reply, {arn: "n0"}, AT)
    assert isinstance(seen, NodeSeen)
    assert (seen.node, seen.connected, seen.gpus, seen.version) == ("n0", True, 2, 7)
    found = lambda_settings(
        {
            "ECS_CLUSTER_NAME": f"{prefix}:cluster/gpus",
            "DCGM_HEALTH_CHECK_TASK": f"{prefix}:task-definition/check:3",
            "SNS_TOPIC_ARN": f"arn:{partition}:sns:{region}:123456789012:told",
        }
    )
    assert found.ECS_CLUSTER_NAME == "gpus"


def test_ec2_and_external_hosts_are_told_by_their_ids() -> None:
    cloud = Cloud(seed=1)
    cloud.control.add_node(name="cloud", cluster=CLUSTER)
    cloud.control.add_node(name="anywhere", cluster=CLUSTER, external=True)
    seen = [parse_event(e) for e in cloud.control.events() if "Container Instance" in e["detail-type"]]
    assert {found.host.partition("-")[0] for found in seen} == {"i", "mi"}
