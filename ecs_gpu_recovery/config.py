"""What a deployment can choose: each setting is one row, and each problem is told at once, before anything is made.

A setting that the functions must know too is a row of `settings.SharedSettings`; one that the engine decides by is a
row of `core.policy.Policy`. What is read, what the functions are told and docs/settings.md are made from the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from . import settings as read
from .core.policy import Policy
from .core.setting import boolean, matching, one_of, rows, setting, text_of, whole
from .settings import ConfigError, Reader, SharedSettings, policy_from, reboot_too_short

__all__ = ["CONSOLE_NEEDS", "Config", "ConfigError", "Deployment"]

_LOG_YEARS = (365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653)
_LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, *_LOG_YEARS)
_https = read.optional(matching(r"https://[A-Za-z0-9.-]+(:[0-9]+)?(/[\w./~%-]*)?", "use an https address"))
_vpc = read.optional(matching(r"vpc-[0-9a-f]{8,17}", "use an id such as vpc-0123456789abcdef0"))
_families = read.each(matching(r"\*|[A-Za-z0-9_-]{1,255}\*?", "use families of task definitions, or *"))


def _log_days(text: str) -> int:
    return int(one_of(*_LOG_DAYS)(text))


def _log_level(text: str) -> str:
    return one_of("DEBUG", "INFO", "WARNING", "ERROR")(text.upper())


@dataclass(frozen=True, kw_only=True)
class Deployment(SharedSettings):
    """What a deployment can choose, one row for each setting."""

    DELETION_PROTECTION: bool = setting(
        True, boolean, "tables, timelines and shared storage survive `cdk destroy`"
    )
    CREATE_ECS_CLUSTER: bool = setting(False, boolean, "make the cluster; else it is one of yours")
    TRAINING_TASK: str = setting("gpu-training", read.family, "the family of the example training task")
    CREATE_TRAINING_TASK: bool = setting(True, boolean, "make that example")
    TRAINING_TASK_FAMILIES: str = setting("*", _families, "families that may be started again")
    TRAINING_LOG_GROUPS: str = setting(
        "/gpu/*",
        read.each(matching(r"[\w./#-]{1,512}\*?", "use names of log groups, with * at the end if need be")),
        "log groups that ranks write to, and that people and nodes may use, beside the stack's own",
    )
    IMAGE: str = setting(
        "",
        read.any_text,
        "image of the check and the example; empty: `IMAGE_TAG` in the stack's repository",
    )
    IMAGE_TAG: str = setting(
        "latest",
        matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", "use the tag of an image"),
        "its tag there",
    )
    REPOSITORY_NAME: str = setting(
        "ecs-gpu-recovery",
        matching(r"[a-z0-9][a-z0-9._/-]{1,255}", "use the name of an ECR repository"),
        "that repository",
    )
    BUILD_IMAGE: bool = setting(
        False,
        boolean,
        "CodeBuild builds the image, without Docker here",
    )
    GPUS_PER_NODE: int = setting(8, whole(1, 64), "what the check and the example reserve")
    WATCH_NODES: str = setting(
        "auto",
        one_of("auto", "true", "false"),
        "`gpu-health watch` on each node; auto: with `IMAGE` or `BUILD_IMAGE`",
    )
    PROGRESS_DIR: str = setting(
        "",
        read.optional(matching(r"(/\w[\w.-]*)+", "use the full path of a folder")),
        "folder of the nodes where the watch sees ranks write (`JOB_ID/NODE_RANK`); empty: CloudWatch Logs is asked",
    )
    LAMBDA_TIMEOUT_SECONDS: int = setting(120, whole(10, 900), "how long a function may take", unit="s")
    LAMBDA_MEMORY_SIZE: int = setting(512, whole(128, 10240), "memory of each function", unit="MB")
    EVIDENCE_DAYS: int = setting(
        90,
        whole(0, 3650),
        "how long evidence from before a reboot is kept; 0: none",
        unit="days",
    )
    SWEEPER_CONCURRENCY: int = setting(
        2,
        whole(0, 10),
        "reserved for the sweeper; 0 where the account has too little",
    )
    LOG_RETENTION_DAYS: int = setting(90, _log_days, "how long logs are kept", unit="days")
    LOG_LEVEL: str = setting("INFO", _log_level, "how much the functions write there")
    SNS_TOPIC_NAME: str = setting(
        "gpu-training-notifications",
        matching(r"[A-Za-z0-9_-]{1,256}", "use letters, digits, dashes and underscores"),
        "the topic of messages to people",
    )
    SNS_TOPIC_DISPLAY_NAME: str = setting(
        "GPU Training Job Notifications",
        matching(r".{1,100}", "use 1 to 100 characters"),
        "from whom they are",
    )
    NOTIFICATION_EMAIL: str = setting(
        "",
        read.optional(matching(r"[^@\s]+@[^@\s]+\.[^@\s]+", "use an e-mail address")),
        "subscribed to the topic",
    )
    CHAT_TOPIC_NAME: str = setting(
        "",
        read.optional(matching(r"[A-Za-z0-9_-]{1,256}", "use letters, digits, dashes and underscores")),
        "a second topic, for Amazon Q in chat applications: Slack, Teams",
    )
    CREATE_EC2_INSTANCE: bool = setting(False, boolean, "make a GPU node; needs `VPC_ID` and `SUBNET_ID`")
    EC2_INSTANCE_TYPE: str = setting(
        "g5.xlarge", matching(r"[a-z0-9-]+\.[a-z0-9-]+", "use an instance type such as g5.xlarge"), "its type"
    )
    CREATE_FSX: bool = setting(
        False, boolean, "make shared storage (FSx for Lustre); needs `VPC_ID` and `SUBNET_ID`"
    )
    FSX_STORAGE_GIB: int = setting(1200, read.lustre_gib, "its size: 1200, or a multiple of 2400", unit="GiB")
    FSX_CLIENT_CIDRS: str = setting(
        "",
        read.optional(read.each(read.network)),
        "other networks that may mount it",
    )
    VPC_ID: str = setting("", _vpc, "the network of the node and the storage")
    SUBNET_ID: str = setting(
        "",
        read.optional(matching(r"subnet-[0-9a-f]{8,17}", "use an id such as subnet-0123456789abcdef0")),
        "their subnet",
    )
    CREATE_ECS_ANYWHERE_ROLE: bool = setting(
        False, boolean, "make the role for machines of your own (ECS Anywhere)"
    )
    CREATE_PEOPLE_POLICIES: bool = setting(
        False,
        boolean,
        "make two policies for people: to look, and to act",
    )
    CONSOLE_IMAGE: str = setting(
        "",
        read.any_text,
        "the [console as a service](console.md#on-aws-as-a-service): its image. Needs the network, the"
        " certificate and the provider below",
    )
    CONSOLE_VPC_ID: str = setting("", _vpc, "the console's network")
    CONSOLE_SUBNET_IDS: str = setting(
        "",
        read.optional(
            matching(
                r"subnet-[0-9a-f]{8,17}(,subnet-[0-9a-f]{8,17})+", "use two or more subnets, with commas"
            )
        ),
        "two or more of its subnets",
    )
    CONSOLE_PUBLIC_IP: bool = setting(False, boolean, "a public address, where there is no NAT")
    CONSOLE_INTERNET_FACING: bool = setting(False, boolean, "reachable from the internet")
    CONSOLE_ALLOWED_CIDRS: str = setting(
        "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16",
        read.each(read.network),
        "from where it is reachable",
    )
    CONSOLE_CERTIFICATE_ARN: str = setting(
        "",
        read.optional(
            matching(
                r"arn:aws[a-z-]*:acm:[a-z0-9-]+:[0-9]{12}:certificate/[0-9a-f-]+", "use a certificate's ARN"
            )
        ),
        "the load balancer's certificate",
    )
    CONSOLE_OIDC_ISSUER: str = setting("", _https, "OpenID Connect: the provider")
    CONSOLE_OIDC_AUTHORIZATION_URL: str = setting("", _https, "where it signs people in")
    CONSOLE_OIDC_TOKEN_URL: str = setting("", _https, "where it hands out tokens")
    CONSOLE_OIDC_USER_INFO_URL: str = setting("", _https, "where it says who a person is")
    CONSOLE_OIDC_CLIENT_ID: str = setting(
        "", read.optional(matching(r"[\w.:@/-]{1,256}", "use the client's id")), "the console's id there"
    )
    CONSOLE_OIDC_SECRET: str = setting(
        "",
        read.optional(matching(r"[\w/+=.@:-]{1,512}", "use the secret's name or ARN")),
        "the client's secret in Secrets Manager, by name or ARN",
    )
    CONSOLE_OPERATORS: str = setting(
        "",
        read.optional(read.each(matching(r"[\w.+@=-]{1,128}", "use e-mail addresses or ids, with commas"))),
        "who may act: e-mail addresses or ids",
    )
    POLICY: ClassVar[Mapping[str, Any]] = {}  #: numbers of the policy, for a class with values of its own
    policy: Policy = Policy()
    policy_texts: Mapping[str, str]  #: the numbers of the policy that were chosen, as they were written

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Raises `ConfigError` with everything that is wrong."""
        reader = Reader(env)
        values = {
            row.name: reader.value(row, reader.parse(row, text_of(getattr(cls, row.name)), row.default))
            for row in rows(cls)
        }
        known = [row.name for row in rows(Policy)]
        reader.problems += [f"POLICY has no number {name!r}" for name in cls.POLICY if name not in known]
        here = {name: text_of(cls.POLICY.get(name, "")) for name in known}
        texts = {name: text for name in known if (text := env.get(name, "").strip() or here[name])}
        made = cls(**values, policy=policy_from(texts, reader=reader.over(texts)), policy_texts=texts)
        for names, problem in made._across():
            if reader.fine(*names):
                reader.problems.append(problem)
        reader.finish()
        return made

    def _across(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What no single variable can tell: the settings that are looked at together, and what is wrong."""
        names = ("TASK_TABLE_NAME", "JOB_TABLE_NAME", "NODE_TABLE_NAME")
        tables = [str(getattr(self, name)) for name in names]
        if len(set(tables)) < len(tables):
            yield names, f"three tables need three names, not {', '.join(tables)}"
        for name in ("CREATE_EC2_INSTANCE", "CREATE_FSX"):
            if getattr(self, name) and not (self.VPC_ID and self.SUBNET_ID):
                yield (name, "VPC_ID", "SUBNET_ID"), f"{name} needs VPC_ID and SUBNET_ID"
        if self.BUILD_IMAGE and self.IMAGE:
            yield ("BUILD_IMAGE", "IMAGE"), "BUILD_IMAGE builds the stack's own image: leave IMAGE out"
        for name in CONSOLE_NEEDS if self.CONSOLE_IMAGE else ():
            if not getattr(self, name):
                yield ("CONSOLE_IMAGE", name), f"CONSOLE_IMAGE needs {name}"
        given = (
            "DISPATCH_LEASE_S" in self.policy_texts
        )  # if not, the deployment chooses one that is long enough
        if given and self.policy.lease.total_seconds() <= self.LAMBDA_TIMEOUT_SECONDS:
            why = "or orders would be sent twice"
            yield (
                ("DISPATCH_LEASE_S", "LAMBDA_TIMEOUT_SECONDS"),
                f"DISPATCH_LEASE_S must be longer than LAMBDA_TIMEOUT_SECONDS, {why}",
            )
        if problem := reboot_too_short(self.policy):
            yield ("REBOOT_TIMEOUT_S",), problem
        if self.check_family == self.TRAINING_TASK:
            both = ("TRAINING_TASK", "DCGM_HEALTH_CHECK_TASK")
            yield both, "TRAINING_TASK and DCGM_HEALTH_CHECK_TASK must be two families"

    def told(self) -> dict[str, str]:
        """What the functions must be told: what they would not have by themselves."""
        chosen = {row: getattr(self, row.name) for row in rows(SharedSettings)}
        return {row.name: text_of(value) for row, value in chosen.items() if value != row.default}

    @property
    def watches_nodes(self) -> bool:
        """A daemon whose image nobody has pushed yet would only fail again and again."""
        named = bool(self.IMAGE) or self.BUILD_IMAGE
        return named if self.WATCH_NODES == "auto" else self.WATCH_NODES == "true"

    @property
    def training_log_groups(self) -> list[str]:
        """The stack's own, and those that were named."""
        return list(dict.fromkeys([f"/ecs/{self.STACK_NAME}", *self.TRAINING_LOG_GROUPS.split(",")]))

    @property
    def check_family(self) -> str:
        return self.DCGM_HEALTH_CHECK_TASK.rpartition("/")[2].partition(":")[0]

    @property
    def makes_check_task(self) -> bool:
        """A bare family is made by the stack; a revision or an ARN exists already."""
        return ":" not in self.DCGM_HEALTH_CHECK_TASK


class Config(Deployment):
    """Write here what you want to have otherwise, such as

    ECS_CLUSTER_NAME = "my-gpu-cluster"
    POLICY = {"MAX_RETRIES": "2"}

    It is read as strictly as the variable of the same name, which comes before it.
    """


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
