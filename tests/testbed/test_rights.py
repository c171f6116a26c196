"""Which rights a call needs, as AWS documents it; and that the local AWS asks for all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from testbed.aws.rights import Check, needed
from testbed.aws.server import Server
from tests.testbed.helpers import CLUSTER, TRAIN

PLACE = "us-east-1:123456789012"
ROLE = "arn:aws:iam::123456789012:role/training"


def rights(service: str, action: str, **asked: Any) -> list[tuple[str, str]]:
    found = needed(service, action, asked, PLACE, lambda definition: (ROLE,), lambda host: {})
    return [(check.action, check.resource.removeprefix(f"arn:aws:{service}:{PLACE}:")) for check in found]


def test_a_start_needs_its_definition_and_the_roles_that_it_passes_on() -> None:
    asked = {"cluster": "gpus", "taskDefinition": "train:7"}
    assert rights("ecs", "StartTask", **asked) == [
        ("ecs:StartTask", "task-definition/train:7"),
        ("iam:PassRole", ROLE),
    ]
    first, second = needed("ecs", "StartTask", asked, PLACE, lambda definition: (ROLE,), lambda host: {})
    assert first.told == (("ecs:cluster", f"arn:aws:ecs:{PLACE}:cluster/gpus"),)
    assert second.told == (("iam:PassedToService", "ecs-tasks.amazonaws.com"),)


def test_every_task_and_instance_of_a_call_is_asked_for() -> None:
    tasks = ["arn:aws:ecs:us-east-1:123456789012:task/gpus/a", "b"]
    found = rights("ecs", "DescribeTasks", cluster="gpus", tasks=tasks)
    assert [resource for _, resource in found] == ["task/gpus/a", "task/gpus/b"]
    attributes = [{"targetId": "x"}, {"targetId": "y"}]
    found = rights("ecs", "PutAttributes", cluster="gpus", attributes=attributes)
    assert [resource for _, resource in found] == ["container-instance/gpus/x", "container-instance/gpus/y"]


def test_a_command_needs_its_document_and_every_host() -> None:
    found = needed(
        "ssm",
        "SendCommand",
        {"DocumentName": "Stack-RebootNode", "InstanceIds": ["i-1", "mi-2"]},
        PLACE,
        lambda definition: (),
        lambda host: {"GpuRecovery": "gpus"} if host == "mi-2" else {},
    )
    assert [check.resource for check in found] == [
        f"arn:aws:ssm:{PLACE}:document/Stack-RebootNode",
        f"arn:aws:ec2:{PLACE}:instance/i-1",
        f"arn:aws:ssm:{PLACE}:managed-instance/mi-2",
    ]
    assert [check.told for check in found] == [(), (), (("ssm:resourceTag/GpuRecovery", "gpus"),)]


def test_a_line_of_a_log_needs_its_stream() -> None:
    asked = {"logGroupName": "/gpu-recovery/S/timeline", "logStreamName": "j1"}
    stream = "log-group:/gpu-recovery/S/timeline:log-stream:j1"
    assert rights("logs", "PutLogEvents", **asked) == [("logs:PutLogEvents", stream)]
    assert rights("logs", "DescribeLogGroups") == []


def test_an_event_needs_its_bus_and_tells_whose_it_is() -> None:
    entry = {"Source": "gpu-recovery", "DetailType": "GPU recovery incident", "Detail": "{}"}
    (found,) = needed(
        "events", "PutEvents", {"Entries": [entry]}, PLACE, lambda definition: (), lambda host: {}
    )
    assert found.resource == f"arn:aws:events:{PLACE}:event-bus/default"
    assert dict(found.told) == {
        "events:source": "gpu-recovery",
        "events:detail-type": "GPU recovery incident",
    }


def test_what_has_no_resource_of_its_own_is_asked_for_on_all() -> None:
    assert needed("ecs", "ListTasks", {"cluster": "gpus"}, PLACE, lambda definition: (), lambda host: {}) == (
        Check("ecs:ListTasks", "*", "ecs", (("ecs:cluster", f"arn:aws:ecs:{PLACE}:cluster/gpus"),)),
    )
    assert needed("ssm", "GetParameter", {"Name": "/p"}, PLACE, lambda definition: (), lambda host: {}) == ()


@pytest.mark.ministack
def test_a_role_may_not_be_passed_on_by_whoever_may_only_start(aws: Server) -> None:
    """Starting is allowed on this cluster alone, and the definition's role is somebody else's to give."""
    iam, ecs = aws.client("iam"), aws.client("ecs")
    node = aws.control("add_node", name="n0", cluster=CLUSTER)
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": "ecs-tasks.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    iam.create_role(RoleName="training", AssumeRolePolicyDocument=document)
    ecs.register_task_definition(**{**TRAIN, "family": "with-role"}, taskRoleArn=ROLE)
    ecs.register_task_definition(**{**TRAIN, "family": "plain"})
    here = {"ArnEquals": {"ecs:cluster": f"arn:aws:ecs:{PLACE}:cluster/{CLUSTER}"}}
    allow = {"Effect": "Allow", "Action": "ecs:StartTask", "Resource": "*", "Condition": here}
    iam.create_user(UserName="starter")
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    iam.put_user_policy(UserName="starter", PolicyName="p", PolicyDocument=policy)
    key = iam.create_access_key(UserName="starter")["AccessKey"]
    starter = aws.client(
        "ecs", aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"]
    )
    asked = {"cluster": CLUSTER, "containerInstances": [node["arn"]]}
    assert starter.start_task(**asked, taskDefinition="plain")["failures"] == []
    with pytest.raises(ClientError, match="AccessDenied"):
        starter.start_task(**asked, taskDefinition="with-role")
    with pytest.raises(ClientError, match="AccessDenied"):
        starter.start_task(**{**asked, "cluster": "another"}, taskDefinition="plain")
    rows = [row for row in aws.control("rights") if row["who"].endswith("user/starter")]
    assert {(row["action"], row["allowed"]) for row in rows} == {
        ("ecs:StartTask", True),
        ("ecs:StartTask", False),
        ("iam:PassRole", False),
    }
