"""The simulator inside the local AWS, through boto3 and over HTTP, with permissions checked."""

from __future__ import annotations

import io
import json
import textwrap
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from ecs_gpu_recovery.aws import reboot_document
from ecs_gpu_recovery.aws.evidence import Evidence
from ecs_gpu_recovery.aws.last_look import LastLook
from ecs_gpu_recovery.aws.machines import Machines
from ecs_gpu_recovery.aws.replacements import Replacements
from ecs_gpu_recovery.core.errors import ClusterRefused
from testbed.aws import events
from testbed.aws.server import OrderRefused, Server
from tests.programs import ROOT, ran
from tests.testbed.helpers import CLUSTER, REBOOT, TRAIN

pytestmark = pytest.mark.ministack
#: An error is seen as it came, not after a few more tries.
ONCE = Config(retries={"total_max_attempts": 1, "mode": "standard"})


@pytest.fixture
def ecs(aws: Server) -> Any:
    aws.control("add_node", name="n0", cluster=CLUSTER)
    client = aws.client("ecs", config=ONCE)
    client.register_task_definition(**TRAIN)
    return client


@pytest.fixture
def queue(aws: Server) -> Iterator[Any]:
    """A queue that a rule fills with every event of ECS and SSM; gives them as they come."""
    sqs, rules = aws.client("sqs"), aws.client("events")
    url = sqs.create_queue(QueueName="told")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    rules.put_rule(Name="all", EventPattern=json.dumps({"source": ["aws.ecs", "aws.ssm"]}))
    rules.put_targets(Rule="all", Targets=[{"Id": "queue", "Arn": arn}])
    arrived: list[dict[str, Any]] = []

    def events_so_far() -> list[dict[str, Any]]:
        reply = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        for message in reply.get("Messages", ()):
            arrived.append(json.loads(message["Body"]))
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return arrived

    yield events_so_far
    rules.remove_targets(Rule="all", Ids=["queue"])
    rules.delete_rule(Name="all")
    sqs.delete_queue(QueueUrl=url)


def start(aws: Server, ecs: Any, **request: Any) -> dict[str, Any]:
    arn = aws.control("node", node="n0")["arn"]
    asked = {"cluster": CLUSTER, "taskDefinition": "train", "containerInstances": [arn], **request}
    reply: dict[str, Any] = ecs.start_task(**asked)
    return reply


def running(aws: Server, ecs: Any, **request: Any) -> str:
    arn = str(start(aws, ecs, **request)["tasks"][0]["taskArn"])
    aws.wait_for(lambda: status(ecs, arn) == "RUNNING")
    return arn


def status(ecs: Any, arn: str) -> str:
    return str(ecs.describe_tasks(cluster=CLUSTER, tasks=[arn])["tasks"][0]["lastStatus"])


def test_the_end_of_a_task_arrives_in_the_queue_of_a_rule(aws: Server, ecs: Any, queue: Any) -> None:
    arn = running(aws, ecs, startedBy="gr-1")
    assert aws.control("exit_task", task=arn, exit_code=1)

    def end() -> Any:
        found = [
            e for e in queue() if e["detail"].get("taskArn") == arn and e["detail"]["lastStatus"] == "STOPPED"
        ]
        return found and found[0]

    event = aws.wait_for(end)
    assert event["detail"]["containers"][0]["exitCode"] == 1
    assert event == next(e for e in aws.control("events") if e["id"] == event["id"]), (
        "id, time and content are kept"
    )
    assert event["account"] == "123456789012"
    shown = ecs.describe_tasks(cluster=CLUSTER, tasks=[arn])["tasks"][0]
    assert (shown["version"], shown["startedBy"]) == (event["detail"]["version"], "gr-1")


def test_a_stop_is_done_later_and_gpus_are_refused_until_then(aws: Server, ecs: Any) -> None:
    aws.control("script", on_term=None)
    aws.control("knobs", kill_s=0.5)
    arn = running(aws, ecs)
    answer = ecs.stop_task(cluster=CLUSTER, task=arn, reason="gpu-recovery j1/0: peer")["task"]
    assert (answer["lastStatus"], answer["desiredStatus"]) == ("RUNNING", "STOPPED")
    assert start(aws, ecs)["failures"][0]["reason"] == "RESOURCE:GPU"
    aws.wait_for(lambda: status(ecs, arn) == "STOPPED")
    shown = ecs.describe_tasks(cluster=CLUSTER, tasks=[arn])["tasks"][0]
    assert (shown["stoppedReason"], shown["containers"][0]["exitCode"]) == ("gpu-recovery j1/0: peer", 137)
    assert start(aws, ecs)["failures"] == []


def test_refusals_and_errors_come_as_aws_sends_them(aws: Server, ecs: Any) -> None:
    aws.control("disconnect", node="n0")
    assert start(aws, ecs)["failures"][0]["reason"] == "AGENT"
    with pytest.raises(ecs.exceptions.InvalidParameterException):
        start(aws, ecs, startedBy="x" * 37)
    aws.control("fail_call", action="ListTasks", code="ServerException")
    with pytest.raises(ecs.exceptions.ServerException) as error:
        ecs.list_tasks(cluster=CLUSTER)
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    aws.control("fail_call", action="ListTasks", code="ThrottlingException", status=400)
    assert aws.client("ecs").list_tasks(cluster=CLUSTER)["taskArns"] == [], "boto3 tries again by itself"


def test_a_reboot_happens_once_for_each_key(aws: Server, ecs: Any, queue: Any) -> None:
    ssm, node = aws.client("ssm"), aws.control("node", node="n0")
    host, given = node["host_id"], reboot_document.arguments(REBOOT, CLUSTER, "k1")
    ssm.create_document(Name=REBOOT, Content=json.dumps(reboot_document.content()), DocumentType="Command")
    asked = {"DocumentName": REBOOT, "InstanceIds": [host], "Parameters": given}
    commands = [
        ssm.send_command(**asked, Comment="gpu-recovery k1")["Command"]["CommandId"] for _ in range(2)
    ]

    def done() -> bool:
        found = [ssm.get_command_invocation(CommandId=one, InstanceId=host)["Status"] for one in commands]
        return found == ["Success", "Success"]

    aws.wait_for(done)
    after = aws.control("node", node="n0")
    assert (after["boots"], after["arn"], after["connected"]) == (2, node["arn"], True)
    assert {row["Comment"] for row in ssm.list_commands(InstanceId=host)["Commands"]} == {"gpu-recovery k1"}
    assert len(ssm.list_command_invocations(InstanceId=host)["CommandInvocations"]) == 2
    aws.wait_for(
        lambda: any(
            e["detail-type"] == events.COMMAND and e["detail"]["status"] == "Success" for e in queue()
        )
    )
    seen = [e["detail"]["agentConnected"] for e in queue() if e["detail-type"] == events.INSTANCE]
    assert seen[-2:] == [False, True]


def test_an_instance_of_a_group_is_exchanged_for_another_with_the_right_to_do_so(
    aws: Server, ecs: Any
) -> None:
    aws.control("put_in_group", node="n0", group="gpus")
    aws.control("tag_host", node="n0", tags={"GpuRecovery": CLUSTER})
    host = aws.control("node", node="n0")["host_id"]
    look = LastLook(aws.client("ssm"), Evidence(None, ""), document="none", cluster=CLUSTER)

    def order(node: str, host: str, *, again: bool = False, **names: str) -> None:
        groups = aws.client("autoscaling", config=ONCE, **names)
        sender = Replacements(groups, look, Machines(aws.client("ec2")))
        sender.send(host, node, "node/n0/replace/1", datetime.now(UTC), again=again)

    with pytest.raises(ClientError, match="AccessDenied"):
        order("n0", host, **a_user(aws, "others", may(TERMINATES, GROUPS, tag="Others")))
    ours = a_user(aws, "ours", may(TERMINATES, GROUPS, tag="GpuRecovery"))
    order("n0", host, **ours)
    order("n0", host, again=True, **ours)  # the group may have forgotten it by now
    aws.wait_for(lambda: len(aws.control("nodes")) == 2)
    old, new = aws.control("nodes")
    assert (old["host_id"], old["up"], new["up"]) == (host, False, True)
    aws.control("put_in_group", node=new["name"], group="")
    with pytest.raises(ClusterRefused, match="no Auto Scaling group"):
        order(new["name"], new["host_id"])


def test_time_can_be_set_forward(aws: Server, ecs: Any) -> None:
    arn = running(aws, ecs)
    aws.control("exit_task", task=arn, exit_code=0)
    aws.control("advance", seconds=3601)
    assert ecs.describe_tasks(cluster=CLUSTER, tasks=[arn])["failures"][0]["reason"] == "MISSING"


def test_what_is_not_ours_stays_with_ministack(aws: Server, ecs: Any) -> None:
    ssm = aws.client("ssm")
    ssm.put_parameter(Name="/p", Value="v", Type="String")
    assert ssm.get_parameter(Name="/p")["Parameter"]["Value"] == "v"
    cluster = ecs.create_cluster(clusterName=CLUSTER)["cluster"]
    ecs.tag_resource(resourceArn=cluster["clusterArn"], tags=[{"key": "a", "value": "b"}])
    assert ecs.list_tags_for_resource(resourceArn=cluster["clusterArn"])["tags"] == [
        {"key": "a", "value": "b"}
    ]
    running(aws, ecs)
    counted = ecs.describe_clusters(clusters=[CLUSTER])["clusters"][0]
    assert (counted["registeredContainerInstancesCount"], counted["runningTasksCount"]) == (1, 1)
    calls = aws.control("calls")["calls"]
    assert (calls["CreateCluster"], calls["StartTask"]) == (1, 1)


def test_permissions_are_checked_for_simulated_actions_too(aws: Server, ecs: Any) -> None:
    reading = {"Effect": "Allow", "Action": "ecs:List*", "Resource": "*"}
    reader = aws.client("ecs", **a_user(aws, "reader", reading))
    assert reader.list_tasks(cluster=CLUSTER)["taskArns"] == []
    with pytest.raises(ClientError, match="AccessDenied"):
        start(aws, reader)


TERMINATES = "autoscaling:TerminateInstanceInAutoScalingGroup"
GROUPS = "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/*"


def may(action: str, resource: str, *, tag: str) -> dict[str, Any]:
    tagged = {"StringEquals": {f"autoscaling:ResourceTag/{tag}": CLUSTER}}
    return {"Effect": "Allow", "Action": action, "Resource": resource, "Condition": tagged}


def a_user(aws: Server, name: str, *statements: dict[str, Any]) -> dict[str, str]:
    """Somebody with these rights alone: what a client needs to act as them."""
    iam = aws.client("iam")
    iam.create_user(UserName=name)
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}


def function(aws: Server, name: str, code: str) -> str:
    iam = aws.client("iam")
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST))["Role"]["Arn"]
    about = {"FunctionName": name, "Runtime": "python3.13", "Handler": "index.handler", "Role": role}
    made = aws.client("lambda").create_function(**about, Code={"ZipFile": zipped(textwrap.dedent(code))})
    return str(made["FunctionArn"])


def test_a_function_that_fails_is_called_again(aws: Server, ecs: Any, tmp_path: Path) -> None:
    """EventBridge calls a function asynchronously: twice more after an error, with the same event."""
    rules, calls = aws.client("events"), tmp_path / "calls"
    code = f"""
        import json

        def handler(event, context):
            with open({str(calls)!r}, "a") as out:
                out.write(json.dumps([event["id"], event["detail"]["lastStatus"]]) + "\\n")
            raise RuntimeError("again")
    """
    pattern = {"source": ["aws.ecs"], "detail": {"lastStatus": ["STOPPED"], "containers": {"exitCode": [1]}}}
    rules.put_rule(Name="ends", EventPattern=json.dumps(pattern))
    rules.put_targets(Rule="ends", Targets=[{"Id": "f", "Arn": function(aws, "fails", code)}])
    try:
        aws.control("exit_task", task=running(aws, ecs), exit_code=1)
        aws.wait_for(lambda: calls.exists() and len(calls.read_text().splitlines()) == 3)
        assert len(set(calls.read_text().splitlines())) == 1
    finally:
        rules.remove_targets(Rule="ends", Ids=["f"])
        rules.delete_rule(Name="ends")


def test_a_function_writes_to_the_log_group_it_has_and_makes_none(aws: Server) -> None:
    """A call that ends after its stack was destroyed must not leave a group for the next stack to stumble on."""
    functions, logs, group = aws.client("lambda"), aws.client("logs"), "/aws/lambda/talks"
    function(aws, "talks", "def handler(event, context):\n    print('said')")
    logs.create_log_group(logGroupName=group)
    functions.invoke(FunctionName="talks")
    assert "said" in str(logs.filter_log_events(logGroupName=group)["events"])
    logs.delete_log_group(logGroupName=group)
    functions.invoke(FunctionName="talks")
    assert logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"] == []


TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ],
}


def zipped(code: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("index.py", code)
    return held.getvalue()


def test_ministacks_reset_empties_the_simulator_too(aws: Server, ecs: Any) -> None:
    running(aws, ecs)
    urllib.request.urlopen(
        urllib.request.Request(f"{aws.url}/_ministack/reset", method="POST"), timeout=60
    ).close()
    assert aws.control("nodes") == []


def test_the_control_port_takes_json_and_nothing_else(aws: Server) -> None:
    with pytest.raises(OrderRefused, match="no order 'dance'"):
        aws.control("dance")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(aws.control_url, b'{"order": "nodes"}', timeout=60)
    with error.value:
        assert error.value.code == 415


def test_ministack_has_every_name_that_is_plugged_into(ministack_python: Path) -> None:
    """After an upgrade, this says which of its private names are gone or changed."""
    code = "from testbed.aws.plugins import missing; print('\\n'.join(missing()), end='')"
    found = ran(ministack_python, "-c", code, env={"PYTHONPATH": str(ROOT)})
    assert (found.returncode, found.stdout) == (0, ""), found.stderr
