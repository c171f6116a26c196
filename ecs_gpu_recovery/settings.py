"""How variables are read: strictly, row by row, into one type each; and what the functions read.

This is the only place that reads environment variables for the engine. Every problem is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from .core.errors import Refused
from .core.policy import Policy
from .core.setting import Setting, matching, one_of, rows, setting, whole


class ConfigError(Refused):
    """The environment does not make sense; the message names every variable that is wrong."""


class Reader:
    """Reads rows of settings and collects what is wrong with them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.problems: list[str] = []
        self._wrong: set[str] = set()

    def value(self, row: Setting, default: Any) -> Any:
        """What the first of the row's names that is set and not empty says; else the default."""
        for name in (row.name, *row.older):
            if text := self._env.get(name, "").strip():
                return self.parse(row, text, default, name)
        return default

    def needed(self, row: Setting) -> Any:
        """The same where nothing can stand in for what the functions must be told."""
        missing = object()
        found = self.value(row, missing)
        if row.needed and found is missing and row.name not in self._wrong:
            self.problems.append(f"{row.name} is missing")
        return row.default if found is missing else found

    def parse(self, row: Setting, text: str, default: Any, name: str = "") -> Any:
        try:
            return row.parse(text)
        except ValueError as exc:
            self.problems.append(f"{name or row.name}={text!r}: {exc}")
            self._wrong.add(row.name)
            return default

    def over(self, env: Mapping[str, str]) -> Reader:
        """A reader of other variables that adds to the same problems."""
        other = Reader(env)
        other.problems, other._wrong = self.problems, self._wrong
        return other

    def fine(self, *names: str) -> bool:
        """Whether none of these was wrong, so that they can be looked at together."""
        return self._wrong.isdisjoint(names)

    def finish(self) -> None:
        if self.problems:
            raise ConfigError("; ".join(self.problems))


def optional(parse: Callable[[str], str]) -> Callable[[str], str]:
    """Empty means that there is none."""
    return lambda text: parse(text) if text else ""


def each(parse: Callable[[str], str]) -> Callable[[str], str]:
    """A list with commas. It stays a text, without blanks."""
    return lambda text: ",".join(parse(part.strip()) for part in text.split(","))


def network(text: str) -> str:
    from ipaddress import IPv4Network  # the functions start without it

    try:
        return str(IPv4Network(text))
    except ValueError:
        raise ValueError("use networks such as 10.0.0.0/8, with commas") from None


def lustre_gib(text: str) -> int:
    """What FSx for Lustre sells: a first step, and then whole ones."""
    value = whole(1200, 1_000_000)(text)
    if value != 1200 and value % 2400:
        raise ValueError("use 1200, or a multiple of 2400")
    return value


def cluster_name(text: str) -> str:
    """A name, or the name in an ARN."""
    name = text.rpartition("/")[2] if text.startswith("arn:") else text
    return matching(r"[A-Za-z0-9_-]{1,255}", "use the name of an ECS cluster")(name)


table_name = matching(r"[A-Za-z0-9_.-]{3,255}", "use 3 to 255 letters, digits, dots, dashes and underscores")
family = matching(r"[A-Za-z0-9_-]{1,255}", "use the family of a task definition")
task_definition = matching(
    r"(arn:[a-z-]+:ecs:[^:/]*:[^:/]*:task-definition/)?[A-Za-z0-9_-]{1,255}(:[0-9]+)?",
    "use the family of a task definition, family:revision or an ARN",
)
topic_arn = matching(
    r"arn:[a-z-]+:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]{1,256}", "use the ARN of an SNS topic"
)
role_arn = matching(r"arn:[a-z-]+:iam::[0-9]{12}:role/[\w+=,.@/-]{1,512}", "use ARNs of IAM roles")
tag = matching(
    r"[\w .:/+@-]{1,128}=([\w .:/+@-]{0,256}|\{cluster\})",
    "use key=value, and give that tag to the nodes: no other machine may be rebooted",
)
any_text = optional(matching(r"[^\s].{0,2000}", "use a text"))


def policy_from(env: Mapping[str, str], base: Policy | None = None, reader: Reader | None = None) -> Policy:
    """The policy, with the environment's numbers in place of the defaults."""
    mine = reader or Reader(env)
    policy = base or Policy()
    values = {row.attribute: mine.value(row, getattr(policy, row.attribute)) for row in rows(Policy)}
    if reader is None:
        mine.finish()
    return replace(policy, **values)


#: For how long SSM tries to deliver a reboot: one that reaches its host later than that is not carried out.
REBOOT_DELIVERY = timedelta(minutes=10)


def reboot_too_short(policy: Policy) -> str:
    """What is wrong with the policy on AWS, where an order may be under way for a while."""
    if policy.reboot_timeout >= REBOOT_DELIVERY:
        return ""
    least = f"{REBOOT_DELIVERY.total_seconds():g}"
    return f"REBOOT_TIMEOUT_S must be {least} or more: an order that was given up could still be delivered until then"


def timeline_group(stack: str) -> str:
    """The log group where the older lines of timelines are kept."""
    return f"/gpu-recovery/{stack}/timeline"


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """What a deployment chooses and its functions are told, under one name."""

    TASK_TABLE_NAME: str = setting("ecs_task", table_name, "the table of tasks")
    JOB_TABLE_NAME: str = setting(
        "ecs_job", table_name, "the table of jobs", older=("TRAINING_JOB_TABLE_NAME",)
    )
    NODE_TABLE_NAME: str = setting(
        "ecs_node", table_name, "the table of nodes", older=("CONTAINER_INSTANCE_TABLE_NAME",)
    )
    ECS_CLUSTER_NAME: str = setting(
        "gpu-cluster",
        cluster_name,
        "the cluster that is watched; events of others are dropped",
        needed=True,
    )
    DCGM_HEALTH_CHECK_TASK: str = setting(
        "gpu-dcgm-health-check",
        task_definition,
        "task definition of the check: a bare name is made by the stack, a revision or an ARN is yours",
        needed=True,
    )
    TASK_ROLE_ARNS: str = setting(
        "",
        optional(each(role_arn)),
        "roles of your own tasks that may be started again, and of your own check",
    )
    STACK_NAME: str = setting(
        "EcsGpuRecoveryStack",
        matching(r"[A-Za-z][A-Za-z0-9-]{0,39}", "use up to 40 letters, digits and dashes"),
        "begins the names of functions, alarms and logs",
    )
    NODE_TAG: str = setting(
        "GpuRecovery={cluster}",
        tag,
        "only nodes with this tag are recorded by themselves, and may be rebooted; {cluster}: the cluster's name",
    )
    REBOOT_BESIDE: str = setting(
        "",
        optional(each(family)),
        "families whose tasks keep no node from its reboot (daemons)",
    )
    IDLE_CHECK_MINUTES: int = setting(
        0, whole(0, 100_000), "how often free nodes are examined; 0: never", unit="min"
    )
    IDLE_CHECK_LEVEL: str = setting("quick", one_of("quick", 1, 2, 3, 4), "how deep")

    @property
    def node_tag(self) -> tuple[str, str]:
        key, _, value = self.NODE_TAG.partition("=")
        return key, value.replace("{cluster}", self.ECS_CLUSTER_NAME)


@dataclass(frozen=True, kw_only=True)
class LambdaSettings(SharedSettings):
    """What a function is told by its environment."""

    SNS_TOPIC_ARN: str = setting("", topic_arn, "where messages to people go", needed=True)
    DEAD_LETTER_QUEUE_URL: str = setting(
        "", any_text, "events that no function could handle (`gpu-recovery letters`)"
    )
    TIMELINE_LOG_GROUP: str = setting(
        "",
        optional(matching(r"[\w./#-]{1,512}", "use the name of a log group")),
        "older lines of timelines; else the function's own log",
    )
    EVIDENCE_BUCKET: str = setting("", any_text, "evidence from before a reboot; else none is kept")
    CALL_TABLE_NAME: str = setting(
        "",
        optional(table_name),
        "by which functions share the pace of their calls; else each keeps its own",
    )
    GUARD_TABLE_NAME: str = setting(
        "",
        optional(table_name),
        "of the guard that permits reboots; else no permit is needed",
    )
    INCIDENT_BUS: str = setting(
        "",
        optional(matching(r"[\w./-]{1,256}", "use the name of an event bus")),
        "the event bus that gets each message too",
    )
    NODE_DAEMON_TASKS: str = setting("", each(family), "families of which each external node runs one")
    policy: Policy = Policy()

    @property
    def node_daemons(self) -> tuple[str, ...]:
        return tuple(filter(None, self.NODE_DAEMON_TASKS.split(",")))

    @property
    def beside_reboots(self) -> tuple[str, ...]:
        """Families that a reboot need not wait for."""
        return (*self.node_daemons, *filter(None, self.REBOOT_BESIDE.split(",")))

    @property
    def idle_check_every(self) -> timedelta | None:
        """None: free nodes are not examined by the clock."""
        return timedelta(minutes=self.IDLE_CHECK_MINUTES) if self.IDLE_CHECK_MINUTES else None


def lambda_settings(env: Mapping[str, str]) -> LambdaSettings:
    """Read them, under today's names or the older ones. Raises `ConfigError` with everything that is wrong.

    Tables have the schema's names unless told otherwise; the cluster, the check and the topic must be named.
    """
    reader = Reader(env)
    values = {row.name: reader.needed(row) for row in rows(LambdaSettings)}
    found = LambdaSettings(**values, policy=policy_from(env, reader=reader))
    if (problem := reboot_too_short(found.policy)) and reader.fine("REBOOT_TIMEOUT_S"):
        reader.problems.append(problem)
    reader.finish()
    return found
