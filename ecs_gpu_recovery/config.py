"""Configuration from the environment, parsed once and strictly. Every problem is reported at once.

This is the only place that reads environment variables for the engine. What a deployment can choose is in the
class `Config`: change it there, or set variables of the same names. `settings` has the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from . import settings as read
from .core.policy import Policy
from .settings import ConfigError, Reader, boolean, exit_codes, seconds, whole

__all__ = [
    "OLDER_NAMES",
    "POLICY_VARIABLES",
    "SETTINGS",
    "Config",
    "ConfigError",
    "LambdaSettings",
    "Reader",
    "lambda_settings",
    "policy_from",
]

_DAY = 86400.0
#: Variable, field of the policy, how it is read. The documentation's table is made from this.
POLICY_VARIABLES: tuple[tuple[str, str, Callable[[str], Any], str], ...] = (
    ("MAX_RETRIES", "max_retries", whole(0, 100), "automatic restarts per job"),
    ("HEALTHCHECK_EXIT_CODES", "healthcheck_exit_codes", exit_codes, "exit codes that start a health check"),
    ("POST_REBOOT_CHECK", "post_reboot_check", boolean, "examine a node again after its reboot"),
    ("CHECK_TRIES", "check_tries", whole(1, 5), "how often an inconclusive check is tried in all"),
    ("START_TIMEOUT_S", "start_timeout", seconds(1, _DAY), "a task must run within this time"),
    ("STOP_TIMEOUT_S", "stop_timeout", seconds(1, _DAY), "a stopped task must end within this time"),
    ("CHECK_TIMEOUT_S", "check_timeout", seconds(1, _DAY), "a health check must answer within this time"),
    (
        "REBOOT_TIMEOUT_S",
        "reboot_timeout",
        seconds(1, _DAY),
        "a rebooting or lost node must be back within this time",
    ),
    ("NODE_LOST_AFTER_S", "node_lost_after", seconds(1, _DAY), "a node that is silent for longer is lost"),
    (
        "BACKOFF_FIRST_S",
        "backoff_first",
        seconds(0.01, 3600),
        "the wait before an order is sent again; it doubles",
    ),
    ("BACKOFF_MOST_S", "backoff_most", seconds(0.01, 3600), "the longest such wait"),
    (
        "DISPATCH_LEASE_S",
        "lease",
        seconds(0, 3600),
        "how long an order belongs to the process that committed it",
    ),
)


def policy_from(env: Mapping[str, str], base: Policy | None = None, reader: Reader | None = None) -> Policy:
    """The policy, with the environment's numbers in place of the defaults."""
    mine = reader or Reader(env)
    policy = base or Policy()
    values = {
        name: mine.get((variable,), parse, getattr(policy, name))
        for variable, name, parse, _ in POLICY_VARIABLES
    }
    if reader is None:
        mine.finish()
    return replace(policy, **values)


class Config:
    """What a deployment can choose. A variable of the same name comes before the value here."""

    # DynamoDB tables. With DELETION_PROTECTION they, and shared storage, stay when the stack is destroyed.
    TASK_TABLE_NAME = "ecs_task"
    JOB_TABLE_NAME = "ecs_job"
    NODE_TABLE_NAME = "ecs_node"
    DELETION_PROTECTION = False

    # The ECS cluster that is watched. It is one of yours, unless CREATE_ECS_CLUSTER asks for a new one.
    ECS_CLUSTER_NAME = "gpu-cluster"
    CREATE_ECS_CLUSTER = False

    # The health check's task definition: a bare name is made by the stack, a revision or an ARN is yours.
    DCGM_HEALTH_CHECK_TASK = "gpu-dcgm-health-check"
    # The family of the example of a training task, and whether there is one.
    TRAINING_TASK = "gpu-training"
    CREATE_TRAINING_TASK = True
    # Families that may be started again, with commas; and the roles of theirs that are not the stack's own.
    TRAINING_TASK_FAMILIES = "*"
    TASK_ROLE_ARNS = ""
    # The image of the check and of the example; empty means IMAGE_TAG in the repository that the stack makes.
    IMAGE = ""
    IMAGE_TAG = "latest"
    REPOSITORY_NAME = "ecs-gpu-recovery"
    # What the check and the example reserve: all GPUs of a node.
    GPUS_PER_NODE = 8
    # Only nodes with this tag (key=value) may be rebooted; empty means every managed node of the account.
    NODE_TAG = ""

    # Node health while nothing is wrong yet; each is off unless asked for.
    # Evidence as it happens: `gpu-health watch` on every node.
    WATCH_NODES = False
    # Numbers of the nodes: the image of the metrics agent (docker/metrics-agent).
    METRICS_AGENT_IMAGE = ""
    # Free nodes are examined each so many minutes, one at a time, at this level (0: never).
    IDLE_CHECK_MINUTES = 0
    IDLE_CHECK_LEVEL = "quick"

    # The functions: seconds and MB each may take, days that logs are kept, and how much is written there.
    LAMBDA_TIMEOUT_SECONDS = 120
    LAMBDA_MEMORY_SIZE = 512
    LOG_RETENTION_DAYS = 90
    LOG_LEVEL = "INFO"

    # Messages to people: the topic, and an address that is subscribed to it.
    SNS_TOPIC_NAME = "gpu-training-notifications"
    SNS_TOPIC_DISPLAY_NAME = "GPU Training Job Notifications"
    NOTIFICATION_EMAIL = ""

    # Optional parts: a GPU node, and shared storage (FSx for Lustre). Both need the network.
    CREATE_EC2_INSTANCE = False
    EC2_INSTANCE_TYPE = "g5.xlarge"
    CREATE_FSX = False
    FSX_STORAGE_GIB = 1200
    VPC_ID = ""
    SUBNET_ID = ""
    # The role with which machines of your own join the cluster (ECS Anywhere).
    CREATE_ECS_ANYWHERE_ROLE = False
    # Two managed policies for people who use the command and the console: one to look, one to act.
    CREATE_PEOPLE_POLICIES = False

    # The web console as a service behind a load balancer; its image (docker/console) asks for it. It needs a network,
    # a certificate and a provider that signs people in (OpenID Connect).
    CONSOLE_IMAGE = ""
    CONSOLE_VPC_ID = ""
    CONSOLE_SUBNET_IDS = ""
    CONSOLE_PUBLIC_IP = False
    CONSOLE_INTERNET_FACING = False
    CONSOLE_ALLOWED_CIDRS = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"
    CONSOLE_CERTIFICATE_ARN = ""
    CONSOLE_OIDC_ISSUER = ""
    CONSOLE_OIDC_AUTHORIZATION_URL = ""
    CONSOLE_OIDC_TOKEN_URL = ""
    CONSOLE_OIDC_USER_INFO_URL = ""
    CONSOLE_OIDC_CLIENT_ID = ""
    # The secret of Secrets Manager that holds the client's secret, by name or ARN.
    CONSOLE_OIDC_SECRET = ""
    # Who may act, by e-mail address or id, with commas; everybody else may look.
    CONSOLE_OPERATORS = ""

    # The names of functions, alarms and logs begin with it.
    STACK_NAME = "EcsGpuRecoveryStack"
    # Numbers of the recovery policy that differ from the defaults, such as {"MAX_RETRIES": "2"}.
    POLICY: Mapping[str, str] = {}

    def __init__(self, env: Mapping[str, str]) -> None:
        reader = Reader(env)
        for name, parse in SETTINGS.items():
            here = reader.parse(name, str(getattr(type(self), name)).strip(), parse, None)
            setattr(self, name, reader.get((name, *OLDER_NAMES.get(name, ())), parse, here))
        self.POLICY = self._policy_texts(env, reader)
        self.policy = policy_from(self.POLICY, reader=reader.over(self.POLICY))
        if not reader.problems:
            self._look_across(reader)
        reader.finish()

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Config:
        """Raises `ConfigError` with everything that is wrong."""
        return cls(env)

    def _policy_texts(self, env: Mapping[str, str], reader: Reader) -> dict[str, str]:
        known = [variable for variable, *_ in POLICY_VARIABLES]
        here = {name: str(value).strip() for name, value in type(self).POLICY.items()}
        reader.problems += [f"POLICY has no number {name!r}" for name in here if name not in known]
        texts = {name: env.get(name, "").strip() or here.get(name, "") for name in known}
        return {name: text for name, text in texts.items() if text}

    def _look_across(self, reader: Reader) -> None:
        """What no single variable can tell."""
        tables = (self.TASK_TABLE_NAME, self.JOB_TABLE_NAME, self.NODE_TABLE_NAME)
        if len(set(tables)) < len(tables):
            reader.problems.append(f"three tables need three names, not {', '.join(tables)}")
        for name in ("CREATE_EC2_INSTANCE", "CREATE_FSX"):
            if getattr(self, name) and not (self.VPC_ID and self.SUBNET_ID):
                reader.problems.append(f"{name} needs VPC_ID and SUBNET_ID")
        for name in CONSOLE_NEEDS if self.CONSOLE_IMAGE else ():
            if not getattr(self, name):
                reader.problems.append(f"CONSOLE_IMAGE needs {name}")
        given = "DISPATCH_LEASE_S" in self.POLICY  # if not, the deployment chooses one that is long enough
        if given and self.policy.lease.total_seconds() <= self.LAMBDA_TIMEOUT_SECONDS:
            why = "or orders would be sent twice"
            reader.problems.append(f"DISPATCH_LEASE_S must be longer than LAMBDA_TIMEOUT_SECONDS, {why}")
        if self.check_family == self.TRAINING_TASK:
            reader.problems.append("TRAINING_TASK and DCGM_HEALTH_CHECK_TASK must be two families")

    @property
    def check_family(self) -> str:
        return self.DCGM_HEALTH_CHECK_TASK.rpartition("/")[2].partition(":")[0]

    @property
    def makes_check_task(self) -> bool:
        """A bare family is made by the stack; a revision or an ARN exists already."""
        return ":" not in self.DCGM_HEALTH_CHECK_TASK


#: A console without one of these would be open, or not reachable.
CONSOLE_NEEDS = (
    "CONSOLE_VPC_ID",
    "CONSOLE_SUBNET_IDS",
    "CONSOLE_CERTIFICATE_ARN",
    "CONSOLE_OIDC_ISSUER",
    "CONSOLE_OIDC_AUTHORIZATION_URL",
    "CONSOLE_OIDC_TOKEN_URL",
    "CONSOLE_OIDC_USER_INFO_URL",
    "CONSOLE_OIDC_CLIENT_ID",
    "CONSOLE_OIDC_SECRET",
)
#: Families with commas, for the function that keeps them running on external nodes.
NODE_DAEMONS = "NODE_DAEMON_TASKS"
#: Names that earlier versions gave to the same thing.
OLDER_NAMES = {
    "JOB_TABLE_NAME": ("TRAINING_JOB_TABLE_NAME",),
    "NODE_TABLE_NAME": ("CONTAINER_INSTANCE_TABLE_NAME",),
}
_LOG_YEARS = (365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653)
_LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, *_LOG_YEARS)
_https = read.matching(r"https://[A-Za-z0-9.-]+(:[0-9]+)?(/[\w./~%-]*)?", "use an https address")
_any = read.matching(r"[^\s].{0,2000}", "use a text")
#: How each setting of `Config` is read.
SETTINGS: dict[str, Callable[[str], Any]] = {
    "TASK_TABLE_NAME": read.table_name,
    "JOB_TABLE_NAME": read.table_name,
    "NODE_TABLE_NAME": read.table_name,
    "DELETION_PROTECTION": boolean,
    "ECS_CLUSTER_NAME": read.cluster_name,
    "CREATE_ECS_CLUSTER": boolean,
    "DCGM_HEALTH_CHECK_TASK": read.task_definition,
    "TRAINING_TASK": read.family,
    "CREATE_TRAINING_TASK": boolean,
    "TRAINING_TASK_FAMILIES": read.each(
        read.matching(r"\*|[A-Za-z0-9_-]{1,255}\*?", "use families of task definitions, or *")
    ),
    "TASK_ROLE_ARNS": read.optional(read.each(read.role_arn)),
    "IMAGE": read.optional(_any),
    "IMAGE_TAG": read.matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", "use the tag of an image"),
    "REPOSITORY_NAME": read.matching(r"[a-z0-9][a-z0-9._/-]{1,255}", "use the name of an ECR repository"),
    "GPUS_PER_NODE": whole(1, 64),
    "NODE_TAG": read.optional(read.matching(r"[\w .:/+@-]{1,128}=[\w .:/+@-]{0,256}", "use key=value")),
    "WATCH_NODES": boolean,
    "METRICS_AGENT_IMAGE": read.optional(_any),
    "IDLE_CHECK_MINUTES": whole(0, 100_000),
    "IDLE_CHECK_LEVEL": read.one_of("quick", 1, 2, 3, 4),
    "LAMBDA_TIMEOUT_SECONDS": whole(10, 900),
    "LAMBDA_MEMORY_SIZE": whole(128, 10240),
    "LOG_RETENTION_DAYS": lambda text: int(read.one_of(*_LOG_DAYS)(text)),
    "LOG_LEVEL": lambda text: read.one_of("DEBUG", "INFO", "WARNING", "ERROR")(text.upper()),
    "SNS_TOPIC_NAME": read.matching(r"[A-Za-z0-9_-]{1,256}", "use letters, digits, dashes and underscores"),
    "SNS_TOPIC_DISPLAY_NAME": read.matching(r".{1,100}", "use 1 to 100 characters"),
    "NOTIFICATION_EMAIL": read.optional(read.matching(r"[^@\s]+@[^@\s]+\.[^@\s]+", "use an e-mail address")),
    "CREATE_EC2_INSTANCE": boolean,
    "EC2_INSTANCE_TYPE": read.matching(r"[a-z0-9-]+\.[a-z0-9-]+", "use an instance type such as g5.xlarge"),
    "CREATE_FSX": boolean,
    "FSX_STORAGE_GIB": read.lustre_gib,
    "CREATE_ECS_ANYWHERE_ROLE": boolean,
    "CREATE_PEOPLE_POLICIES": boolean,
    "VPC_ID": read.optional(read.matching(r"vpc-[0-9a-f]{8,17}", "use an id such as vpc-0123456789abcdef0")),
    "SUBNET_ID": read.optional(
        read.matching(r"subnet-[0-9a-f]{8,17}", "use an id such as subnet-0123456789abcdef0")
    ),
    "CONSOLE_IMAGE": read.optional(_any),
    "CONSOLE_VPC_ID": read.optional(
        read.matching(r"vpc-[0-9a-f]{8,17}", "use an id such as vpc-0123456789abcdef0")
    ),
    "CONSOLE_SUBNET_IDS": read.optional(
        read.matching(
            r"subnet-[0-9a-f]{8,17}(,subnet-[0-9a-f]{8,17})+", "use two or more subnets, with commas"
        )
    ),
    "CONSOLE_PUBLIC_IP": boolean,
    "CONSOLE_INTERNET_FACING": boolean,
    "CONSOLE_ALLOWED_CIDRS": read.each(read.network),
    "CONSOLE_CERTIFICATE_ARN": read.optional(
        read.matching(
            r"arn:aws[a-z-]*:acm:[a-z0-9-]+:[0-9]{12}:certificate/[0-9a-f-]+", "use a certificate's ARN"
        )
    ),
    "CONSOLE_OIDC_ISSUER": read.optional(_https),
    "CONSOLE_OIDC_AUTHORIZATION_URL": read.optional(_https),
    "CONSOLE_OIDC_TOKEN_URL": read.optional(_https),
    "CONSOLE_OIDC_USER_INFO_URL": read.optional(_https),
    "CONSOLE_OIDC_CLIENT_ID": read.optional(read.matching(r"[\w.:@/-]{1,256}", "use the client's id")),
    "CONSOLE_OIDC_SECRET": read.optional(
        read.matching(r"[\w/+=.@:-]{1,512}", "use the secret's name or ARN")
    ),
    "CONSOLE_OPERATORS": read.optional(
        read.each(read.matching(r"[\w.+@=-]{1,128}", "use e-mail addresses or ids, with commas"))
    ),
    "STACK_NAME": read.matching(r"[A-Za-z][A-Za-z0-9-]{0,39}", "use up to 40 letters, digits and dashes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaSettings:
    """What a function is told by its environment."""

    task_table: str
    job_table: str
    node_table: str
    cluster: str
    check_task: str
    topic_arn: str
    policy: Policy
    node_daemons: tuple[str, ...] = ()  #: families of which each external node is to run one
    idle_check_every: timedelta | None = None  #: None: free nodes are not examined by the clock
    idle_check_level: str = "quick"


def lambda_settings(env: Mapping[str, str]) -> LambdaSettings:
    """Read them, under today's names or the older ones. Raises `ConfigError` with everything that is wrong.

    Tables have the schema's names unless told otherwise; the cluster, the check and the topic must be named.
    """
    reader = Reader(env)

    def table(name: str) -> str:
        return reader.get((name, *OLDER_NAMES.get(name, ())), read.table_name, str(getattr(Config, name)))

    def chosen(name: str) -> Any:
        return reader.get((name,), SETTINGS[name], getattr(Config, name))

    found = LambdaSettings(
        task_table=table("TASK_TABLE_NAME"),
        job_table=table("JOB_TABLE_NAME"),
        node_table=table("NODE_TABLE_NAME"),
        cluster=reader.need(("ECS_CLUSTER_NAME",), read.cluster_name),
        check_task=reader.need(("DCGM_HEALTH_CHECK_TASK",), read.task_definition),
        topic_arn=reader.need(("SNS_TOPIC_ARN",), read.topic_arn),
        policy=policy_from(env, reader=reader),
        node_daemons=tuple(filter(None, reader.get((NODE_DAEMONS,), read.each(read.family), "").split(","))),
        idle_check_every=timedelta(minutes=minutes) if (minutes := chosen("IDLE_CHECK_MINUTES")) else None,
        idle_check_level=str(chosen("IDLE_CHECK_LEVEL")),
    )
    reader.finish()
    return found
