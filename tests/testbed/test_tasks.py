"""The life of a task, from placement to STOPPED and out of sight."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from testbed.aws.cloud import Cloud
from tests.testbed.helpers import (
    CLUSTER,
    TRAIN,
    instance,
    overrides,
    reason,
    resource,
    sightings,
    start,
    statuses,
    task,
    try_start,
)

# -- starting ------------------------------------------------------------------------------------------------


def test_a_task_is_pending_first_and_runs_a_little_later(cloud: Cloud) -> None:
    placed = try_start(cloud)["tasks"][0]
    assert (placed["lastStatus"], placed["desiredStatus"], placed["version"]) == ("PENDING", "RUNNING", 1)
    cloud.advance(1)
    seen = task(cloud, placed["taskArn"])
    assert (seen["lastStatus"], seen["version"]) == ("RUNNING", 2)
    assert seen["startedAt"] > seen["createdAt"]
    assert "exitCode" not in seen["containers"][0]


def test_a_task_takes_its_gpus_and_gives_them_back(cloud: Cloud) -> None:
    arn = start(cloud)
    held = task(cloud, arn)["containers"][0]["gpuIds"]
    assert held == resource(instance(cloud), "registeredResources", "GPU")
    assert resource(instance(cloud), "remainingResources", "GPU") == []
    assert reason(try_start(cloud)) == "RESOURCE:GPU"
    cloud.control.exit_task(arn, 0)
    assert resource(instance(cloud), "remainingResources", "GPU") == held
    assert not try_start(cloud)["failures"]


def test_an_override_may_ask_for_fewer_gpus(cloud: Cloud) -> None:
    need = {"name": "main", "resourceRequirements": [{"type": "GPU", "value": "4"}]}
    first = start(cloud, overrides={"containerOverrides": [need]})
    second = start(cloud, overrides={"containerOverrides": [need]})
    taken = [set(task(cloud, arn)["containers"][0]["gpuIds"]) for arn in (first, second)]
    assert [len(gpus) for gpus in taken] == [4, 4]
    assert not taken[0] & taken[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cpu": "200000"}, "RESOURCE:CPU"),
        ({"memory": "3000000"}, "RESOURCE:MEMORY"),
    ],
)
def test_a_task_that_is_too_big_is_refused(cloud: Cloud, change: dict[str, str], why: str) -> None:
    assert reason(try_start(cloud, overrides=change)) == why


def test_two_tasks_cannot_have_one_port(cloud: Cloud) -> None:
    row = {"name": "main", "image": "x", "memory": 64, "portMappings": [{"containerPort": 29500}]}
    cloud.client("ecs").register_task_definition(
        family="serve", networkMode="host", containerDefinitions=[row]
    )
    start(cloud, taskDefinition="serve")
    assert reason(try_start(cloud, taskDefinition="serve")) == "RESOURCE:PORTS"


def test_a_node_whose_agent_is_away_refuses(cloud: Cloud) -> None:
    cloud.control.disconnect("n0")
    assert reason(try_start(cloud)) == "AGENT"
    cloud.control.connect("n0")
    assert not try_start(cloud)["failures"]


def test_a_node_that_is_unknown_or_deregistered_refuses(cloud: Cloud) -> None:
    ecs, arn = cloud.client("ecs"), cloud.control.node("n0")["arn"]
    assert reason(try_start(cloud, containerInstances=[arn[:-4] + "0000"])) == "MISSING"
    ecs.deregister_container_instance(cluster=CLUSTER, containerInstance=arn)
    assert reason(try_start(cloud)) == "INACTIVE"


def test_one_call_starts_what_it_can_and_lists_the_rest(cloud: Cloud) -> None:
    cloud.control.disconnect("n1")
    both = [cloud.control.node(name)["arn"] for name in ("n0", "n1")]
    reply = try_start(cloud, containerInstances=both)
    assert [t["containerInstanceArn"] for t in reply["tasks"]] == both[:1]
    assert reply["failures"] == [{"arn": both[1], "reason": "AGENT"}]


@pytest.mark.parametrize(
    "wrong",
    [
        {"startedBy": "x" * 37},
        {"startedBy": "a b"},
        {"containerInstances": [f"{i:032x}" for i in range(11)]},
        {"overrides": {"containerOverrides": [{"name": "main", "command": ["x" * 8192]}]}},
        {"overrides": {"containerOverrides": [{"name": "nobody"}]}},
    ],
)
def test_what_ecs_would_not_take_is_refused(cloud: Cloud, wrong: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match=r"\(InvalidParameterException\)"):
        try_start(cloud, **wrong)


def test_unknown_clusters_and_definitions_are_told(cloud: Cloud) -> None:
    with pytest.raises(ClientError, match=r"\(ClusterNotFoundException\)"):
        try_start(cloud, cluster="other")
    with pytest.raises(ClientError, match=r"\(ClientException\)"):
        try_start(cloud, taskDefinition="train:9")


def test_the_environment_is_repeated_in_answers_and_events(cloud: Cloud) -> None:
    arn = start(cloud, overrides=overrides(JOB_ID="j1", NODE_RANK="0"))
    main, router = task(cloud, arn)["overrides"]["containerOverrides"]
    assert {"name": "JOB_ID", "value": "j1"} in main["environment"]
    assert router == {"name": "log-router"}
    told = [e for e in cloud.control.events() if e["detail"].get("taskArn") == arn]
    assert all(e["detail"]["overrides"]["containerOverrides"][0] == main for e in told)


def test_an_external_node_has_no_zone_and_no_awsvpc(cloud: Cloud) -> None:
    seen = task(cloud, start(cloud, "n1"))
    assert seen["launchType"] == "EXTERNAL"
    assert "availabilityZone" not in seen
    cloud.client("ecs").register_task_definition(**{**TRAIN, "family": "vpc", "networkMode": "awsvpc"})
    cloud.control.add_node(name="n2", cluster=CLUSTER, external=True)
    assert reason(try_start(cloud, "n2", taskDefinition="vpc")) == "ATTRIBUTE"


# -- ending --------------------------------------------------------------------------------------------------


def test_a_container_that_exits_ends_its_task(cloud: Cloud) -> None:
    arn = start(cloud)
    cloud.control.exit_task(arn, 1)
    cloud.advance(1)
    seen = task(cloud, arn)
    assert (seen["lastStatus"], seen["stopCode"]) == ("STOPPED", "EssentialContainerExited")
    assert seen["stoppedReason"] == "Essential container in task exited"
    assert [c["exitCode"] for c in seen["containers"]] == [1, 143]
    assert statuses(cloud, arn) == [
        (1, "PENDING", "RUNNING"),
        (2, "RUNNING", "RUNNING"),
        (3, "STOPPED", "STOPPED"),
    ]


def test_a_stop_is_answered_at_once_and_done_later(cloud: Cloud) -> None:
    arn = start(cloud, tags=[{"key": "team", "value": "a"}])
    answer = cloud.client("ecs").stop_task(cluster=CLUSTER, task=arn, reason="gpu-recovery j1/0: peer")[
        "task"
    ]
    assert (answer["lastStatus"], answer["desiredStatus"], answer["tags"]) == ("RUNNING", "STOPPED", [])
    assert reason(try_start(cloud)) == "RESOURCE:GPU"
    cloud.advance(1)
    seen = task(cloud, arn)
    assert (seen["lastStatus"], seen["stopCode"]) == ("STOPPED", "UserInitiated")
    assert seen["stoppedReason"] == "gpu-recovery j1/0: peer"
    assert seen["containers"][0]["exitCode"] == 143
    assert statuses(cloud, arn)[2:] == [(3, "RUNNING", "STOPPED"), (4, "STOPPED", "STOPPED")]


def test_a_process_that_ignores_sigterm_is_killed(cloud: Cloud) -> None:
    cloud.control.script(on_term=None)
    arn = start(cloud)
    cloud.client("ecs").stop_task(cluster=CLUSTER, task=arn)
    cloud.advance(0.1)
    assert task(cloud, arn)["lastStatus"] == "RUNNING"
    cloud.advance(1)
    assert task(cloud, arn)["containers"][0]["exitCode"] == 137
    assert task(cloud, arn)["stoppedReason"] == "Task stopped by user"


def test_a_task_stopped_before_it_started_has_no_exit_code(cloud: Cloud) -> None:
    cloud.control.script(pull_s=60)
    arn = start(cloud)
    assert task(cloud, arn)["lastStatus"] == "PENDING"
    cloud.client("ecs").stop_task(cluster=CLUSTER, task=arn)
    cloud.advance(120)
    seen = task(cloud, arn)
    assert seen["lastStatus"] == "STOPPED"
    assert all("exitCode" not in container for container in seen["containers"])


def test_the_first_to_stop_a_task_is_remembered(cloud: Cloud) -> None:
    arn = start(cloud)
    for why in ("first", "second"):
        cloud.client("ecs").stop_task(cluster=CLUSTER, task=arn, reason=why)
    cloud.advance(1)
    again = cloud.client("ecs").stop_task(cluster=CLUSTER, task=arn, reason="third")["task"]
    assert (again["stoppedReason"], again["lastStatus"]) == ("first", "STOPPED")


def test_scripted_tasks_end_as_written(cloud: Cloud) -> None:
    cloud.control.script(env={"NODE_RANK": "1"}, exit_code=139, after_s=2)
    cloud.control.script(env={"NODE_RANK": "2"}, accident="oom")
    cloud.control.script(env={"NODE_RANK": "3"}, accident="cannot pull")
    cloud.control.add_node(name="n2", cluster=CLUSTER)
    arns = [start(cloud, f"n{rank - 1}", overrides=overrides(NODE_RANK=str(rank))) for rank in (1, 2, 3)]
    cloud.advance(3)
    crashed, starved, unpulled = (task(cloud, arn) for arn in arns)
    assert crashed["containers"][0]["exitCode"] == 139
    assert starved["containers"][0]["reason"].startswith("OutOfMemoryError")
    assert unpulled["stopCode"] == "TaskFailedToStart"
    assert unpulled["containers"][0]["reason"].startswith("CannotPullContainerError")
    assert "exitCode" not in unpulled["containers"][0]


def test_a_rule_counts_its_tasks(cloud: Cloud) -> None:
    cloud.control.script(exit_code=1, times=2)
    codes = []
    for _ in range(3):
        arn = start(cloud)
        codes.append(task(cloud, arn)["containers"][0].get("exitCode"))
    assert codes == [1, 1, None]


def test_a_health_check_answers_with_the_nodes_verdicts(cloud: Cloud) -> None:
    cloud.control.health("n0", 1)
    cloud.control.verdicts("n0", [3, 2])
    codes = []
    for _ in range(4):
        arn = start(cloud, overrides=overrides(GPU_RECOVERY_KIND="check"))
        codes.append(task(cloud, arn)["containers"][0]["exitCode"])
    assert codes == [3, 2, 1, 1]


def test_with_awsvpc_a_task_passes_through_every_state(cloud: Cloud) -> None:
    cloud.client("ecs").register_task_definition(**{**TRAIN, "family": "vpc", "networkMode": "awsvpc"})
    arn = start(cloud, taskDefinition="vpc")
    cloud.client("ecs").stop_task(cluster=CLUSTER, task=arn)
    cloud.advance(1)
    assert [status for _, status, _ in statuses(cloud, arn)] == [
        "PROVISIONING",
        "PENDING",
        "ACTIVATING",
        "RUNNING",
        "RUNNING",
        "DEACTIVATING",
        "STOPPING",
        "DEPROVISIONING",
        "STOPPED",
    ]
    on_the_way = [
        e["detail"] for e in cloud.control.events() if e["detail"].get("lastStatus") == "DEPROVISIONING"
    ]
    assert on_the_way[0]["containers"][0]["exitCode"] == 143


def test_every_placement_and_end_is_a_new_version_of_the_instance(cloud: Cloud) -> None:
    arn = start(cloud)
    cloud.control.exit_task(arn, 0)
    cloud.advance(1)
    assert sightings(cloud) == [(2, True, "ACTIVE", 8), (3, True, "ACTIVE", 0), (4, True, "ACTIVE", 8)]


# -- looking -------------------------------------------------------------------------------------------------


def test_started_by_finds_tasks_that_are_meant_to_run_and_no_others(cloud: Cloud) -> None:
    ecs = cloud.client("ecs")
    arn = start(cloud, startedBy="gr-1")
    start(cloud, "n1", startedBy="gr-2")
    assert ecs.list_tasks(cluster=CLUSTER, startedBy="gr-1")["taskArns"] == [arn]
    ecs.stop_task(cluster=CLUSTER, task=arn)
    assert ecs.list_tasks(cluster=CLUSTER, startedBy="gr-1")["taskArns"] == []
    assert ecs.list_tasks(cluster=CLUSTER, desiredStatus="STOPPED")["taskArns"] == [arn]
    assert ecs.list_tasks(cluster=CLUSTER, desiredStatus="PENDING")["taskArns"] == []
    with pytest.raises(ClientError, match=r"\(InvalidParameterException\)"):
        ecs.list_tasks(cluster=CLUSTER, startedBy="gr-1", desiredStatus="STOPPED")


def test_lists_come_in_pages_of_a_hundred(cloud: Cloud) -> None:
    ecs = cloud.client("ecs")
    ecs.register_task_definition(
        family="tiny", containerDefinitions=[{"name": "main", "image": "x", "memory": 1}]
    )
    arn = cloud.control.node("n0")["arn"]
    for _ in range(101):
        ecs.start_task(cluster=CLUSTER, taskDefinition="tiny", containerInstances=[arn])
    pages = [page["taskArns"] for page in ecs.get_paginator("list_tasks").paginate(cluster=CLUSTER)]
    assert [len(page) for page in pages] == [100, 1]
    assert len({arn for page in pages for arn in page}) == 101
    with pytest.raises(ClientError, match=r"\(InvalidParameterException\)"):
        ecs.describe_tasks(cluster=CLUSTER, tasks=[arn for page in pages for arn in page])
    with pytest.raises(ClientError, match=r"\(InvalidParameterException\)"):
        ecs.list_tasks(cluster=CLUSTER, nextToken="made up")


def test_a_stopped_task_is_remembered_for_an_hour(cloud: Cloud) -> None:
    arn = start(cloud)
    cloud.control.exit_task(arn, 1)
    cloud.advance(3599)
    assert task(cloud, arn)["lastStatus"] == "STOPPED"
    cloud.advance(2)
    reply = cloud.client("ecs").describe_tasks(cluster=CLUSTER, tasks=[arn])
    assert reply["failures"] == [{"arn": arn, "reason": "MISSING"}]
    with pytest.raises(ClientError, match=r"\(InvalidParameterException\)"):
        cloud.client("ecs").stop_task(cluster=CLUSTER, task=arn)


def test_reads_may_lag_behind_writes(cloud: Cloud) -> None:
    cloud.control.knobs(read_lag_s=1.0)
    arn = start(cloud, startedBy="gr-1")
    ecs = cloud.client("ecs")
    assert ecs.describe_tasks(cluster=CLUSTER, tasks=[arn])["failures"][0]["reason"] == "MISSING"
    assert ecs.list_tasks(cluster=CLUSTER, startedBy="gr-1")["taskArns"] == []
    cloud.advance(1)
    assert task(cloud, arn)["lastStatus"] == "RUNNING"
    cloud.control.exit_task(arn, 1)
    assert task(cloud, arn)["lastStatus"] == "RUNNING"
    cloud.advance(1.1)
    assert task(cloud, arn)["lastStatus"] == "STOPPED"


def test_run_task_picks_a_node_and_obeys_a_client_token_once(cloud: Cloud) -> None:
    ecs = cloud.client("ecs")
    asked = {"cluster": CLUSTER, "taskDefinition": "train", "clientToken": "t1"}
    first, again = ecs.run_task(**asked), ecs.run_task(**asked)
    assert first["tasks"][0]["taskArn"] == again["tasks"][0]["taskArn"]
    assert ecs.run_task(**{**asked, "clientToken": "t2"})["failures"][0]["reason"] == "RESOURCE:GPU"
    with pytest.raises(ClientError, match=r"\(ConflictException\)"):
        ecs.run_task(**{**asked, "group": "other"})
