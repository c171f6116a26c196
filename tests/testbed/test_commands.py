"""Commands on hosts: delivered, run, rebooted under, lost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from ecs_gpu_recovery.aws import reboot_document, reboots
from ecs_gpu_recovery.aws.evidence import Evidence
from testbed.aws import events
from testbed.aws.cloud import Cloud
from tests.testbed.helpers import CLUSTER, REBOOT, invocation, order_reboot, start, task


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_reboot_order_succeeds_only_after_the_host_booted_anew(cloud: Cloud, node: str) -> None:
    old = cloud.control.node(node)["boot_id"]
    command = order_reboot(cloud, node)
    assert (invocation(cloud, command, node)["Status"], invocation(cloud, command, node)["ResponseCode"]) == (
        "Pending",
        -1,
    )
    cloud.advance(0.2)
    assert invocation(cloud, command, node)["Status"] == "InProgress"
    cloud.advance(1)
    done, new = invocation(cloud, command, node), cloud.control.node(node)["boot_id"]
    assert (done["Status"], done["ResponseCode"]) == ("Success", 0)
    assert new != old
    assert done["StandardOutputContent"] == f"rebooting from {old}\nbooted as {new}\n"


def test_the_command_that_the_fleet_sends_is_known(cloud: Cloud) -> None:
    host = cloud.control.node("n0")["host_id"]
    ssm = cast("Any", cloud.client("ssm"))
    sender = reboots.Reboots(ssm, Evidence(None, ""), document=REBOOT, cluster=CLUSTER)
    sender.send(host, "n0", "j1/0/3/reboot")
    cloud.advance(2)
    found = sender.find(host, "j1/0/3/reboot", datetime.fromtimestamp(cloud.agenda.now(), UTC))
    assert (found and found.status, cloud.control.node("n0")["boots"]) == ("Success", 2)
    assert cloud.control.node("n0")["reboot_keys"] == ["j1/0/3/reboot"]


def test_a_host_obeys_each_key_once(cloud: Cloud) -> None:
    first = order_reboot(cloud, key="k1")
    again = order_reboot(cloud, key="k1")
    cloud.advance(2)
    late = order_reboot(cloud, key="k1")
    cloud.advance(2)
    assert [invocation(cloud, command)["Status"] for command in (first, again, late)] == ["Success"] * 3
    assert cloud.control.node("n0")["boots"] == 2
    order_reboot(cloud, key="k2")
    cloud.advance(2)
    assert cloud.control.node("n0")["boots"] == 3


def test_a_reboot_order_kills_the_tasks_on_the_node(cloud: Cloud) -> None:
    arn = start(cloud)
    order_reboot(cloud)
    cloud.advance(2)
    assert task(cloud, arn)["containers"][0]["exitCode"] == 137


def test_a_host_that_never_returns_leaves_the_command_in_progress_until_it_times_out(cloud: Cloud) -> None:
    cloud.control.next_reboot("n0", returns=False)
    command = order_reboot(cloud)
    cloud.advance(3000)
    assert invocation(cloud, command)["Status"] == "InProgress"
    cloud.advance(700)
    overdue = invocation(cloud, command)
    assert (overdue["Status"], overdue["StatusDetails"]) == ("TimedOut", "Execution Timed Out")


def test_a_command_to_a_host_that_is_down_times_out_undelivered(cloud: Cloud) -> None:
    cloud.control.power_off("n0")
    command = order_reboot(cloud, TimeoutSeconds=60)
    cloud.advance(61)
    lost = invocation(cloud, command)
    assert (lost["Status"], lost["StatusDetails"]) == ("TimedOut", "Delivery Timed Out")
    assert lost["ResponseCode"] == -1
    cloud.control.power_on("n0")
    cloud.advance(5)
    assert cloud.control.node("n0")["boots"] == 2, "an order that timed out is not carried out"


def test_a_command_waits_for_an_agent_that_comes_back_in_time(cloud: Cloud) -> None:
    cloud.control.ssm_agent("n0", up=False)
    command = order_reboot(cloud)
    cloud.advance(30)
    assert invocation(cloud, command)["Status"] == "Pending"
    cloud.control.ssm_agent("n0", up=True)
    cloud.advance(2)
    assert invocation(cloud, command)["Status"] == "Success"


def test_a_test_may_write_down_how_a_script_ends(cloud: Cloud) -> None:
    cloud.control.script_result("n0", 1, stderr="no permission")
    command = order_reboot(cloud)
    cloud.advance(1)
    failed = invocation(cloud, command)
    assert (failed["Status"], failed["ResponseCode"], failed["StandardErrorContent"]) == (
        "Failed",
        1,
        "no permission",
    )
    assert cloud.control.node("n0")["boots"] == 1


def test_the_boot_id_can_be_asked_for_and_other_scripts_fail(cloud: Cloud) -> None:
    ssm, host = cloud.client("ssm"), cloud.control.node("n0")["host_id"]
    ids = [
        ssm.send_command(
            DocumentName="AWS-RunShellScript", InstanceIds=[host], Parameters={"commands": [line]}
        )
        for line in ("cat /proc/sys/kernel/random/boot_id", "rm -rf /")
    ]
    cloud.advance(1)
    asked, other = (invocation(cloud, reply["Command"]["CommandId"]) for reply in ids)
    assert asked["StandardOutputContent"].strip() == cloud.control.node("n0")["boot_id"]
    assert (other["Status"], other["ResponseCode"]) == ("Failed", 127)


def test_a_command_takes_the_parameters_of_its_document_and_no_others(cloud: Cloud) -> None:
    host, ssm = cloud.control.node("n0")["host_id"], cloud.client("ssm")
    fine = reboot_document.arguments(REBOOT, CLUSTER, "k1")

    def refused(document: str, parameters: dict[str, list[str]]) -> str:
        with pytest.raises(ClientError) as said:
            ssm.send_command(DocumentName=document, InstanceIds=[host], Parameters=parameters)
        return str(said.value.response["Error"]["Code"])

    assert refused("Nobodys-RebootNode", fine) == "InvalidDocument"
    assert refused(REBOOT, {**fine, "commands": ["id"]}) == "InvalidParameters"
    assert refused(REBOOT, {"key": fine["key"]}) == "InvalidParameters"
    for evil in ("k1\nid", "$(id)", "k1 ; id", ""):
        assert refused(REBOOT, {**fine, "key": [evil]}) == "InvalidParameters"
    assert refused(REBOOT, {**fine, "marker": ["../../../etc/passwd"]}) == "InvalidParameters"
    assert ssm.list_commands(InstanceId=host)["Commands"] == []


def test_a_cancelled_command_is_over_and_does_nothing_later(cloud: Cloud) -> None:
    cloud.control.ssm_agent("n0", up=False)
    command = order_reboot(cloud)
    cloud.advance(30)
    cloud.client("ssm").cancel_command(CommandId=command)
    assert invocation(cloud, command)["Status"] == "Cancelled"
    cloud.control.ssm_agent("n0", up=True)
    cloud.advance(30)
    assert (invocation(cloud, command)["Status"], cloud.control.node("n0")["boots"]) == ("Cancelled", 1)


def test_commands_are_found_by_host_with_their_comment(cloud: Cloud) -> None:
    ssm = cloud.client("ssm")
    hosts = [cloud.control.node(name)["host_id"] for name in ("n0", "n1")]
    first, second = order_reboot(cloud, "n0", "a"), order_reboot(cloud, "n0", "b")
    order_reboot(cloud, "n1", "c")
    found = ssm.list_commands(InstanceId=hosts[0])["Commands"]
    assert [(row["CommandId"], row["Comment"]) for row in found] == [
        (second, "gpu-recovery b"),
        (first, "gpu-recovery a"),
    ]
    cloud.advance(3)
    rows = ssm.list_command_invocations(InstanceId=hosts[0], Details=True)["CommandInvocations"]
    assert [row["CommandId"] for row in rows] == [second, first]
    assert "booted as" in rows[0]["CommandPlugins"][0]["Output"]
    assert ssm.list_commands(Filters=[{"key": "Status", "value": "Success"}], MaxResults=2).get("NextToken")
    assert ssm.list_commands(InstanceId="i-00000000000000000")["Commands"] == []


def test_hosts_tell_whether_their_agent_is_heard(cloud: Cloud) -> None:
    cloud.control.power_off("n1")
    rows = cloud.client("ssm").describe_instance_information()["InstanceInformationList"]
    told = [(row["ComputerName"], row["PingStatus"], row["ResourceType"]) for row in rows]
    assert told == [("n0", "Online", "EC2Instance"), ("n1", "ConnectionLost", "ManagedInstance")]
    host = cloud.control.node("n1")["host_id"]
    only = cloud.client("ssm").describe_instance_information(
        Filters=[{"Key": "InstanceIds", "Values": [host]}]
    )
    assert [row["InstanceId"] for row in only["InstanceInformationList"]] == [host]


def test_a_host_that_is_gone_or_unknown_takes_no_command(cloud: Cloud) -> None:
    cloud.control.terminate("n0")
    with pytest.raises(ClientError, match="InvalidInstanceId"):
        order_reboot(cloud)


def test_an_invocation_may_not_be_there_right_after_the_command(cloud: Cloud) -> None:
    cloud.control.knobs(read_lag_s=1)
    command = order_reboot(cloud)
    with pytest.raises(ClientError, match="InvocationDoesNotExist"):
        invocation(cloud, command)
    cloud.advance(2)
    assert invocation(cloud, command)["Status"] == "Success"


def test_every_change_of_a_command_is_told(cloud: Cloud) -> None:
    command = order_reboot(cloud)
    cloud.advance(2)
    told = [e for e in cloud.control.events(delivered=True) if e["source"] == "aws.ssm"]
    assert [(e["detail-type"], e["detail"]["status"]) for e in told] == [
        (events.INVOCATION, "InProgress"),
        (events.COMMAND, "InProgress"),
        (events.INVOCATION, "Success"),
        (events.COMMAND, "Success"),
    ]
    assert {e["detail"]["command-id"] for e in told} == {command}
    host = cloud.control.node("n0")["host_id"]
    assert all(e["resources"][0].endswith(f":instance/{host}") for e in told)
