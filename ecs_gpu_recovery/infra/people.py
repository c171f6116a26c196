"""What people need who use the command and the console: a viewer looks, an operator acts. One list for both.

The same list makes the managed policies of the stack, the page about permissions, and a document for accounts where
policies are made elsewhere. A test holds it against the calls that the commands make. It needs no CDK.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..aws import dead_letters, reboot_document
from ..aws.tables import BY_CLUSTER, BY_INSTANCE, BY_STATUS
from ..config import Config

VIEWER, OPERATOR = "viewer", "operator"
ROLES = (VIEWER, OPERATOR)
#: All may ask who they are, with or without a policy.
FREE = frozenset({"sts:GetCallerIdentity"})


@dataclass(frozen=True, slots=True)
class Place:
    """What an action is allowed on: a thing of this account and region. `why` where it holds a wildcard."""

    service: str
    resource: str
    account: bool = True
    why: str = ""

    def spelled(self, partition: str, region: str, account: str) -> str:
        if not self.service:
            return self.resource
        return f"arn:{partition}:{self.service}:{region}:{account if self.account else ''}:{self.resource}"


_ANY = Place(
    "", "*", why="AWS knows no narrower resource for these; they read, or make and retire definitions."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Some actions on some things, and who needs them for what."""

    who: tuple[str, ...]
    why: str
    actions: tuple[str, ...]
    on: Callable[[Config], Sequence[Place]]
    only: str = ""  #: "cluster": of this cluster; "tag": nodes with the tag; "ecs": passed to ECS

    def shown(self, config: Config) -> list[str]:
        """The resources as a person reads them."""
        return [f"{name.service}:{name.resource}" if name.service else "*" for name in self.on(config)]


def _tables(config: Config) -> list[Place]:
    names = (config.JOB_TABLE_NAME, config.TASK_TABLE_NAME, config.NODE_TABLE_NAME)
    return [Place("dynamodb", f"table/{name}") for name in names]


def _indexes(config: Config) -> list[Place]:
    jobs, nodes = config.JOB_TABLE_NAME, config.NODE_TABLE_NAME
    places = ((jobs, BY_CLUSTER), (jobs, BY_STATUS), (nodes, BY_CLUSTER), (nodes, BY_INSTANCE))
    return [Place("dynamodb", f"table/{table}/index/{index}") for table, index in places]


def _cluster(config: Config) -> list[Place]:
    return [Place("ecs", f"cluster/{config.ECS_CLUSTER_NAME}")]


def _instances(config: Config) -> list[Place]:
    why = "Container instances come and go; only those of this cluster are meant."
    return [Place("ecs", f"container-instance/{config.ECS_CLUSTER_NAME}/*", why=why)]


def _tasks(config: Config) -> list[Place]:
    why = "Tasks come and go; only those of this cluster are meant."
    return [Place("ecs", f"task/{config.ECS_CLUSTER_NAME}/*", why=why)]


def _definitions(config: Config) -> list[Place]:
    why = "Any revision may be started, on this cluster only. TRAINING_TASK_FAMILIES narrows it."
    families = dict.fromkeys([config.check_family, *config.TRAINING_TASK_FAMILIES.split(",")])
    return [Place("ecs", f"task-definition/{family}:*", why=why) for family in families]


def _logs(config: Config) -> list[Place]:
    why = "Jobs name the log group that their ranks write to; it may be any."
    return [Place("logs", "log-group:*:log-stream:*", why=why)]


def _topic(config: Config) -> list[Place]:
    return [Place("sns", config.SNS_TOPIC_NAME)]


def _functions(config: Config) -> list[Place]:
    why = "The functions of this stack, which tell what they were deployed with."
    return [Place("lambda", f"function:{config.STACK_NAME}-*", why=why)]


def _called(config: Config) -> list[Place]:
    return [Place("lambda", f"function:{config.STACK_NAME}-{name}") for name in dead_letters.FUNCTIONS]


def _queue(config: Config) -> list[Place]:
    why = "CloudFormation ends the name of the queue of dead letters with letters of its own."
    return [Place("sqs", f"{config.STACK_NAME}-DeadLetters*", why=why)]


def _document(config: Config) -> list[Place]:
    return [Place("ssm", f"document/{reboot_document.name(config.STACK_NAME)}")]


def _hosts(config: Config) -> list[Place]:
    why = "A node that joins tomorrow must be rebootable too, if it has the tag."
    return [Place("ec2", "instance/*", why=why), Place("ssm", "managed-instance/*", why=why)]


def _anything(config: Config) -> list[Place]:
    return [_ANY]


def _no_names(config: Config) -> list[Place]:
    return []


_BOTH, _ACTS = (VIEWER, OPERATOR), (OPERATOR,)
GRANTS: tuple[Grant, ...] = (
    Grant(
        who=_BOTH,
        why="show jobs, tasks and nodes; the doctor looks at the tables",
        actions=("dynamodb:DescribeTable", "dynamodb:GetItem"),
        on=_tables,
    ),
    Grant(who=_BOTH, why="list jobs and nodes", actions=("dynamodb:Query",), on=_indexes),
    Grant(who=_BOTH, why="find the cluster's nodes", actions=("ecs:ListContainerInstances",), on=_cluster),
    Grant(
        who=_BOTH,
        why="see whether a node is connected and how many GPUs it has",
        actions=("ecs:DescribeContainerInstances",),
        on=_instances,
        only="cluster",
    ),
    Grant(
        who=_BOTH,
        why="find a task's log; see whether SSM reaches a node",
        actions=("ecs:DescribeTaskDefinition", "ssm:DescribeInstanceInformation"),
        on=_anything,
    ),
    Grant(who=_BOTH, why="read what the ranks wrote", actions=("logs:GetLogEvents",), on=_logs),
    Grant(
        who=_BOTH, why="the doctor asks who hears of failures", actions=("sns:GetTopicAttributes",), on=_topic
    ),
    Grant(
        who=_BOTH,
        why="learn names and policy from the deployment",
        actions=("lambda:GetFunctionConfiguration",),
        on=_functions,
    ),
    Grant(
        who=_BOTH,
        why="look at dead letters, and let them go again",
        actions=("sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"),
        on=_queue,
    ),
    Grant(
        who=_ACTS,
        why="give a dead letter to its function again",
        actions=("lambda:InvokeFunction",),
        on=_called,
    ),
    Grant(who=_ACTS, why="put a dead letter away", actions=("sqs:DeleteMessage",), on=_queue),
    Grant(
        who=_ACTS,
        why="record jobs, holds and reboots",
        actions=("dynamodb:BatchGetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"),
        on=_tables,
    ),
    Grant(
        who=_ACTS,
        why="make a task definition from an image, and take it back",
        actions=("ecs:DeregisterTaskDefinition", "ecs:RegisterTaskDefinition", "logs:DescribeLogGroups"),
        on=_anything,
    ),
    Grant(
        who=_ACTS,
        why="start ranks and health checks",
        actions=("ecs:StartTask",),
        on=_definitions,
        only="cluster",
    ),
    Grant(who=_ACTS, why="give tasks their roles", actions=("iam:PassRole",), on=_no_names, only="ecs"),
    Grant(who=_ACTS, why="stop ranks and checks", actions=("ecs:StopTask",), on=_tasks, only="cluster"),
    Grant(
        who=_ACTS,
        why="show a node's state on the cluster",
        actions=("ecs:PutAttributes",),
        on=_instances,
        only="cluster",
    ),
    Grant(
        who=_ACTS,
        why="look for a task before it is stopped",
        actions=("ecs:ListTasks",),
        on=_anything,
        only="cluster",
    ),
    Grant(who=_ACTS, why="reboot nodes", actions=("ssm:SendCommand",), on=_document),
    Grant(who=_ACTS, why="reboot nodes", actions=("ssm:SendCommand",), on=_hosts, only="tag"),
    Grant(
        who=_ACTS,
        why="tell of a job that could not be started, of a dead letter put away",
        actions=("sns:Publish",),
        on=_topic,
    ),
)


def grants(who: str) -> list[Grant]:
    return [grant for grant in GRANTS if who in grant.who]


def actions(who: str) -> set[str]:
    return {action for grant in grants(who) for action in grant.actions}


def document(
    who: str,
    config: Config,
    *,
    role_arns: Sequence[str],
    account: str,
    region: str,
    partition: str = "aws",
    topic_arn: str = "",
    queue_arn: str = "",
) -> dict[str, Any]:
    """The policy as IAM takes it."""
    statements = []
    for grant in grants(who):
        places = [place.spelled(partition, region, account) for place in grant.on(config)]
        if grant.on is _topic and topic_arn:
            places = [topic_arn]
        if grant.on is _queue and queue_arn:
            places = [queue_arn]
        if grant.only == "ecs":
            places = list(role_arns)
        if not places:
            continue
        statement: dict[str, Any] = {"Effect": "Allow", "Action": list(grant.actions), "Resource": places}
        if condition := _condition(grant.only, config, partition, region, account):
            statement["Condition"] = condition
        statements.append(statement)
    return {"Version": "2012-10-17", "Statement": statements}


def _condition(only: str, config: Config, partition: str, region: str, account: str) -> Mapping[str, Any]:
    key, value = config.node_tag
    if only == "cluster":
        (place,) = _cluster(config)
        return {"ArnEquals": {"ecs:cluster": place.spelled(partition, region, account)}}
    if only == "ecs":
        return {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}}
    return {"StringEquals": {f"ssm:resourceTag/{key}": value}} if only == "tag" else {}


def wildcards(who: str, config: Config) -> list[Place]:
    """Everything in a policy of the stack that stands for more than one thing, with the reason. The stack knows the
    name of its queue."""
    named = [grant for grant in grants(who) if grant.on is not _queue]
    return [place for grant in named for place in grant.on(config) if "*" in place.resource]
