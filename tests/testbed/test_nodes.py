"""What happens to nodes, and how much of it ECS gets to see."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from testbed.aws import events
from testbed.aws.cloud import Cloud
from testbed.aws.control import ControlRefused
from tests.testbed.helpers import (
    CLUSTER,
    instance,
    reason,
    resource,
    sightings,
    start,
    statuses,
    task,
    try_start,
)


def test_a_flap_is_two_events_and_no_harm(cloud: Cloud) -> None:
    arn = start(cloud)
    cloud.control.disconnect("n0", seconds=5)
    cloud.advance(10)
    assert [connected for _, connected, _, _ in sightings(cloud)][-2:] == [False, True]
    assert task(cloud, arn)["lastStatus"] == "RUNNING"


def test_what_happens_while_the_agent_is_away_is_told_when_it_is_back(cloud: Cloud) -> None:
    arn = start(cloud)
    cloud.control.disconnect("n0")
    cloud.control.exit_task(arn, 1)
    cloud.advance(60)
    assert task(cloud, arn)["lastStatus"] == "RUNNING"
    cloud.control.connect("n0")
    assert task(cloud, arn)["containers"][0]["exitCode"] == 1


def test_a_stop_waits_for_the_agent(cloud: Cloud) -> None:
    arn = start(cloud)
    cloud.control.disconnect("n0")
    cloud.client("ecs").stop_task(cluster=CLUSTER, task=arn)
    cloud.advance(60)
    assert task(cloud, arn)["lastStatus"] == "RUNNING"
    cloud.control.connect("n0")
    cloud.advance(1)
    assert task(cloud, arn)["lastStatus"] == "STOPPED"


@pytest.mark.parametrize("exit_code", [137, 255, 0])
def test_a_reboot_kills_the_tasks_and_keeps_the_arn(cloud: Cloud, exit_code: int) -> None:
    before, arn = cloud.control.node("n0"), start(cloud)
    cloud.control.next_reboot("n0", exit_code=exit_code, deaths_first=True)
    cloud.control.reboot("n0")
    cloud.advance(0.2)
    assert (instance(cloud)["agentConnected"], task(cloud, arn)["lastStatus"]) == (False, "RUNNING")
    assert reason(try_start(cloud)) == "AGENT"
    cloud.advance(1)
    after, dead = cloud.control.node("n0"), task(cloud, arn)
    assert (after["arn"], after["connected"]) == (before["arn"], True)
    assert after["boot_id"] != before["boot_id"]
    assert (dead["lastStatus"], dead["stopCode"]) == ("STOPPED", "EssentialContainerExited")
    assert dead["containers"][0]["exitCode"] == exit_code
    assert sightings(cloud)[2:] == [(4, False, "ACTIVE", 0), (5, False, "ACTIVE", 8), (6, True, "ACTIVE", 8)]


def test_the_dead_may_be_told_after_the_agent_is_back(cloud: Cloud) -> None:
    start(cloud)
    cloud.control.next_reboot("n0", deaths_first=False)
    cloud.control.reboot("n0")
    cloud.advance(1)
    assert sightings(cloud)[2:] == [(4, False, "ACTIVE", 0), (5, True, "ACTIVE", 0), (6, True, "ACTIVE", 8)]


def test_ecs_may_not_notice_a_fast_reboot(cloud: Cloud) -> None:
    arn = start(cloud)
    cloud.control.next_reboot("n0", fast=True)
    cloud.control.reboot("n0")
    cloud.advance(1)
    assert all(connected for _, connected, _, _ in sightings(cloud))
    assert (cloud.control.node("n0")["boots"], task(cloud, arn)["lastStatus"]) == (2, "STOPPED")


def test_a_node_may_come_back_with_fewer_gpus(cloud: Cloud) -> None:
    cloud.control.next_reboot("n0", lose_gpus=1)
    cloud.control.reboot("n0")
    cloud.advance(1)
    assert len(resource(instance(cloud), "registeredResources", "GPU")) == 7
    assert reason(try_start(cloud)) == "RESOURCE:GPU"


def test_a_node_may_never_come_back_and_its_tasks_then_never_end(cloud: Cloud) -> None:
    arn = start(cloud)
    cloud.control.next_reboot("n0", returns=False)
    cloud.control.reboot("n0")
    cloud.advance(86_400)
    assert not instance(cloud)["agentConnected"]
    assert task(cloud, arn)["lastStatus"] == "RUNNING"
    cloud.control.power_on("n0")
    assert task(cloud, arn)["containers"][0]["exitCode"] == 137


@pytest.mark.parametrize(("verdict", "cures", "left"), [(1, True, 0), (1, False, 1), (2, True, 2)])
def test_a_reboot_cures_what_a_reboot_can_cure(cloud: Cloud, verdict: int, cures: bool, left: int) -> None:
    cloud.control.health("n0", verdict)
    cloud.control.next_reboot("n0", cures=cures)
    cloud.control.reboot("n0")
    cloud.advance(1)
    assert cloud.control.node("n0")["health"] == left


def test_a_task_placed_during_an_unnoticed_reboot_starts_after_it(cloud: Cloud) -> None:
    cloud.control.next_reboot("n0", fast=True, seconds=10)
    cloud.control.reboot("n0")
    arn = start(cloud)
    assert task(cloud, arn)["lastStatus"] == "PENDING"
    cloud.advance(11)
    assert task(cloud, arn)["lastStatus"] == "RUNNING"


def test_a_terminated_host_ends_its_tasks_without_exit_codes(cloud: Cloud) -> None:
    arn, host = start(cloud), cloud.control.node("n0")["host_id"]
    cloud.control.terminate("n0")
    dead = task(cloud, arn)
    assert (dead["stopCode"], dead["stoppedReason"]) == (
        "TerminationNotice",
        f"Host EC2 (instance {host}) terminated.",
    )
    assert "exitCode" not in dead["containers"][0]
    cloud.advance(1)
    assert sightings(cloud)[-1][1:3] == (False, "INACTIVE")


def test_a_terminated_host_whose_agent_was_away_stays_registered(cloud: Cloud) -> None:
    cloud.control.disconnect("n0")
    cloud.control.terminate("n0")
    assert (instance(cloud)["status"], instance(cloud)["agentConnected"]) == ("ACTIVE", False)


def test_a_spot_interruption_is_told_before_the_host_is_gone(cloud: Cloud) -> None:
    arn = start(cloud)
    cloud.control.interrupt("n0")
    cloud.advance(1)
    assert task(cloud, arn)["stopCode"] == "SpotInterruption"
    assert statuses(cloud, arn)[2:] == [(3, "RUNNING", "STOPPED"), (4, "STOPPED", "STOPPED")]


def test_nobody_terminates_an_external_host(cloud: Cloud) -> None:
    for order in ("terminate", "interrupt"):
        with pytest.raises(ControlRefused, match="no EC2 instance"):
            cloud.control.do(order, {"node": "n1"})


def test_draining_blocks_starts_and_lets_tasks_run(cloud: Cloud) -> None:
    ecs, arn, where = cloud.client("ecs"), start(cloud), cloud.control.node("n0")["arn"]
    ecs.update_container_instances_state(cluster=CLUSTER, containerInstances=[where], status="DRAINING")
    cloud.advance(60)
    assert task(cloud, arn)["lastStatus"] == "RUNNING"
    assert instance(cloud)["status"] == "DRAINING"
    cloud.control.exit_task(arn, 0)
    assert reason(try_start(cloud)) == "INACTIVE"
    cloud.control.knobs(start_on_draining=True)
    assert not try_start(cloud)["failures"]


def test_instances_are_listed_by_status_and_filter(cloud: Cloud) -> None:
    ecs = cloud.client("ecs")
    first, second = (cloud.control.node(name) for name in ("n0", "n1"))
    ecs.put_attributes(cluster=CLUSTER, attributes=[{"name": "pool", "value": "a", "targetId": first["arn"]}])
    ecs.update_container_instances_state(
        cluster=CLUSTER, containerInstances=[second["arn"]], status="DRAINING"
    )

    def found(**asked: str) -> list[str]:
        arns: list[str] = ecs.list_container_instances(cluster=CLUSTER, **asked)["containerInstanceArns"]
        return arns

    assert found() == [first["arn"], second["arn"]]
    assert found(status="DRAINING") == [second["arn"]]
    assert found(filter="attribute:pool == a") == [first["arn"]]
    assert found(filter=f"ec2InstanceId in ['{second['host_id']}']") == [second["arn"]]
    assert found(filter="attribute:ecs.capability.external exists and agentConnected == true") == [
        second["arn"]
    ]
    with pytest.raises(ClientError, match="does not understand"):
        found(filter="task:group == x")


def test_a_node_takes_ten_attributes_of_ours(cloud: Cloud) -> None:
    ecs, arn = cloud.client("ecs"), cloud.control.node("n0")["arn"]
    rows = [{"name": f"a{i}", "value": str(i), "targetId": arn} for i in range(10)]
    ecs.put_attributes(cluster=CLUSTER, attributes=rows)
    with pytest.raises(ClientError, match="AttributeLimitExceeded"):
        ecs.put_attributes(cluster=CLUSTER, attributes=[{"name": "one more", "value": "", "targetId": arn}])
    with pytest.raises(ClientError, match="TargetNotFound"):
        ecs.put_attributes(cluster=CLUSTER, attributes=[{"name": "a", "targetId": arn[:-4] + "0000"}])
    ecs.delete_attributes(cluster=CLUSTER, attributes=[{"name": "a0", "targetId": arn}])
    ecs.put_attributes(cluster=CLUSTER, attributes=[{"name": "one more", "value": "", "targetId": arn}])
    listed = ecs.list_attributes(cluster=CLUSTER, targetType="container-instance", attributeName="a9")
    assert [row["value"] for row in listed["attributes"]] == ["9"]


def test_ecs_may_have_an_opinion_on_a_nodes_health(cloud: Cloud) -> None:
    cloud.control.impair("n0", reason="XID_79")
    arn = cloud.control.node("n0")["arn"]
    reply = cloud.client("ecs").describe_container_instances(
        cluster=CLUSTER, containerInstances=[arn], include=["CONTAINER_INSTANCE_HEALTH"]
    )
    assert reply["containerInstances"][0]["healthStatus"]["overallStatus"] == "IMPAIRED"
    assert "healthStatus" not in instance(cloud)
    told = [e for e in cloud.control.events() if e["detail-type"] == events.HEALTH]
    assert told[0]["detail"]["healthChecks"][0]["statusReason"] == "XID_79"
    assert "version" not in told[0]["detail"]
