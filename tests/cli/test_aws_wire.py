"""The commands over HTTP, against a local AWS that checks permissions: an operator, a viewer, and a stranger.

Everything is boto3's and AWS's own here: signatures, errors, pages, who may do what.
"""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ecs_gpu_recovery.config import Config
from ecs_gpu_recovery.control.aws_backend import AwsBackend
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.infra import people
from testbed.aws.server import ACCOUNT, REGION, Server, serve
from tests.cli.conftest import Result, run_command
from tests.programs import eventually
from tests.stories.functions import Deployment, deployed

pytestmark = pytest.mark.ministack
FUNCTIONS = ("EcsTaskHandler", "DcgmTaskMonitor", "EcsInstanceMonitor", "RecoverySweeper")
LOG_GROUP = "/gpu/wire"


@pytest.fixture(scope="module")
def aws(ministack_python: Path) -> Iterator[Server]:
    with serve(ministack_python, auth=True) as server:
        yield server


@dataclass
class Account:
    """A deployment, and people with keys of their own."""

    deployment: Deployment
    keys: dict[str, dict[str, str]]
    stack: str

    @property
    def server(self) -> Server:
        return self.deployment.server

    def run(self, who: str, *args: object, **more: str) -> Result:
        """A command of this person, who sets no variable but those of AWS and the stack's name."""
        ours = ("ECS_", "JOB_", "TASK_", "NODE_", "DCGM_", "SNS_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {**self.keys[who], "STACK_NAME": self.stack, "GPU_RECOVERY_BACKEND": "aws", **more}
        with patch.dict(os.environ, env, clear=True), patch.object(AwsBackend, "poll_s", 0.05):
            return run_command(*args)

    def until(self, holds: Callable[[], Any]) -> Any:
        """The functions hear of everything that happens, as the rules would tell them."""

        def heard() -> Any:
            self.deployment.deliver()
            return holds()

        return eventually(heard)

    def job(self, job_id: str) -> Any:
        return self.deployment.side.store.job(job_id)


@pytest.fixture
def account(aws: Server) -> Iterator[Account]:
    aws.control("reset")
    with pytest.MonkeyPatch.context() as patched, deployed(aws, patched) as deployment:
        stack = deployment.environment["STACK_NAME"]
        functions(aws, stack, with_revision(aws, deployment.environment))
        keys = {
            who: user(aws, f"{who.replace(' ', '-')}-{deployment.cluster}", policy(who, deployment, stack))
            for who in (*people.ROLES, people.ACTING)
        }
        keys["stranger"] = user(aws, f"stranger-{deployment.cluster}", None)
        logs = aws.client("logs")
        if not logs.describe_log_groups(logGroupNamePrefix=LOG_GROUP)["logGroups"]:
            logs.create_log_group(logGroupName=LOG_GROUP)
        for i in range(2):
            name = f"n{i}"
            aws.control(
                "add_node",
                name=name,
                cluster=deployment.cluster,
                external=bool(i),
                attributes={"node_name": name},
            )
            aws.control("tag_host", node=name, tags={"GpuRecovery": deployment.cluster})
        yield Account(deployment, keys, stack)


def with_revision(aws: Server, environment: dict[str, str]) -> dict[str, str]:
    """As the stack names the health check: by its ARN, which is what the rights are about."""
    check = aws.client("ecs").describe_task_definition(taskDefinition=environment["DCGM_HEALTH_CHECK_TASK"])
    return {**environment, "DCGM_HEALTH_CHECK_TASK": check["taskDefinition"]["taskDefinitionArn"]}


def functions(aws: Server, stack: str, environment: dict[str, str]) -> None:
    """Functions that say what they were deployed with, and fail where an event asks for it; the test delivers the
    events itself."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("index.py", "def handler(event, context): return 1 / event.get('by', 1) and None\n")
    told = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
    trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    role = aws.client("iam").create_role(
        RoleName=stack, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    )["Role"]["Arn"]
    for name in FUNCTIONS:
        aws.client("lambda").create_function(
            FunctionName=f"{stack}-{name}",
            Runtime="python3.13",
            Handler="index.handler",
            Role=role,
            Code={"ZipFile": packed.getvalue()},
            Environment={"Variables": told},
        )


def policy(who: str, deployment: Deployment, stack: str) -> dict[str, Any]:
    """For the names of this deployment."""
    env = {name: value for name, value in deployment.environment.items() if name.endswith("_NAME")}
    topic = deployment.environment["SNS_TOPIC_ARN"]
    config = Config.from_env(
        {**env, "STACK_NAME": stack[:40], "TRAINING_TASK_FAMILIES": "gpu-training-*,train"}
    )
    queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{stack}-DeadLetters*"
    known = people.Made(topic=topic, queue=queue, key=f"arn:aws:kms:{REGION}:{ACCOUNT}:key/*")
    made = people.document(who, config, role_arns=[], account=ACCOUNT, region=REGION, made=known)
    # Here a batch has a right of its own; AWS checks it as the single call, and that is what the policy names.
    batch = "sqs:ChangeMessageVisibilityBatch"
    made["Statement"].append({"Effect": "Allow", "Action": batch, "Resource": queue})
    return made


def user(aws: Server, name: str, allowed: dict[str, Any] | None) -> dict[str, str]:
    iam = aws.client("iam")
    iam.create_user(UserName=name)
    if allowed:
        iam.put_user_policy(UserName=name, PolicyName="people", PolicyDocument=json.dumps(allowed))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        "AWS_ENDPOINT_URL": aws.url,
        "AWS_REGION": REGION,
    }


def submit(account: Account, who: str, *args: object) -> Result:
    base = ("submit", "--image", "train:1", "--log-group", LOG_GROUP, "--name", "wire", "--check", "none")
    return account.run(who, *base, *args, "--", "python", "train.py")


def test_an_operator_runs_a_job_from_submission_to_its_end(account: Account) -> None:
    told = submit(account, "operator", "--nodes", "n0,n1", "--id", "j1")
    assert (told.code, told.err) == (0, ""), told
    account.until(lambda: all(rank.deadline is None for rank in account.job("j1").ranks))
    assert f"user/operator-{account.deployment.cluster}" in account.job("j1").spec.submitted_by
    shown = json.loads(account.run("operator", "job", "j1", "--json").out)
    assert (shown["status"], len(shown["ranks"])) == ("IN_PROGRESS", 2)

    task = account.job("j1").ranks[1].task_id
    logs, stream = account.server.client("logs"), f"train/train/{task}"
    logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
    now = int(time.time() * 1000)
    lines = [{"timestamp": now + n, "message": f"step {n}"} for n in range(3)]
    logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=lines)
    assert account.run("operator", "logs", "j1").out == "[1] step 0\n[1] step 1\n[1] step 2\n"

    assert account.run("operator", "stop", "j1", "--why", "done").code == 0
    account.until(lambda: account.job("j1").status is JobStatus.USER_STOPPED)
    assert "USER_STOPPED" in account.run("viewer", "jobs").out
    again = json.loads(account.run("operator", "retry", "j1", "--json").out)
    assert again["spec"]["retry_of"] == "j1"


def test_a_viewer_lists_jobs_and_changes_nothing(account: Account) -> None:
    nodes = json.loads(account.run("operator", "nodes", "--json").out)["nodes"]
    assert [node["name"] for node in nodes] == ["n0", "n1"]
    assert submit(account, "operator", "--nodes", "n0", "--id", "j1").code == 0
    before = account.deployment.rows("JOB_TABLE_NAME"), account.deployment.rows("NODE_TABLE_NAME")
    for args in (
        ("job", "j1"),
        ("node", "show", "n0"),
        ("logs", "j1"),
        ("stop", "j1"),
        ("node", "drain", "n1", "--why", "x"),
        ("node", "check", "n1"),
        ("node", "reboot", "n1", "--why", "x"),
    ):
        account.run("viewer", *args).refused("you are not allowed to do this", "docs/permissions.md")
    assert submit(account, "viewer", "--nodes", "n1").code == 4
    assert (account.deployment.rows("JOB_TABLE_NAME"), account.deployment.rows("NODE_TABLE_NAME")) == before
    told = account.run("viewer", "jobs")
    assert (told.code, told.err) == (0, "")
    assert "j1" in told.out


def test_an_operator_looks_after_nodes(account: Account) -> None:
    assert account.run("operator", "nodes").code == 0
    assert account.run("operator", "node", "drain", "n0", "--why", "fan").code == 0
    assert "drained by" in account.run("operator", "node", "show", "n0").out
    assert account.run("operator", "node", "release", "n0", "--why", "mended").code == 0
    side = account.deployment.side
    account.until(lambda: side.store.node("n0").status == "AVAILABLE")  # new: examined before its first job
    assert account.run("operator", "node", "check", "n0").code == 0
    account.until(lambda: side.store.node("n0").status == "AVAILABLE")
    for name in ("n0", "n1"):
        told = account.run("operator", "node", "reboot", name, "--why", "driver")
        assert (told.code, told.err) == (0, ""), told
        account.until(lambda name=name: side.store.node(name).status == "AVAILABLE")
        assert account.server.control("node", node=name)["boots"] == 2


def test_the_doctor_finds_the_deployment_whole_and_says_what_a_viewer_may_not_look_at(
    account: Account,
) -> None:
    sns = account.server.client("sns")
    sns.subscribe(
        TopicArn=account.deployment.environment["SNS_TOPIC_ARN"],
        Protocol="sqs",
        Endpoint=f"arn:aws:sqs:{REGION}:{ACCOUNT}:any",
    )
    told = account.run("operator", "doctor", "--json")
    assert [check for check in told.data["checks"] if not check["ok"]] == []
    assert told.code == 0
    told = account.run("viewer", "doctor", "--json")
    (wrong,) = [check for check in told.data["checks"] if not check["ok"]]
    assert (wrong["name"], "not allowed" in wrong["found"], told.code) == ("health check", True, 1)


def test_the_doctor_follows_the_tag_of_a_group_until_it_is_passed_on(account: Account) -> None:
    groups, name, cluster = account.server.client("autoscaling"), account.stack, account.deployment.cluster
    groups.create_auto_scaling_group(
        AutoScalingGroupName=name, MinSize=1, MaxSize=1, AvailabilityZones=[f"{REGION}a"]
    )
    (made,) = groups.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    host = made["Instances"][0]["InstanceId"]
    account.server.control("add_node", name="grouped", cluster=cluster, host_id=host)
    tag = {"ResourceId": name, "ResourceType": "auto-scaling-group", "Key": "GpuRecovery", "Value": cluster}

    def found(who: str, **more: str) -> list[bool]:
        checks = account.run(who, "doctor", "--json", **more).data["checks"]
        return [check["ok"] for check in checks if check["name"] == "replacements"]

    allowed = {"REPAIR_RUNGS": "reboot,replace"}
    assert (found("viewer"), found("viewer", **allowed)) == ([], [False])
    groups.create_or_update_tags(Tags=[{**tag, "PropagateAtLaunch": False}])
    assert found("operator", **allowed) == [False]
    groups.create_or_update_tags(Tags=[{**tag, "PropagateAtLaunch": True}])
    assert found("operator", **allowed) == found("viewer", **allowed) == [True]


def test_a_stranger_is_told_whom_to_ask(account: Account) -> None:
    account.run("stranger", "jobs").refused("you are not allowed to do this (GetFunctionConfiguration)")
    account.run("stranger", "doctor").tells("FAIL  settings", code=1)


def test_names_that_lead_nowhere_are_told_in_plain_words(account: Account) -> None:
    told = account.run("viewer", "jobs", STACK_NAME="Nowhere")
    assert told.code == 4
    assert "you are not allowed" in told.err, "a viewer may ask his own stack only"
    admin = {"AWS_ACCESS_KEY_ID": ACCOUNT, "AWS_SECRET_ACCESS_KEY": "test"}
    told = account.run("viewer", "jobs", STACK_NAME="Nowhere", **admin)
    assert "no stack Nowhere was found in us-east-1" in told.err
    account.run("viewer", "jobs", JOB_TABLE_NAME="no_such_table", **admin).refused(
        "a table is missing in us-east-1"
    )
    account.run("viewer", "nodes", ECS_CLUSTER_NAME="no-such-cluster", **admin).refused(
        "there is no ECS cluster 'no-such-cluster'"
    )


def test_keys_that_aws_does_not_know_are_told_of(account: Account) -> None:
    told = account.run("viewer", "jobs", AWS_ACCESS_KEY_ID="AKIAIOSFODNN7EXAMPLE")
    assert told.code == 4, told
    assert "Traceback" not in told.err


def test_an_address_where_nobody_answers_is_code_5(account: Account) -> None:
    account.run(
        "viewer",
        "jobs",
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_MAX_ATTEMPTS="1",
        AWS_RETRY_MODE="standard",
    ).refused("did not answer", code=5)


def test_an_operator_looks_at_dead_letters_and_the_console_sends_them_again(account: Account) -> None:
    sqs, handler = account.server.client("sqs"), f"{account.stack}-EcsTaskHandler"
    url = sqs.create_queue(QueueName=f"{account.stack}-DeadLetters")["QueueUrl"]
    told = {"TARGET_ARN": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{handler}", "ERROR_CODE": "THROTTLING"}
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in told.items()}
    good, bad = (
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps(event), MessageAttributes=attributes)[
            "MessageId"
        ]
        for event in ({"by": 1}, {"by": 0})
    )

    def letters(who: str, *args: str) -> Result:
        return account.run(who, "letters", *args, "--json", DEAD_LETTER_QUEUE_URL=url)

    def listed() -> set[str]:
        return {one["id"] for one in letters("operator").data["letters"]}

    assert listed() == {good, bad}
    assert letters("viewer").code == letters("stranger").code == 4
    assert "not allowed to do this (Invoke)" in letters("operator", "resend", good).err
    sent = {one["id"]: one for one in letters(people.ACTING, "resend", "--all").data["sent"]}
    assert (sent[good]["done"], sent[bad]["done"]) == (True, False)
    assert "division by zero" in sent[bad]["said"]
    assert listed() == {bad}
    assert letters("operator", "discard", bad, "--why", "it divides by nothing").data["discarded"][
        "event"
    ] == {"by": 0}
    assert listed() == set()
