"""Nodes, commands and ticks; what is none of our business; and what is no event at all."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.aws.parse import parse_event
from ecs_gpu_recovery.aws.parsed import Kind
from ecs_gpu_recovery.core.events import FaultSeen, NodeLeaving, NodeSeen, TaskEnded, Tick
from ecs_gpu_recovery.core.model import Leave, Notice
from tests.aws.event_builders import (
    AT,
    INSTANCE,
    PREFIX,
    TASK_ID,
    command_event,
    container,
    event,
    health_event,
    instance_event,
    stopped,
    task_event,
)

ROOT = Path(__file__).resolve().parents[2]


def sighting(**detail: object) -> NodeSeen:
    (fact,) = parse_event(instance_event(**detail)).facts
    assert isinstance(fact, NodeSeen)
    return fact


# -- nodes ---------------------------------------------------------------------------------------------------


def test_a_sighting_tells_agent_gpus_version_and_whose_registration_it_is() -> None:
    seen = parse_event(instance_event(registeredAt="2026-03-01T01:00:00.500Z"), cluster="gpu")
    assert (seen.kind, seen.ours, seen.instance, seen.host) == (
        Kind.INSTANCE,
        True,
        INSTANCE,
        "i-0abcdef1234567890",
    )
    known = {"instance": INSTANCE, "host": "i-0abcdef1234567890"}
    registered = datetime(2026, 3, 1, 1, 0, 0, 500_000, tzinfo=UTC)
    assert seen.about("node-a") == (
        NodeSeen(at=AT, node="node-a", connected=True, gpus=8, version=41, registered=registered, **known),
    )


def test_a_disconnected_agent_is_told_and_nothing_more() -> None:
    fact = sighting(agentConnected=False, ec2InstanceId="mi-0123456789abcdef0")
    assert (fact.connected, fact.gone, fact.gpus, fact.version) == (False, False, 8, 41)
    assert (fact.host, fact.registered) == ("mi-0123456789abcdef0", None)


@pytest.mark.parametrize("status", ["INACTIVE", "DEREGISTERING"])
def test_an_instance_that_left_the_cluster_is_gone(status: str) -> None:
    fact = sighting(status=status)
    assert (fact.gone, status in fact.why) == (True, True)


def test_an_instance_that_is_drained_is_to_be_taken_away() -> None:
    fact = sighting(status="DRAINING")
    assert (fact.gone, "DRAINING" in fact.why) == (False, True)
    assert fact.leave == Leave(notice=Notice.SEEN, why="the instance is DRAINING", at=AT)


@pytest.mark.parametrize(
    ("what", "detail", "notice", "minutes"),
    [
        ("EC2 Spot Instance Interruption Warning", {"instance-action": "terminate"}, Notice.TOLD, 2),
        ("EC2 Spot Instance Interruption Warning", {"instance-action": "stop"}, Notice.TOLD, 2),
        ("EC2 Spot Instance Interruption Warning", {"instance-action": "hibernate"}, Notice.TOLD, 0),
        ("EC2 Instance Rebalance Recommendation", {}, Notice.MAYBE, 50),
    ],
)
def test_ec2_tells_that_it_takes_an_instance_away(
    what: str, detail: dict[str, str], notice: Notice, minutes: int
) -> None:
    host = "i-0abcdef1234567890"
    seen = parse_event(event(what, {"instance-id": host, **detail}, source="aws.ec2"))
    assert (seen.kind, seen.ours, seen.may_be_ours, seen.host) == (Kind.LEAVING, False, True, host)
    (fact,) = seen.about("node-a")
    assert isinstance(fact, NodeLeaving)
    assert fact.leave is not None
    assert (fact.node, fact.leave.notice) == ("node-a", notice)
    assert fact.leave.until == AT + timedelta(minutes=minutes)


@pytest.mark.parametrize("detail", [{}, {"instance-id": "i-0abcdef1234567890"}, {"instance-action": "stop"}])
def test_a_notice_that_names_no_instance_or_no_end_is_malformed(detail: dict[str, str]) -> None:
    seen = parse_event(event("EC2 Spot Instance Interruption Warning", detail, source="aws.ec2"))
    assert seen.kind is Kind.MALFORMED


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ([{"name": "CPU", "type": "INTEGER", "integerValue": 96}], 0),
        ([{"name": "GPU", "type": "STRINGSET", "stringSetValue": ["GPU-a", "GPU-b", "GPU-a"]}], 2),
        ([{"name": "GPU", "type": "STRINGSET", "stringSetValue": None}], None),
        ([], None),
        (None, None),
        ("GPU", None),
    ],
)
def test_gpus_are_counted_as_registered_and_unknown_where_nothing_is_listed(
    resources: Any, gpus: int | None
) -> None:
    assert sighting(registeredResources=resources).gpus == gpus


@pytest.mark.parametrize("version", ["41", 4.5, True, -3, None, 10**40])
def test_a_version_that_is_no_count_orders_nothing(version: object) -> None:
    assert parse_event(instance_event(version=version)).version == 0


def test_impaired_hardware_is_evidence() -> None:
    gpu = {"type": "ACCELERATED_COMPUTE", "status": "IMPAIRED", "statusReason": "XID_46"}
    fine = {"type": "CONTAINER_RUNTIME", "status": "OK", "statusReason": None}
    seen = parse_event(health_event("IMPAIRED", gpu, fine))
    assert seen.kind is Kind.INSTANCE_HEALTH
    assert seen.about("node-a") == (
        FaultSeen(at=AT, node="node-a", evidence="ACCELERATED_COMPUTE IMPAIRED XID_46", grave=True),
    )


def test_what_is_no_fault_of_a_gpu_is_not_grave() -> None:
    (fact,) = parse_event(health_event("IMPAIRED", {"type": "DAEMON", "status": "IMPAIRED"})).about("node-a")
    assert isinstance(fact, FaultSeen)
    assert not fact.grave


@pytest.mark.parametrize("overall", ["OK", "INITIALIZING", "INSUFFICIENT_DATA"])
def test_good_health_is_nothing_to_record(overall: str) -> None:
    seen = parse_event(health_event(overall, {"type": "DAEMON", "status": overall}))
    assert (seen.ours, seen.facts) == (True, ())


# -- commands, ticks, and the rest ---------------------------------------------------------------------------


def test_a_finished_command_is_a_hint_to_ask_for_the_proof_of_a_reboot() -> None:
    seen = parse_event(command_event())
    assert (seen.kind, seen.command_id, seen.host) == (Kind.REBOOT_COMMAND, "c-1", "mi-0aa11bb22cc33dd44")
    assert (seen.ours, seen.may_be_ours, seen.status, seen.facts) == (True, True, "Success", ())


def test_a_command_of_another_document_is_no_reboot_whatever_it_says() -> None:
    script = {"commands": ["# gpu-recovery j1/0/2/reboot"]}
    seen = parse_event(command_event(**{"document-name": "AWS-RunShellScript", "parameters": script}))
    assert (seen.ours, seen.may_be_ours) == (False, False)
    assert "AWS-RunShellScript is not what reboots are ordered with" in seen.why


def test_a_command_may_name_its_host_in_the_envelope() -> None:
    kind = "EC2 Command Status-change Notification"
    detail = {"command-id": "c-1", "status": "Failed", "document-name": "Stack-RebootNode"}
    arn = "arn:aws:ec2:us-west-2:111122223333:instance/i-0abcdef1234567890"
    seen = parse_event(event(kind, detail, source="aws.ssm", resources=[arn]))
    assert (seen.ours, seen.host) == (True, "i-0abcdef1234567890")
    two = parse_event(event(kind, detail, source="aws.ssm", resources=[arn, arn[:-1] + "1"]))
    assert two.host == ""


@pytest.mark.parametrize(
    ("source", "detail"), [("aws.scheduler", "{}"), ("aws.events", {}), ("aws.scheduler", None)]
)
def test_a_scheduled_event_is_a_tick_of_its_own_time(source: str, detail: object) -> None:
    seen = parse_event(event("Scheduled Event", detail, source=source), cluster="gpu")
    assert (seen.ours, seen.kind, seen.facts) == (True, Kind.TICK, (Tick(at=AT),))


@pytest.mark.parametrize(
    ("source", "detail_type"),
    [
        ("aws.ec2", "EC2 Instance State-change Notification"),
        ("aws.ecs", "ECS Service Action"),
        ("my.tool", "ECS Task State Change"),
        (" aws.ecs", "ECS Task State Change"),
        ("aws.ecs", "Scheduled Event"),
    ],
)
def test_other_events_and_other_sources_tell_us_nothing(source: str, detail_type: str) -> None:
    seen = parse_event({**task_event(), "source": source, "detail-type": detail_type})
    assert (seen.kind, seen.ours, seen.may_be_ours, seen.facts) == (Kind.OTHER, False, False, ())


@pytest.mark.parametrize(
    "text",
    ["2026-11-15T02:00:00Z", "2026-11-15T02:00:00.000Z", "2026-11-15T03:00:00+01:00", "2026-11-15T02:00:00"],
)
def test_time_is_read_as_utc(text: str) -> None:
    assert parse_event({**task_event(), "time": text}).at == AT


@pytest.mark.parametrize(
    "time",
    [
        *(
            None,
            "",
            "yesterday",
            "2026-11-15",
            1794708000,
            "2026-13-40T99:00:00Z",
            "0001-01-01T00:00:00+23:59",
        ),
        *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    ],
)
def test_an_event_without_a_time_is_malformed(time: object) -> None:
    seen = parse_event({**task_event(), "time": time})
    assert (seen.kind, seen.ours, seen.at, seen.facts) == (Kind.MALFORMED, False, None, ())
    assert "time" in seen.why


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (None, "nothing"),
        ([], "a list"),
        ("x", "text"),
        (7, "a number"),
        (True, "true or false"),
        (object(), "object"),
        ({}, "no source"),
        ({"tasks": [], "failures": []}, "answer of the ECS API"),
        (event("ECS Task State Change", "oops"), "detail is text"),
        (task_event(clusterArn=None), "clusterArn"),
        (task_event(clusterArn="gpu"), "clusterArn"),
        (task_event(taskArn=None), "taskArn"),
        (task_event(taskArn=["x"]), "taskArn"),
        (task_event(taskArn=f"{PREFIX}:task/other/{TASK_ID}"), "cluster other"),
        (task_event(lastStatus=None), "lastStatus"),
        (task_event(containers={"exitCode": 1}), "containers"),
        (task_event(containers=[1]), "containers"),
        (stopped({"name": "main", "exitCode": "1"}), "exit code is text"),
        (stopped({"name": "main", "exitCode": True}), "exit code is true or false"),
        (stopped(containers=None), "lists no containers"),
        (instance_event(agentConnected="yes"), "agentConnected"),
        (instance_event(status=None), "status"),
        (instance_event(containerInstanceArn=f"{PREFIX}:task/gpu/x"), "containerInstanceArn"),
        (health_event(""), "overallStatus"),
        (command_event(status=""), "status"),
    ],
)
def test_what_is_malformed_is_named(made: object, word: str) -> None:
    seen = parse_event(made)
    assert (seen.kind, seen.ours, seen.may_be_ours, seen.facts) == (Kind.MALFORMED, False, False, ())
    assert word in seen.why


def test_a_quarter_of_a_megabyte_of_noise_stays_small() -> None:
    noise = "\ud800 é\x00" * 64_000
    seen = parse_event(stopped(container(1, reason=noise), stoppedReason=noise, group=noise, startedBy=noise))
    (fact,) = seen.facts
    assert isinstance(fact, TaskEnded)
    assert len(fact.reason) < 3_000
    assert len(seen.why) < 4_000
    fact.reason.encode()


def test_parsing_needs_nothing_but_the_standard_library() -> None:
    code = "import sys, ecs_gpu_recovery.aws.parse; print(*sorted(n.split('.')[0] for n in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"boto3", "botocore", "typer", "rich", "pydantic", "asyncio"} & set(run.stdout.split())
