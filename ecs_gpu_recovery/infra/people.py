"""What people need who use the command, and what the console needs that does the rest for them. One list for all.

Records hold what programs were given, and a queue shows a message by taking it: so a viewer's own rights list jobs and
look at the deployment, and the console shows the rest. Who may call a function can tell it anything: so that is the
console's alone too. The same list makes the managed policies of the stack, the console's role, the page about
permissions, and a document for accounts where policies are made elsewhere. A test holds it against the calls that the
commands make. It needs no CDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import Config
from . import places
from .places import Places

VIEWER, OPERATOR = "viewer", "operator"
ROLES = (VIEWER, OPERATOR)
#: The console as a service: one that only shows, and one that acts for the operators it knows.
SHOWING, ACTING = "console", "acting console"
#: All may ask who they are, with or without a policy.
FREE = frozenset({"sts:GetCallerIdentity"})


@dataclass(frozen=True, slots=True)
class Grant:
    """Some actions on some things, and who needs them for what."""

    who: tuple[str, ...]
    why: str
    actions: tuple[str, ...]
    on: Places
    only: str = ""  #: "cluster": of this cluster; "tag": nodes with the tag; "ecs": passed to ECS


ALL = (VIEWER, OPERATOR, SHOWING, ACTING)
READS, ACTS = (OPERATOR, SHOWING, ACTING), (OPERATOR, ACTING)
GRANTS: tuple[Grant, ...] = (
    Grant(ALL, "list jobs", ("dynamodb:Query",), places.job_lists),
    Grant(ALL, "the doctor looks at the tables", ("dynamodb:DescribeTable",), places.tables),
    Grant(ALL, "and at that of the guard", ("dynamodb:DescribeTable",), places.guard),
    Grant(ALL, "find the cluster's nodes", ("ecs:ListContainerInstances",), places.cluster),
    Grant(
        ALL,
        "see whether a node is connected and how many GPUs it has",
        ("ecs:DescribeContainerInstances",),
        places.instances,
        "cluster",
    ),
    Grant(ALL, "see whether SSM reaches a node", ("ssm:DescribeInstanceInformation",), places.anything),
    Grant(
        ALL,
        "the doctor looks at the groups' tags",
        ("autoscaling:DescribeAutoScalingGroups",),
        places.anything,
    ),
    Grant(ALL, "the doctor asks who hears of failures", ("sns:GetTopicAttributes",), places.topic),
    Grant(
        ALL,
        "learn names and policy from the deployment",
        ("lambda:GetFunctionConfiguration",),
        places.functions,
    ),
    Grant(READS, "show jobs, tasks and nodes", ("dynamodb:GetItem",), places.tables),
    Grant(READS, "see what waits for a permit", ("dynamodb:GetItem",), places.guard),
    Grant(READS, "list nodes", ("dynamodb:Query",), places.node_indexes),
    Grant(
        READS,
        "find a task's log; the doctor looks at the check",
        ("ecs:DescribeTaskDefinition",),
        places.anything,
    ),
    Grant(READS, "the doctor looks for the check's image", ("ecr:DescribeImages",), places.repositories),
    Grant(READS, "read what the ranks wrote", ("logs:GetLogEvents",), places.training_logs),
    Grant(
        READS,
        "charts of the nodes' numbers",
        ("cloudwatch:GetMetricData", "cloudwatch:ListMetrics"),
        places.anything,
    ),
    Grant(READS, "list what nodes kept before a reboot", ("s3:ListBucket",), places.archive_bucket),
    Grant(READS, "fetch what nodes kept before a reboot", ("s3:GetObject",), places.archives),
    Grant(
        READS,
        "look at dead letters, and let them go again",
        ("sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"),
        places.queue,
    ),
    Grant(
        (ACTING,),
        "give a dead letter to its function again",
        ("lambda:InvokeFunction",),
        places.called_functions,
    ),
    Grant(ACTS, "put a dead letter away", ("sqs:DeleteMessage",), places.queue),
    Grant(
        ACTS,
        "record jobs, holds and reboots",
        ("dynamodb:BatchGetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"),
        places.tables,
    ),
    Grant(
        ACTS,
        "freeze and thaw the fleet, say yes or no to a reboot",
        ("dynamodb:UpdateItem",),
        places.guard,
    ),
    Grant(
        ACTS,
        "make a task definition from an image, and take it back",
        ("ecs:DeregisterTaskDefinition", "ecs:RegisterTaskDefinition", "logs:DescribeLogGroups"),
        places.anything,
    ),
    Grant(ACTS, "start ranks and health checks", ("ecs:StartTask",), places.definitions, "cluster"),
    Grant(ACTS, "give tasks their roles", ("iam:PassRole",), places.nothing, "ecs"),
    Grant(ACTS, "stop ranks and checks", ("ecs:DescribeTasks", "ecs:StopTask"), places.tasks, "cluster"),
    Grant(ACTS, "show a node's state on the cluster", ("ecs:PutAttributes",), places.instances, "cluster"),
    Grant(ACTS, "look for a task before it is stopped", ("ecs:ListTasks",), places.anything, "cluster"),
    Grant(ACTS, "reboot nodes", ("ssm:SendCommand",), places.document),
    Grant(ACTS, "reboot nodes", ("ssm:SendCommand",), places.hosts, "tag"),
    Grant(ACTS, "sign the address where a node keeps its evidence", ("s3:PutObject",), places.archives),
    Grant(
        ACTS,
        "tell of a job that could not be started, of a dead letter put away",
        ("sns:Publish",),
        places.topic,
    ),
    Grant(ACTS, "tell the same as an event on the bus", ("events:PutEvents",), places.bus, "incidents"),
    Grant(
        ACTS,
        "publish to a topic that is encrypted",
        ("kms:Decrypt", "kms:GenerateDataKey"),
        places.topic_key,
        "sns",
    ),
    Grant(
        ACTS,
        "keep the older lines of a timeline",
        ("logs:CreateLogStream", "logs:PutLogEvents"),
        places.timeline,
    ),
)


def grants(who: str) -> list[Grant]:
    return [grant for grant in GRANTS if who in grant.who]


def actions(who: str) -> set[str]:
    return {action for grant in grants(who) for action in grant.actions}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """ARNs that only the stack itself knows."""

    topic: str
    key: str
    queue: str
    bucket: str = ""  #: and of its archives
    archives: str = ""
    wildcards: Sequence[tuple[str, str]] = ()  #: in these, as the checker spells them, and why

    @property
    def known(self) -> Mapping[Places, str]:
        named = {places.topic: self.topic, places.queue: self.queue, places.topic_key: self.key}
        if self.bucket:
            named |= {places.archive_bucket: self.bucket, places.archives: self.archives}
        return named


def document(
    who: str,
    config: Config,
    *,
    role_arns: Sequence[str],
    account: str,
    region: str,
    partition: str = "aws",
    made: Made | None = None,
) -> dict[str, Any]:
    """The policy as IAM takes it. `made`: what the stack knows by its own name.

    What is allowed on the same things is one statement: a managed policy has room for 6,144 characters.
    """
    statements: dict[str, dict[str, Any]] = {}
    known = made.known if made else {}
    for grant in grants(who):
        names = [place.spelled(partition, region, account) for place in grant.on(config)]
        if grant.on in known:
            names = [known[grant.on]]
        if grant.only == "ecs":
            names = list(role_arns)
        if not names:
            continue
        condition = _condition(grant.only, config, partition, region, account)
        statement: dict[str, Any] = {"Effect": "Allow", "Action": [], "Resource": names}
        if condition:
            statement["Condition"] = condition
        statements.setdefault(f"{names} {condition}", statement)["Action"] += grant.actions
    return {"Version": "2012-10-17", "Statement": list(statements.values())}


def _condition(only: str, config: Config, partition: str, region: str, account: str) -> Mapping[str, Any]:
    key, value = config.node_tag
    if only == "cluster":
        (place,) = places.cluster(config)
        return {"ArnEquals": {"ecs:cluster": place.spelled(partition, region, account)}}
    if only == "incidents":
        return places.incidents_only()
    if only == "sns":
        return {"StringLike": {"kms:ViaService": "sns.*"}}
    if only == "ecs":
        return {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}}
    return {"StringEquals": {f"ssm:resourceTag/{key}": value}} if only == "tag" else {}


def wildcards(who: str, config: Config, made: Made) -> list[tuple[str, str]]:
    """Everything in a policy of the stack that stands for more than one thing, as the checker spells it, with the
    reason. What the stack knows by its own name is no wildcard, but for the archives in its bucket."""
    named = [grant for grant in grants(who) if grant.on not in made.known]
    found = [
        (place.shown, place.why) for grant in named for place in grant.on(config) if "*" in place.resource
    ]
    archives = any(grant.on is places.archives for grant in grants(who))
    return [*found, *made.wildcards] if archives else found
