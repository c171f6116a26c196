"""A person with AWS credentials at a terminal, in front of a simulated account with the functions deployed.

Commands run in this process; every call they make passes the world's wire, where it is counted and can be made to fail.
While a command waits, the world goes on: tasks run, events arrive, the sweeper comes every minute.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from botocore.exceptions import ClientError

from ecs_gpu_recovery.aws.tables import GUARD, TABLES
from ecs_gpu_recovery.control.aws_backend import AwsBackend
from ecs_gpu_recovery.health.watch.node_metrics import DIMENSIONS
from tests.aws.letter_queue import URL, Called, Queue
from tests.cli.conftest import Result, run_command
from tests.stories.account import _Wired
from tests.stories.memory import GUARDED, error
from tests.stories.world import CHECK, CLUSTER, World, a_world

STACK = "EcsGpuRecoveryStack"
LOG_GROUP = "/gpu/train"
#: Who the person is to AWS.
ARN = "arn:aws:sts::123456789012:assumed-role/Researchers/ann"


class Logs:
    """CloudWatch Logs as far as commands read it, two events a page."""

    def __init__(self) -> None:
        self.streams: dict[tuple[str, str], list[str]] = {}
        self.groups = [LOG_GROUP]

    def write(self, task_id: str, *lines: str, container: str = "train") -> None:
        self.streams.setdefault((LOG_GROUP, f"train/{container}/{task_id}"), []).extend(lines)

    def describe_log_groups(self, *, logGroupNamePrefix: str) -> dict[str, Any]:
        return {"logGroups": [{"logGroupName": g} for g in self.groups if g.startswith(logGroupNamePrefix)]}

    def get_log_events(
        self, *, logGroupName: str, logStreamName: str, nextToken: str = "", startFromHead: bool = False
    ) -> dict[str, Any]:
        if logGroupName not in self.groups:
            raise error("ResourceNotFoundException", "The specified log group does not exist.")
        if (logGroupName, logStreamName) not in self.streams:
            raise error("ResourceNotFoundException", "The specified log stream does not exist.")
        assert nextToken or startFromHead, "without it, the newest page comes first"
        start = int(nextToken.removeprefix("f/") or 0)
        page = self.streams[logGroupName, logStreamName][start : start + 2]
        return {
            "events": [{"message": line} for line in page],
            "nextForwardToken": f"f/{start + len(page)}",
            "nextBackwardToken": f"b/{start}",
        }


class Archives:
    """The bucket of evidence: two archives of one node, one a page."""

    def list_objects_v2(self, *, Bucket: str, Prefix: str, ContinuationToken: str = "a") -> dict[str, Any]:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        key = f"evidence/n3/{ContinuationToken}.tar.gz"
        there = [{"Key": key, "LastModified": at, "Size": 4}] if key.startswith(Prefix) else []
        return {"Contents": there, **({"NextContinuationToken": "b"} if ContinuationToken == "a" else {})}

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        return {"Body": io.BytesIO(b"kept")}

    def generate_presigned_url(self, *, ClientMethod: str, Params: dict[str, str], ExpiresIn: int) -> str:
        return ""


class Registry:
    """ECR: which tags there are, in whichever repository."""

    def __init__(self, tags: list[str]) -> None:
        self._tags = tags

    def describe_images(self, *, registryId: str, repositoryName: str, imageIds: list[Any]) -> dict[str, Any]:
        if imageIds[0]["imageTag"] not in self._tags:
            raise named(error("ImageNotFoundException", "The image does not exist."), "DescribeImages")
        return {"imageDetails": [{"repositoryName": repositoryName}]}


class Metrics:
    """CloudWatch: what each node's watch told of it, once, as its lines say."""

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []

    def add(self, line: Mapping[str, Any]) -> None:
        self._lines.append(dict(line))

    def list_metrics(self, *, Namespace: str, MetricName: str, Dimensions: list[Any]) -> dict[str, Any]:
        (of,) = Dimensions
        lines = [line for line in self._lines if line[of["Name"]] == of["Value"] and MetricName in line]
        places = {tuple(line[key] for key in DIMENSIONS) for line in lines}
        named = [[{"Name": k, "Value": v} for k, v in zip(DIMENSIONS, one, strict=True)] for one in places]
        return {"Metrics": [{"Namespace": Namespace, "Dimensions": one} for one in named]}

    def get_metric_data(
        self, *, MetricDataQueries: list[Any], StartTime: datetime, EndTime: datetime
    ) -> dict[str, Any]:
        return {"MetricDataResults": [self._found(one, StartTime, EndTime) for one in MetricDataQueries]}

    def _found(self, query: Any, since: datetime, until: datetime) -> dict[str, Any]:
        metric = query["MetricStat"]["Metric"]
        named = {one["Name"]: one["Value"] for one in metric["Dimensions"]}
        lines = [line for line in self._lines if all(line[key] == value for key, value in named.items())]
        told = [(datetime.fromtimestamp(line["_aws"]["Timestamp"] / 1000, UTC), line) for line in lines]
        name = metric["MetricName"]
        within = [(at, line[name]) for at, line in told if since <= at < until and name in line]
        period, by_period = query["MetricStat"]["Period"], dict[datetime, list[float]]()
        for at, value in within:
            begin = datetime.fromtimestamp(at.timestamp() // period * period, UTC)
            by_period.setdefault(begin, []).append(value)
        values = [sum(some) / len(some) for some in by_period.values()]
        return {"Id": query["Id"], "Timestamps": [*by_period], "Values": values}


class Bus:
    """EventBridge: what was put on it."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.heard += Entries
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "1"} for _ in Entries]}


class Sts:
    def get_caller_identity(self) -> dict[str, str]:
        return {"Arn": ARN, "Account": "123456789012", "UserId": "AROA:ann"}


@dataclass
class Functions(Called):
    """The deployed functions, as far as they tell what they were deployed with, and take events from people."""

    environment: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(
        default_factory=lambda: [
            f"{STACK}-{name}"
            for name in ("EcsTaskHandler", "DcgmTaskMonitor", "EcsInstanceMonitor", "RecoverySweeper")
        ]
    )
    exceptions = SimpleNamespace(ResourceNotFoundException=type(error("any")))

    def get_function_configuration(self, *, FunctionName: str) -> dict[str, Any]:
        if FunctionName not in self.names:
            raise error("ResourceNotFoundException", f"Function not found: {FunctionName}")
        return {"FunctionName": FunctionName, "Environment": {"Variables": dict(self.environment)}}


def named(exc: ClientError, operation: str) -> ClientError:
    """The error with the name of the call that it answers, as boto3 gives it."""
    exc.operation_name = operation
    return exc


class Described:
    """Tables and a topic that can be looked at from outside, too."""

    def __init__(self, client: Any, subscribers: list[int]) -> None:
        self._client, self._subscribers = client, subscribers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def describe_table(self, *, TableName: str) -> dict[str, Any]:
        table = {GUARDED: GUARD, **{t.name: t for t in TABLES}}.get(TableName)
        if table is None:
            raise named(error("ResourceNotFoundException", "Requested resource not found"), "DescribeTable")
        return {"Table": {**table.definition(), "TableStatus": "ACTIVE", "ItemCount": 3}}

    def get_topic_attributes(self, *, TopicArn: str) -> dict[str, Any]:
        count = {"SubscriptionsConfirmed": str(self._subscribers[0]), "SubscriptionsPending": "0"}
        return {"Attributes": {"TopicArn": TopicArn, **count}}


class Person:
    """Runs commands with `--backend aws`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.region_name: str | None = "us-east-1"
        self.logs, self.subscribers = Logs(), [1]
        self.queue, self.bus, self.metrics = Queue(), Bus(), Metrics()
        self.images: list[str] = []
        self.functions = Functions(
            environment={
                "ECS_CLUSTER_NAME": CLUSTER,
                "DCGM_HEALTH_CHECK_TASK": CHECK,
                "SNS_TOPIC_ARN": world.account.topic,
                "MAX_RETRIES": "1",
                "ADMISSION_CHECK": "false",
                "DEAD_LETTER_QUEUE_URL": URL,
                "EVIDENCE_BUCKET": "stack-evidence-1",
                "INCIDENT_BUS": "default",
                "GUARD_TABLE_NAME": GUARDED,
            }
        )
        self.waited = 0
        self.mine: list[
            str
        ] = []  #: the calls of the commands, as `service:Action`; not those of the functions
        self._away = 0
        world.wire.before.append(self._note)

    def _note(self, service: str, action: str, request: dict[str, Any]) -> None:
        if not self._away:
            self.mine.append(f"{service}:{''.join(word.capitalize() for word in action.split('_'))}")

    def theirs(self, act: Callable[[], object]) -> None:
        """What others do meanwhile is not counted as the person's."""
        self._away += 1
        try:
            act()
        finally:
            self._away -= 1

    def __call__(self, *args: object, stdin: str = "") -> Result:
        """A command that talks to AWS."""
        options, dashes, rest = _split(args)
        return run_command(*options, "--backend", "aws", *([dashes] if dashes else []), *rest, stdin=stdin)

    def submit(self, *args: object) -> Result:
        """A job that is made from an image, on the nodes and with the command that are given."""
        options, _, command = _split(args)
        base = ["submit", "--image", "train:1", "--log-group", LOG_GROUP, "--name", "run"]
        return run_command(*base, *options, "--backend", "aws", "--", *(command or ("python", "train.py")))

    def deploy_own_image(self) -> None:
        """The check runs an image of the account's own registry, as a deployment makes it."""
        image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/ecs-gpu-recovery:latest"
        container = {"name": "gpu-health", "image": image, "memory": 64}
        ecs = self.world.cloud.client("ecs")
        ecs.register_task_definition(family=CHECK, containerDefinitions=[container])

    def done(self, *args: object) -> Any:
        """What a command says as JSON, if it went well."""
        told = self(*args, "--json")
        assert told.code == 0, told
        return told.data

    # -- what boto3 is to the commands -------------------------------------------------------------------------

    def client(self, name: str, config: object = None) -> Any:
        stand_ins = {
            "logs": self.logs,
            "sts": Sts(),
            "lambda": self.functions,
            "sqs": self.queue,
            "s3": Archives(),
            "ecr": Registry(self.images),
            "events": self.bus,
            "cloudwatch": self.metrics,
        }
        mine: Any = stand_ins.get(name)
        if mine is None and name in ("autoscaling", "ecs", "ssm"):
            return self.world.session.client(name)
        made = mine or Described(self.world.account.client(name), self.subscribers)
        wired: Any = _Wired(made, name, self.world.wire)
        if name == "lambda":
            wired.exceptions = self.functions.exceptions
        return wired

    def sleep(self, seconds: float) -> None:
        """The world goes on while a command waits. A command that waits for ever is a failure."""
        self.waited += 1
        assert self.waited < 4000, "the command does not stop waiting"
        self.theirs(lambda: self._go_on(seconds))

    def _go_on(self, seconds: float) -> None:
        before = self.world.cloud.agenda.now()
        self.world.pass_time(seconds)
        if before // 60 != self.world.cloud.agenda.now() // 60:
            self.world.tick()

    def made(self) -> list[tuple[str, str]]:
        return self.world.wire.calls


def _split(args: tuple[object, ...]) -> tuple[tuple[object, ...], str, tuple[object, ...]]:
    if "--" not in args:
        return args, "", ()
    at = args.index("--")
    return args[:at], "--", args[at + 1 :]


@contextmanager
def a_person(nodes: int = 2) -> Iterator[Person]:
    """Nodes are in the cluster and known to nobody yet; no variable says where anything is."""
    with a_world() as world:
        for i in range(nodes):
            name = f"n{i}"
            world.cloud.control.add_node(
                name=name, cluster=CLUSTER, external=bool(i % 2), attributes={"node_name": name}
            )
        world.pump()
        person = Person(world)
        ours = ("ECS_", "JOB_", "TASK_", "NODE_", "DCGM_", "SNS_", "STACK_", "DEAD_", "GPU_RECOVERY_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        clock = SimpleNamespace(sleep=person.sleep)
        with (
            patch.dict(os.environ, env, clear=True),
            patch("boto3.session.Session", lambda **options: person),
            patch.object(AwsBackend, "now", lambda self: world.now()),
            patch("ecs_gpu_recovery.cli.jobs.time", clock),
            patch("ecs_gpu_recovery.cli.nodes.time", clock),
        ):
            yield person
