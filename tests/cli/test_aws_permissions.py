"""The two policies for people hold what the commands do: every call is allowed, and nothing that nobody makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.aws.tables import TABLES
from ecs_gpu_recovery.config import Config
from ecs_gpu_recovery.infra import people
from tests.aws.letter_queue import of_rule
from tests.cli.aws_person import Person, a_person
from tests.infra.test_permissions import check_known, forms
from tools import permissions as page

ROLE = "arn:aws:iam::123456789012:role/train"
WHERE = {"account": "123456789012", "region": "us-east-1"}
#: IAM has no action for these calls: it asks for what they consist of.
PARTS = {
    "dynamodb:TransactWriteItems": {"dynamodb:PutItem", "dynamodb:UpdateItem"},
    "lambda:Invoke": {"lambda:InvokeFunction"},
    "s3:ListObjectsV2": {"s3:ListBucket"},
    "s3:GeneratePresignedUrl": {"s3:PutObject"},  # what the address is used for
    "sqs:ChangeMessageVisibilityBatch": {"sqs:ChangeMessageVisibility"},
}
#: Nobody's right: whoever calls a function can tell it anything. The console sends a letter again for an operator.
THE_CONSOLES = {"lambda:InvokeFunction"}
#: SNS uses the topic's key in the publisher's name.
ENCRYPTED = {"kms:Decrypt", "kms:GenerateDataKey"}
#: Only of a timeline that has become long; the tests of the archive show it.
ARCHIVED = {"logs:CreateLogStream", "logs:PutLogEvents"}
#: Needed with a task definition that names roles; RegisterTaskDefinition asks for it.
WITH_ROLES = {"iam:PassRole"}
#: A person's own console draws charts; no command does.
CHARTS = {"cloudwatch:GetMetricData", "cloudwatch:ListMetrics"}
#: Only where a start is sent again; the tests of the fleet show it.
IN_TROUBLE = {"ecs:DescribeTasks"}


@pytest.fixture
def person() -> Iterator[Person]:
    with a_person(nodes=4) as made:
        yield made


def asked(person: Person) -> set[str]:
    """The actions of the calls that the person's commands made, and nobody else's."""
    return set().union(*(PARTS.get(call, {call}) for call in person.mine)) - people.FREE


def look_at_everything(person: Person, folder: Path) -> None:
    """Every command that only shows."""
    for args in (
        ("jobs",),
        ("jobs", "--status", "FAILED"),
        ("job", "j1"),
        ("logs", "j1"),
        ("nodes",),
        ("node", "show", "n0"),
        ("evidence", "n3", "--fetch", folder),
        ("notices",),
        ("letters",),
        ("doctor",),
    ):
        assert person(*args).code in (0, 1), args


def use_everything(person: Person) -> None:
    """Every command that acts, where machines may be replaced."""
    person.functions.environment["REPAIR_RUNGS"] = "reboot,replace"
    for _ in range(3):
        person.queue.put(of_rule({"source": "aws.ecs", "detail-type": "any"}))
    assert person.submit("--nodes", "n0", "--id", "j1", "--check", "none").code == 0
    assert person.submit("--nodes", "n1", "--id", "j2").code == 0
    person.theirs(lambda: person.world.pass_time(30))
    person.logs.write(person.world.task_of(0), "hello")
    for args in (
        ("node", "drain", "n2", "--why", "x"),
        ("node", "release", "n2", "--why", "x"),
        ("node", "check", "n2", "--wait"),
        ("node", "reboot", "n3", "--why", "x", "--wait"),
        ("nodes", "check", "--all-idle", "--wait"),
        ("stop", "j1", "--wait"),
        ("stop", "j2", "--wait"),
        ("retry", "j1"),
        ("letters", "resend", "00000001"),
        ("letters", "discard", "00000002", "--why", "x"),
    ):
        assert person(*args).code == 0, args
    refuse_a_start(person)


def refuse_a_start(person: Person) -> None:
    """One that fails at once, so that the command itself has to tell people."""
    person.world.cloud.control.fail_call(action="StartTask", code="ClientException", status=400, times=1)
    assert person.submit("--nodes", "n1", "--id", "j9", "--check", "none").code == 1
    taken_back(person)


def taken_back(person: Person) -> None:
    """Somebody is faster, so that the definition is retired."""
    done: list[str] = []

    def others(service: str, action: str, request: dict[str, Any]) -> None:
        if action == "register_task_definition" and not done:
            done.append(action)
            person.theirs(lambda: person.world.submit(["n2"], job_id="faster"))

    person.world.wire.before.append(others)
    assert person.submit("--nodes", "n2").code == 4


def test_an_operator_may_do_all_that_the_commands_do_but_call_a_function(
    person: Person, tmp_path: Path
) -> None:
    use_everything(person)
    person.deploy_own_image()
    look_at_everything(person, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a.tar.gz": b"kept",
        "b.tar.gz": b"kept",
    }, "of every page of the list"
    rest = people.actions(people.OPERATOR) - WITH_ROLES - IN_TROUBLE - ENCRYPTED - ARCHIVED - CHARTS
    assert asked(person) - THE_CONSOLES == rest
    assert not THE_CONSOLES & people.actions(people.OPERATOR)
    assert people.actions(people.ACTING) >= THE_CONSOLES


def test_a_viewer_lists_jobs_and_asks_the_doctor_with_rights_of_their_own(person: Person) -> None:
    """All else, a console shows: records hold what programs were given, and a queue shows by taking.

    AWS can't narrow the right to look at a task definition, and definitions hold variables: the doctor says it can't.
    """
    use_everything(person)
    person.mine.clear()
    for args in (("jobs",), ("jobs", "--status", "FAILED"), ("doctor",)):
        assert person(*args).code in (0, 1), args
    assert asked(person) - {"ecs:DescribeTaskDefinition"} == people.actions(people.VIEWER)
    verbs = {action.partition(":")[2] for action in people.actions(people.VIEWER)}
    assert all(verb.startswith(("Describe", "Get", "List", "Query")) for verb in verbs)


def test_a_viewer_reads_no_record_no_log_and_no_dead_letter() -> None:
    made = people.document(people.VIEWER, Config.from_env({}), role_arns=[ROLE], **WHERE)
    places = {action: s["Resource"] for s in made["Statement"] for action in s["Action"]}
    assert not {"dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Scan"} & set(places)
    assert not {"logs:GetLogEvents", "ecs:DescribeTaskDefinition"} & set(places)
    assert not {"sqs:ReceiveMessage", "sqs:ChangeMessageVisibility", "sqs:DeleteMessage"} & set(places)
    carried = {
        index.name: index.carries for table in TABLES if table.name == "ecs_job" for index in table.indexes
    }
    for place in places["dynamodb:Query"]:
        table, _, index = place.partition(":table/")[2].partition("/index/")
        assert table == "ecs_job"
        assert "record" not in carried[index]
        assert "*" not in carried[index]


@pytest.mark.parametrize("who", [people.OPERATOR, people.SHOWING, people.ACTING])
def test_nobody_reads_a_log_group_that_no_rank_writes_to(who: str) -> None:
    config = Config.from_env({"TRAINING_LOG_GROUPS": "/llm/*,/bert", "STACK_NAME": "Mine"})
    made = people.document(who, config, role_arns=[ROLE], **WHERE)
    (read,) = [s["Resource"] for s in made["Statement"] if "logs:GetLogEvents" in s["Action"]]
    groups = [place.partition(":log-group:")[2].removesuffix(":log-stream:*") for place in read]
    assert groups == ["/ecs/Mine", "/llm/*", "/bert"]


@pytest.mark.parametrize("who", people.ROLES)
@pytest.mark.parametrize("tag", ["", "Fleet=training"])
def test_every_action_exists_and_fits_its_resources_and_conditions(who: str, tag: str) -> None:
    config = Config.from_env({"NODE_TAG": tag, "TRAINING_TASK_FAMILIES": "llm-*,bert"})
    made = people.document(who, config, role_arns=[ROLE], **WHERE)
    for statement in made["Statement"]:
        check_known(statement, statement["Action"], statement["Resource"])
        for action in statement["Action"] if "*" in statement["Resource"] else ():
            assert any(form["resource_arn_format"] == "*" for form in forms(action)), f"{action} on *"


def test_an_operator_may_touch_one_cluster_only() -> None:
    made = people.document(
        "operator", Config.from_env({"ECS_CLUSTER_NAME": "mine"}), role_arns=[ROLE], **WHERE
    )
    changing = {"ecs:StartTask", "ecs:StopTask", "ecs:PutAttributes", "ecs:ListTasks"}
    for statement in made["Statement"]:
        if changing & set(statement["Action"]):
            assert statement["Condition"]["ArnEquals"]["ecs:cluster"].endswith(":cluster/mine")


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov"])
def test_a_policy_is_of_its_partition_and_small_enough_for_iam(partition: str) -> None:
    for who in people.ROLES:
        made = page.policy(
            who, **WHERE, partition=partition, role_arns=[ROLE.replace(":aws:", f":{partition}:")]
        )
        arns = [place for s in made["Statement"] for place in s["Resource"] if place != "*"]
        assert all(place.startswith(f"arn:{partition}:") for place in arns)
        assert len(json.dumps(made, separators=(",", ":"))) < 6144


def test_without_roles_nobody_may_pass_one() -> None:
    made = people.document("operator", Config.from_env({}), role_arns=[], **WHERE)
    assert not [s for s in made["Statement"] if "iam:PassRole" in s["Action"]]
