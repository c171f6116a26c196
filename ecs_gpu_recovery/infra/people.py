"""What people need who use the command, and what the console needs that does the rest for them. One list for all.

Records hold what programs were given, and a queue shows a message by taking it: so a viewer's own rights list jobs and
look at the deployment, and the console shows the rest. Whoever may call a function can tell it anything: so that is the
console's alone too. The same list makes the managed policies of the stack, the console's role, the page about
permissions, and a document for accounts where policies are made elsewhere. A test holds it against the calls that the
commands make. It needs no CDK.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..aws import dead_letters, reboot_document
from ..aws.tables import BY_CLUSTER, BY_INSTANCE, BY_STATUS
from ..config import Config
from ..settings import timeline_group

VIEWER, OPERATOR = "viewer", "operator"
ROLES = (VIEWER, OPERATOR)
#: The console as a service: one that only shows, and one that acts for the operators it knows.
SHOWING, ACTING = "console", "acting console"
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


def _job_lists(config: Config) -> list[Place]:
    """Indexes that carry a line per job, and no record."""
    return [
        Place("dynamodb", f"table/{config.JOB_TABLE_NAME}/index/{index}") for index in (BY_CLUSTER, BY_STATUS)
    ]


def _node_indexes(config: Config) -> list[Place]:
    return [
        Place("dynamodb", f"table/{config.NODE_TABLE_NAME}/index/{index}")
        for index in (BY_CLUSTER, BY_INSTANCE)
    ]


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
    why = "Ranks write to streams of these groups. TRAINING_LOG_GROUPS names them."
    return [Place("logs", f"log-group:{group}:log-stream:*", why=why) for group in config.training_log_groups]


def _timeline(config: Config) -> list[Place]:
    why = "Each record has a stream of its own in this group."
    return [Place("logs", f"log-group:{timeline_group(config.STACK_NAME)}:log-stream:*", why=why)]


def _key(config: Config) -> list[Place]:
    return [
        Place(
            "kms", "key/*", why="The key of the topic is known when the stack is made; only SNS may use it."
        )
    ]


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


_ALL = (VIEWER, OPERATOR, SHOWING, ACTING)
_READS, _ACTS = (OPERATOR, SHOWING, ACTING), (OPERATOR, ACTING)
GRANTS: tuple[Grant, ...] = (
    Grant(who=_ALL, why="list jobs", actions=("dynamodb:Query",), on=_job_lists),
    Grant(who=_ALL, why="the doctor looks at the tables", actions=("dynamodb:DescribeTable",), on=_tables),
    Grant(who=_ALL, why="find the cluster's nodes", actions=("ecs:ListContainerInstances",), on=_cluster),
    Grant(
        who=_ALL,
        why="see whether a node is connected and how many GPUs it has",
        actions=("ecs:DescribeContainerInstances",),
        on=_instances,
        only="cluster",
    ),
    Grant(
        who=_ALL,
        why="see whether SSM reaches a node",
        actions=("ssm:DescribeInstanceInformation",),
        on=_anything,
    ),
    Grant(
        who=_ALL, why="the doctor asks who hears of failures", actions=("sns:GetTopicAttributes",), on=_topic
    ),
    Grant(
        who=_ALL,
        why="learn names and policy from the deployment",
        actions=("lambda:GetFunctionConfiguration",),
        on=_functions,
    ),
    Grant(who=_READS, why="show jobs, tasks and nodes", actions=("dynamodb:GetItem",), on=_tables),
    Grant(who=_READS, why="list nodes", actions=("dynamodb:Query",), on=_node_indexes),
    Grant(
        who=_READS,
        why="find a task's log; the doctor looks at the check",
        actions=("ecs:DescribeTaskDefinition",),
        on=_anything,
    ),
    Grant(who=_READS, why="read what the ranks wrote", actions=("logs:GetLogEvents",), on=_logs),
    Grant(
        who=_READS,
        why="look at dead letters, and let them go again",
        actions=("sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"),
        on=_queue,
    ),
    Grant(
        who=(ACTING,),
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
    Grant(
        who=_ACTS,
        why="publish to a topic that is encrypted",
        actions=("kms:Decrypt", "kms:GenerateDataKey"),
        on=_key,
        only="sns",
    ),
    Grant(
        who=_ACTS,
        why="keep the older lines of a timeline",
        actions=("logs:CreateLogStream", "logs:PutLogEvents"),
        on=_timeline,
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
    known = {_topic: made.topic, _queue: made.queue, _key: made.key} if made else {}
    for grant in grants(who):
        places = [place.spelled(partition, region, account) for place in grant.on(config)]
        if grant.on in known:
            places = [known[grant.on]]
        if grant.only == "ecs":
            places = list(role_arns)
        if not places:
            continue
        condition = _condition(grant.only, config, partition, region, account)
        statement: dict[str, Any] = {"Effect": "Allow", "Action": [], "Resource": places}
        if condition:
            statement["Condition"] = condition
        statements.setdefault(f"{places} {condition}", statement)["Action"] += grant.actions
    return {"Version": "2012-10-17", "Statement": list(statements.values())}


def _condition(only: str, config: Config, partition: str, region: str, account: str) -> Mapping[str, Any]:
    key, value = config.node_tag
    if only == "cluster":
        (place,) = _cluster(config)
        return {"ArnEquals": {"ecs:cluster": place.spelled(partition, region, account)}}
    if only == "sns":
        return {"StringLike": {"kms:ViaService": "sns.*"}}
    if only == "ecs":
        return {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}}
    return {"StringEquals": {f"ssm:resourceTag/{key}": value}} if only == "tag" else {}


def wildcards(who: str, config: Config) -> list[Place]:
    """Everything in a policy of the stack that stands for more than one thing, with the reason. The stack knows the
    names of its queue and its key."""
    named = [grant for grant in grants(who) if grant.on not in (_queue, _key)]
    return [place for grant in named for place in grant.on(config) if "*" in place.resource]
