"""Auto Scaling exchanges one instance of a group for another, and what our order makes of its answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from ecs_gpu_recovery.aws import last_look
from ecs_gpu_recovery.aws.evidence import Evidence
from ecs_gpu_recovery.aws.last_look import LastLook
from ecs_gpu_recovery.aws.machines import Machines
from ecs_gpu_recovery.aws.replacements import Replacements
from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.errors import ClusterRefused, Transient
from testbed.aws.cloud import Cloud
from tests.testbed.helpers import CLUSTER

BUCKET, LOOK, KEY = "kept", last_look.name("test"), "node/n0/replace/1"


class Signer:
    """S3 makes no call for an address."""

    def generate_presigned_url(self, ClientMethod: str, Params: dict[str, str], ExpiresIn: int) -> str:
        return f"https://{Params['Bucket']}.s3.us-east-1.amazonaws.com/{Params['Key']}?for={ExpiresIn}"


def replacements(cloud: Cloud, bucket: str = "") -> Replacements:
    autoscaling, ssm = (cast("Any", cloud.client(name)) for name in ("autoscaling", "ssm"))
    look = LastLook(ssm, Evidence(Signer(), bucket), document=LOOK, cluster=CLUSTER)
    return Replacements(autoscaling, look, Machines(cloud.client("ec2")))


def send(cloud: Cloud, *, again: bool = False, node: str = "n0", bucket: str = "") -> str:
    """What the engine hears: nothing where it was carried out."""
    host, now = cloud.control.node(node)["host_id"], datetime.fromtimestamp(cloud.agenda.now(), UTC)
    try:
        replacements(cloud, bucket).send(host, node, KEY, now, again=again)
    except (ClusterRefused, Transient) as exc:
        return type(exc).__name__
    return ""


def machines(cloud: Cloud) -> list[str]:
    return [node["host_id"] for node in cloud.control.nodes() if node["up"]]


def test_the_group_terminates_the_instance_later_and_starts_another_of_the_same_make(cloud: Cloud) -> None:
    old = cloud.control.node("n0")
    cloud.control.put_in_group("n0", "gpus")
    assert (send(cloud), send(cloud, again=True)) == ("", ""), "twice is once"
    assert old["host_id"] in machines(cloud), "the answer comes before the end"
    cloud.advance(10)
    (new,) = [node for node in cloud.control.nodes() if node["name"] not in ("n0", "n1")]
    assert old["host_id"] not in machines(cloud)
    assert len(new["gpus"]) == len(old["gpus"])
    assert len(machines(cloud)) == 2


@pytest.mark.parametrize("passed_on", [False, True])
def test_a_group_gives_its_tags_to_a_new_machine_where_it_says_so(cloud: Cloud, passed_on: bool) -> None:
    cloud.control.put_in_group("n0", "gpus")
    cloud.control.tag_host("n0", {"GpuRecovery": CLUSTER})
    cloud.control.knobs(passes_tags_on=passed_on)
    ask = cloud.client("autoscaling").describe_auto_scaling_groups
    (tag,) = ask()["AutoScalingGroups"][0]["Tags"]
    assert tag == {"Key": "GpuRecovery", "Value": CLUSTER, "PropagateAtLaunch": passed_on}
    assert send(cloud) == ""
    cloud.advance(10)
    (new,) = [node["host_id"] for node in cloud.control.nodes() if node["name"] not in ("n0", "n1")]
    assert cloud.tags_of_host(new) == ({"GpuRecovery": CLUSTER} if passed_on else {})
    assert [one["InstanceId"] for one in ask()["AutoScalingGroups"][0]["Instances"]] == [new]


def test_groups_come_in_pages(cloud: Cloud) -> None:
    cloud.control.put_in_group("n0", "a")
    cloud.control.put_in_group("n1", "b")
    ask = cloud.client("autoscaling").describe_auto_scaling_groups
    first = ask(MaxRecords=1)
    second = ask(MaxRecords=1, NextToken=first["NextToken"])
    names = [group["AutoScalingGroupName"] for page in (first, second) for group in page["AutoScalingGroups"]]
    assert (names, "NextToken" in second) == (["a", "b"], False)


@pytest.mark.parametrize("shrinks", [False, True])
def test_a_group_that_is_to_shrink_starts_none(cloud: Cloud, shrinks: bool) -> None:
    cloud.control.put_in_group("n0", "gpus")
    host = cloud.control.node("n0")["host_id"]
    cloud.client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=host, ShouldDecrementDesiredCapacity=shrinks
    )
    cloud.advance(10)
    assert len(machines(cloud)) == (1 if shrinks else 2)


@pytest.mark.parametrize(
    ("node", "group", "says", "ec2", "again", "heard"),
    [
        ("n0", "", "", "running", False, "ClusterRefused"),
        ("n0", "", "", "running", True, "ClusterRefused"),
        ("n1", "", "", "running", False, "ClusterRefused"),
        ("n0", "gpus", "ScalingActivityInProgress", "running", False, "Transient"),
        ("n0", "gpus", "ResourceContention", "running", True, "Transient"),
        ("n0", "gpus", "Throttling", "running", False, "Transient"),
        ("n0", "gpus", "ValidationError", "shutting-down", True, ""),
        ("n0", "gpus", "ValidationError", "terminated", True, ""),
        ("n0", "gpus", "ValidationError", "running", True, "ClusterRefused"),
    ],
)
def test_what_each_answer_means_for_the_order(
    cloud: Cloud, node: str, group: str, says: str, ec2: str, again: bool, heard: str
) -> None:
    cloud.control.put_in_group(node, group)
    if node == "n0":
        cloud.control.ec2_says(node, ec2)
    if says:
        cloud.control.fail_call(action="TerminateInstanceInAutoScalingGroup", code=says, status=400)
    assert send(cloud, node=node, again=again) == heard


def test_a_right_that_is_missing_is_no_refusal_of_the_cluster(cloud: Cloud) -> None:
    cloud.control.put_in_group("n0", "gpus")
    cloud.control.fail_call(action="TerminateInstanceInAutoScalingGroup", code="AccessDenied", status=400)
    with pytest.raises(ClientError, match="AccessDenied"):
        send(cloud)


def test_the_machine_goes_when_it_has_told_what_it_knows_and_not_before(cloud: Cloud) -> None:
    cloud.control.put_in_group("n0", "gpus")
    cloud.documents.put(LOOK, last_look.content(BUCKET))
    cloud.control.knobs(command_s=2.0)
    assert [send(cloud, bucket=BUCKET), send(cloud, again=True, bucket=BUCKET)] == ["Transient"] * 2
    assert cloud.control.calls()["calls"].get("TerminateInstanceInAutoScalingGroup", 0) == 0
    cloud.advance(5)
    assert send(cloud, again=True, bucket=BUCKET) == ""
    place = f"https://{BUCKET}.s3.us-east-1.amazonaws.com/evidence/n0/{keys.evidence(KEY)}"
    assert [address.partition("?")[0] for address in cloud.cluster.kept] == [place]


def test_a_look_that_ssm_never_ends_is_not_waited_for_for_ever(cloud: Cloud) -> None:
    cloud.control.put_in_group("n0", "gpus")
    cloud.documents.put(LOOK, last_look.content(BUCKET))
    cloud.control.knobs(command_s=1e6)
    assert send(cloud, bucket=BUCKET) == "Transient"
    (one,) = [one for each in cloud.commands.commands.values() for one in each.invocations.values()]
    one.status = "InProgress"  # and so it stays
    cloud.advance(timedelta(minutes=7).total_seconds())
    assert send(cloud, again=True, bucket=BUCKET) == ""
