"""EC2's word on machines that ECS does not hear from."""

from __future__ import annotations

import boto3
import pytest
from botocore.config import Config

from ecs_gpu_recovery.aws.machines import Machines
from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.world import World

KEYS = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}


@pytest.mark.ministack
def test_a_local_aws_tells_which_machines_are_off(aws_url: str) -> None:
    ec2 = boto3.client("ec2", endpoint_url=aws_url, config=Config(retries={"total_max_attempts": 1}), **KEYS)
    made = ec2.run_instances(ImageId="ami-12345678", MinCount=3, MaxCount=3, InstanceType="p5.48xlarge")
    runs, stopped, ended = [one["InstanceId"] for one in made["Instances"]]
    ec2.stop_instances(InstanceIds=[stopped])
    ec2.terminate_instances(InstanceIds=[ended])
    asked = (runs, stopped, ended, "i-00000000000000000", "mi-0123456789abcdef0")
    assert Machines(ec2).off(asked) == {stopped: "stopped", ended: "terminated"}
    assert Machines(ec2).off(()) == {}


def a_lost_node(world: World, state: str) -> World:
    """Its agent goes away, and ECS says nothing more; EC2 does."""
    world.add_nodes(3, alike=True)
    world.submit(["n0", "n1"], failover="any")
    world.pass_time(60)
    world.cloud.control.disconnect("n1")
    world.cloud.control.ec2_says("n1", state)
    return world


@pytest.mark.parametrize("state", ["terminated", "stopped"])
def test_a_rank_leaves_a_machine_that_is_off_at_once(world: World, state: str) -> None:
    a_lost_node(world, state)
    before = world.now()
    world.until(lambda: world.job().attempt == 1 and world.job().status is JobStatus.IN_PROGRESS)
    job = world.job()
    assert [rank.node for rank in job.ranks] == ["n0", "n2"]
    assert world.now() - before < world.side.runtime.policy.node_lost_after, "nobody waited for it"
    host = world.cloud.control.node("n1")["host_id"]
    said = " ".join(f"{entry.why} {entry.evidence}" for entry in job.timeline)
    assert f"EC2 says that {host} is {state}" in said


@pytest.mark.parametrize("state", ["running", "stopping", "shutting-down"])
def test_a_machine_that_may_run_is_waited_for(world: World, state: str) -> None:
    a_lost_node(world, state)
    world.pass_time(300)
    assert world.job().status is JobStatus.IN_PROGRESS


def test_where_ec2_does_not_answer_a_lost_node_is_waited_for_as_ever(world: World) -> None:
    a_lost_node(world, "terminated")
    del world.cloud.actions["ec2"]["DescribeInstances"]
    world.pass_time(300)
    assert world.job().status is JobStatus.IN_PROGRESS
    world.until(lambda: world.job().status is not JobStatus.IN_PROGRESS)
