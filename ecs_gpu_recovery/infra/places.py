"""What rights are given on: the things of one deployment, by their names, each with the reason for its wildcard."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..aws import dead_letters, incidents, reboot_document, shell_document
from ..aws import hang_document as look
from ..aws import last_look as last
from ..aws.tables import BY_CLUSTER, BY_INSTANCE, BY_STATUS, GUARD
from ..config import Config
from ..settings import timeline_group
from .naming import Name

Places = Callable[[Config], Sequence[Name]]


def _named(service: str, *resources: str, why: str = "") -> Places:
    """Settings stand in braces."""
    return lambda config: [Name(service, resource.format_map(vars(config)), why) for resource in resources]


tables = _named("dynamodb", *(f"table/{{{kind}_TABLE_NAME}}" for kind in ("JOB", "TASK", "NODE")))
guard = _named("dynamodb", f"table/{{STACK_NAME}}-{GUARD.name}")
#: Indexes that carry a line per job, and no record.
job_lists = _named(
    "dynamodb", *(f"table/{{JOB_TABLE_NAME}}/index/{index}" for index in (BY_CLUSTER, BY_STATUS))
)
node_indexes = _named(
    "dynamodb", *(f"table/{{NODE_TABLE_NAME}}/index/{index}" for index in (BY_CLUSTER, BY_INSTANCE))
)
instances = _named(
    "ecs",
    "container-instance/{ECS_CLUSTER_NAME}/*",
    why="Container instances come and go; only those of this cluster are meant.",
)
tasks = _named(
    "ecs", "task/{ECS_CLUSTER_NAME}/*", why="Tasks come and go; only those of this cluster are meant."
)
timeline = _named(
    "logs",
    f"log-group:{timeline_group('{STACK_NAME}')}:log-stream:*",
    why="Each record has a stream of its own in this group.",
)
topic = _named("sns", "{SNS_TOPIC_NAME}")
repositories = _named("ecr", "repository/*", why="IMAGE may name any repository of the account's.")
bus = _named("events", "event-bus/default")
#: On which only the watches of this stack may speak.
watch_bus = _named("events", "event-bus/{STACK_NAME}-watch")
topic_key = _named(
    "kms", "key/*", why="The key of the topic is known when the stack is made; only SNS may use it."
)
functions = _named(
    "lambda",
    "function:{STACK_NAME}-*",
    why="The functions of this stack, which tell what they were deployed with.",
)
called_functions = _named("lambda", *(f"function:{{STACK_NAME}}-{name}" for name in dead_letters.FUNCTIONS))
queue = _named(
    "sqs",
    "{STACK_NAME}-DeadLetters*",
    why="CloudFormation ends the name of the queue of dead letters with letters of its own.",
)
groups = _named(
    "autoscaling",
    "autoScalingGroup:*:autoScalingGroupName/*",
    why="Groups are yours, and are known by their tag only.",
)
document = _named("ssm", f"document/{reboot_document.name('{STACK_NAME}')}")
hang_document = _named("ssm", f"document/{look.name('{STACK_NAME}')}")
last_look = _named("ssm", f"document/{last.name('{STACK_NAME}')}")
anything = _named(
    "", "*", why="AWS knows no narrower resource for these; they read, or make and retire definitions."
)


def incidents_only() -> dict[str, dict[str, str]]:
    """Nobody may speak on the bus for a watch, or for AWS."""
    return {"StringEquals": {"events:source": incidents.SOURCE, "events:detail-type": incidents.TYPE}}


def cluster(config: Config) -> list[Name]:
    return [Name("ecs", f"cluster/{config.ECS_CLUSTER_NAME}")]


def definitions(config: Config) -> list[Name]:
    """What training and checks are started from."""
    why = "Any revision may be started, on this cluster only. TRAINING_TASK_FAMILIES narrows it."
    families = dict.fromkeys([config.check_family, *config.TRAINING_TASK_FAMILIES.split(",")])
    return [Name("ecs", f"task-definition/{family}:*", why) for family in families]


def training_logs(config: Config) -> list[Name]:
    """The log groups that ranks write to; checks too, as far as the stack knows."""
    why = "Ranks and checks write to streams of these groups. TRAINING_LOG_GROUPS names them."
    return [Name("logs", f"log-group:{group}:log-stream:*", why) for group in config.training_log_groups]


def training_groups(config: Config) -> list[Name]:
    """The same groups, for questions about several of their streams."""
    why = "A question about several streams is one to their group. TRAINING_LOG_GROUPS names them."
    return [Name("logs", f"log-group:{group}:*", why) for group in config.training_log_groups]


def archive_bucket(config: Config) -> list[Name]:
    """Where nodes keep what their reboots would wipe; nothing where EVIDENCE_DAYS is 0."""
    why = "CloudFormation ends the name of the bucket with letters of its own."
    return [Name("s3", f"{config.STACK_NAME.lower()}-evidence*", why)] if config.EVIDENCE_DAYS else []


def archives(config: Config) -> list[Name]:
    why = "Each reboot has an archive of its own, and CloudFormation ends the name of the bucket."
    return [Name("s3", f"{name.resource}/{shell_document.FOLDER}/*", why) for name in archive_bucket(config)]


def hosts(config: Config) -> list[Name]:
    why = "A node that joins tomorrow must be rebootable too, if it has the tag."
    return [Name("ec2", "instance/*", why), Name("ssm", "managed-instance/*", why)]


def nothing(config: Config) -> list[Name]:
    """Roles are passed on, and only the stack knows their names."""
    return []
