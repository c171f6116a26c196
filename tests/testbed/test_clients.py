"""The clients without a wire behave like boto3's."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError, ParamValidationError
from botocore.model import ListShape, Shape, StructureShape

from testbed.aws.clients import SimulatedError, service_model, snake
from testbed.aws.cloud import Cloud
from tests.testbed.helpers import CLUSTER, instance, invocation, order_reboot, start, task, try_start


def test_what_boto3_would_not_send_is_not_sent(cloud: Cloud) -> None:
    with pytest.raises(ParamValidationError, match="Unknown parameter"):
        try_start(cloud, clientToken="x")
    with pytest.raises(ParamValidationError, match="Missing required parameter"):
        cloud.client("ecs").start_task(cluster=CLUSTER)
    assert cloud.control.calls()["calls"].get("StartTask") is None


def test_times_are_aware(cloud: Cloud) -> None:
    arn = start(cloud)
    assert task(cloud, arn)["startedAt"] == datetime.fromisoformat("2026-11-15T02:00:00.050+00:00")
    command = order_reboot(cloud)
    listed = cloud.client("ssm").list_commands(CommandId=command)["Commands"][0]
    assert listed["ExpiresAfter"].tzinfo is not None
    assert isinstance(invocation(cloud, command)["ExecutionStartDateTime"], str), "SSM has a text there"


def test_an_answer_is_a_copy(cloud: Cloud) -> None:
    arn = start(cloud)
    task(cloud, arn)["containers"][0]["gpuIds"].clear()
    assert task(cloud, arn)["containers"][0]["gpuIds"]


def test_an_action_that_is_not_simulated_is_no_attribute(cloud: Cloud) -> None:
    with pytest.raises(AttributeError, match="ecs has no create_service"):
        cloud.client("ecs").create_service()


def test_errors_do_without_botocore(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    really_import = builtins.__import__

    def no_botocore(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("botocore"):
            raise ImportError(name)
        return really_import(name, *args, **kwargs)

    service_model.cache_clear()
    monkeypatch.setattr(builtins, "__import__", no_botocore)
    try:
        with pytest.raises(SimulatedError) as error:
            try_start(cloud, cluster="other")
    finally:
        service_model.cache_clear()
    assert error.value.response["Error"]["Code"] == "ClusterNotFoundException"


def test_a_handler_may_call_back_while_it_is_told_of_an_event(cloud: Cloud) -> None:
    ecs, seen = cloud.client("ecs"), []

    def handler(event: dict[str, Any]) -> None:
        detail = event["detail"]
        if detail.get("lastStatus") == "STOPPED" and detail["containers"][0]["exitCode"] == 1:
            seen.append(try_start(cloud)["tasks"][0]["taskArn"])

    cloud.subscribe(handler)
    cloud.control.exit_task(start(cloud), 1)
    cloud.run(until=lambda: bool(seen) and task(cloud, seen[0])["lastStatus"] == "RUNNING")
    assert ecs.list_tasks(cluster=CLUSTER)["taskArns"] == seen
    with pytest.raises(TimeoutError):
        cloud.run(until=lambda: False)


def test_every_answer_has_the_shape_that_the_service_model_gives(cloud: Cloud) -> None:
    """Names and types, all the way down: what a client library would drop or choke on is found here."""
    ecs, ssm, arn = cloud.client("ecs"), cloud.client("ssm"), start(cloud)
    command = order_reboot(cloud)
    cloud.advance(2)
    host, where = cloud.control.node("n0")["host_id"], cloud.control.node("n0")["arn"]
    wanted = {
        "cluster": CLUSTER,
        "containerInstances": [where],
        "include": ["TAGS", "CONTAINER_INSTANCE_HEALTH"],
    }
    answers = {
        ("ecs", "StartTask"): try_start(cloud, "n1"),
        ("ecs", "DescribeTasks"): ecs.describe_tasks(cluster=CLUSTER, tasks=[arn], include=["TAGS"]),
        ("ecs", "ListTasks"): ecs.list_tasks(cluster=CLUSTER),
        ("ecs", "StopTask"): ecs.stop_task(cluster=CLUSTER, task=arn),
        ("ecs", "DescribeContainerInstances"): ecs.describe_container_instances(**wanted),
        ("ecs", "DescribeTaskDefinition"): ecs.describe_task_definition(taskDefinition="train"),
        ("ssm", "SendCommand"): {"Command": ssm.list_commands()["Commands"][0]},
        ("ssm", "ListCommands"): ssm.list_commands(),
        ("ssm", "ListCommandInvocations"): ssm.list_command_invocations(Details=True),
        ("ssm", "GetCommandInvocation"): ssm.get_command_invocation(CommandId=command, InstanceId=host),
        ("ssm", "DescribeInstanceInformation"): ssm.describe_instance_information(),
    }
    for (service, action), answer in answers.items():
        model = service_model(service)
        assert model is not None
        shape = model.operation_model(action).output_shape
        assert shape is not None
        answer.pop("ResponseMetadata", None)
        assert list(strange(answer, shape, snake(action))) == []
    assert instance(cloud)["agentConnected"]


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "long": (int,),
    "double": (float, int),
    "boolean": (bool,),
    "timestamp": (datetime,),
}


def strange(value: Any, shape: Shape, path: str) -> Any:
    """Where an answer is not what the model says."""
    if isinstance(shape, StructureShape):
        for name, inner in value.items():
            if name not in shape.members:
                yield f"{path}.{name} is unknown"
            else:
                yield from strange(inner, shape.members[name], f"{path}.{name}")
    elif isinstance(shape, ListShape):
        for inner in value:
            yield from strange(inner, shape.member, f"{path}[]")
    elif shape.type_name in _TYPES and not isinstance(value, _TYPES[shape.type_name]):
        yield f"{path} is {type(value).__name__}, not {shape.type_name}"


def test_botocore_and_the_simulator_agree_on_what_an_error_is(cloud: Cloud) -> None:
    with pytest.raises(ClientError, match=r"An error occurred \(ClusterNotFoundException\)"):
        try_start(cloud, cluster="other")
