"""Where a story's tables and messages are: in memory, or in a local AWS over HTTP. And the wire in between.

Every call of the code under test passes the wire, where it is counted, and where it can be made to fail.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from ecs_gpu_recovery.aws.items import plain
from ecs_gpu_recovery.aws.rate_limit import Writes
from ecs_gpu_recovery.aws.wiring import AwsSide
from testbed.aws.cloud import Cloud
from tests.aws.ministack import dynamodb, fresh_tables
from tests.stories.memory import Tables, Topic, error

Row = dict[str, Any]
KEYS: dict[str, Any] = {
    "region_name": "us-east-1",
    "aws_access_key_id": "testing",
    "aws_secret_access_key": "testing",
}


class Died(BaseException):
    """The function's process is gone; nothing may catch it."""


class Account(Protocol):
    """Tables and a topic."""

    tables: dict[str, str]  #: role and name, as the settings take them
    topic: str

    def client(self, name: str) -> Any: ...

    def rows(self, role: str) -> dict[str, Row]:
        """All items of a table by key, with DynamoDB's types taken off."""

    def write(self, role: str, row: Row) -> None:
        """What another tool puts there; values are in DynamoDB's types."""

    def messages(self) -> list[str]:
        """Everything that people were told, oldest first."""


class InMemory:
    """Takes milliseconds."""

    def __init__(self) -> None:
        self.tables = {"job_table": "ecs_job", "task_table": "ecs_task", "node_table": "ecs_node"}
        self.topic = "arn:aws:sns:us-east-1:123456789012:told"
        self._tables, self._topic = Tables(), Topic()

    def client(self, name: str) -> Any:
        return {"dynamodb": self._tables, "sns": self._topic}[name]

    def rows(self, role: str) -> dict[str, Row]:
        return {key: dict(plain(row)) for key, row in self._tables.rows(self.tables[role]).items()}

    def write(self, role: str, row: Row) -> None:
        self._tables.write(self.tables[role], row)

    def messages(self) -> list[str]:
        return [f"{m['Subject']}\n{m['Message']}" for m in self._topic.messages]


class OverHttp:
    """A local AWS: its own tables, and a queue that hears the topic."""

    def __init__(self, url: str, tables: dict[str, str]) -> None:
        self._url, self.tables = url, tables
        self._sns, self._sqs, self._db = self.client("sns"), self.client("sqs"), dynamodb(url)
        name = f"told-{uuid.uuid4().hex[:8]}"
        self.topic = self._sns.create_topic(Name=name)["TopicArn"]
        self._queue = self._sqs.create_queue(QueueName=name)["QueueUrl"]
        arn = self._sqs.get_queue_attributes(QueueUrl=self._queue, AttributeNames=["QueueArn"])["Attributes"][
            "QueueArn"
        ]
        self._sns.subscribe(TopicArn=self.topic, Protocol="sqs", Endpoint=arn)
        self._heard: list[str] = []

    def client(self, name: str) -> Any:
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 4}, connect_timeout=20, read_timeout=60
        )
        return boto3.client(name, endpoint_url=self._url, config=config, **KEYS)  # type: ignore[call-overload]

    def rows(self, role: str) -> dict[str, Row]:
        key = {"job_table": "job_id", "task_table": "ecs_task_id", "node_table": "node_name"}[role]
        found = self._db.scan(TableName=self.tables[role], ConsistentRead=True)["Items"]
        return {str(row[key]["S"]): dict(plain(row)) for row in found}

    def write(self, role: str, row: Row) -> None:
        self._db.put_item(TableName=self.tables[role], Item=row)

    def messages(self) -> list[str]:
        while got := self._sqs.receive_message(QueueUrl=self._queue, MaxNumberOfMessages=10).get(
            "Messages", []
        ):
            for message in got:
                said = json.loads(message["Body"])
                self._heard.append(f"{said['Subject']}\n{said['Message']}")
                self._sqs.delete_message(QueueUrl=self._queue, ReceiptHandle=message["ReceiptHandle"])
        return list(self._heard)


@contextmanager
def over_http(url: str) -> Iterator[OverHttp]:
    client = dynamodb(url)
    with fresh_tables(client) as names:
        yield OverHttp(url, names)
    client.close()


@dataclass
class Wire:
    """Counts the calls, from 1, and does to one of them what the story says."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    die_before: int = 0
    die_after: int = 0
    die_by_chance: Callable[[], bool] = lambda: False
    deaths: int = 0
    fail: dict[int, str] = field(default_factory=dict)  #: number of the call: error code it is answered with
    fail_all: dict[tuple[str, str], str] = field(default_factory=dict)  #: of an action, until taken out again
    meanwhile: dict[int, Callable[[], None]] = field(default_factory=dict)  #: what others do before this call
    before: list[Callable[[str, str, Row], None]] = field(default_factory=list)  #: heard before each call
    after: list[Callable[[str, str, Row], None]] = field(default_factory=list)  #: heard after each call

    def make(self, service: str, action: str, method: Callable[..., Any], request: Row) -> Any:
        self.calls.append((service, action))
        number = len(self.calls)
        if others := self.meanwhile.pop(number, None):
            others()
        if number == self.die_before:
            self._die(service, action)
        code = self.fail.get(number) or self.fail_all.get((service, action))
        if code:
            raise error(code, f"{action} was told to fail")
        for listener in self.before:
            listener(service, action, request)
        try:
            answer = method(**request)
        except ClientError:
            if number == self.die_after:  # a call that was refused can be the last one too
                self._die(service, action)
            raise
        for listener in self.after:
            listener(service, action, request)
        if number == self.die_after or self.die_by_chance():
            self._die(service, action)
        return answer

    def _die(self, service: str, action: str) -> None:
        self.deaths += 1
        raise Died(f"{service} {action}")

    def forget(self) -> None:
        """Count from 1 again."""
        self.calls.clear()


class Session:
    """What `boto3.Session` is to the wiring: ECS, SSM and the logs are simulated, the rest is the account's."""

    def __init__(self, cloud: Cloud, account: Account, wire: Wire) -> None:
        self._cloud, self._account, self._wire = cloud, account, wire

    def client(self, name: str, config: Config | None = None) -> Any:
        if name == "s3":  # it signs addresses, and calls nothing
            return boto3.client("s3", config=config, **KEYS)
        made = (
            self._cloud.client(name)
            if name in ("ecs", "ssm", "logs", "ec2", "autoscaling")
            else self._account.client(name)
        )
        return _Wired(made, name, self._wire)


class _Wired:
    def __init__(self, client: Any, service: str, wire: Wire) -> None:
        self._client, self._service, self._wire = client, service, wire

    def __getattr__(self, action: str) -> Any:
        method = getattr(self._client, action)
        return lambda **request: self._wire.make(self._service, action, method, request)


def in_time_of(cloud: Cloud, side: AwsSide, sleep: Callable[[float], None]) -> None:
    """A process waits in the cloud's time. Its pace is one thing, whoever holds it, so it is changed where it is."""
    clock, pace = cloud.agenda.now, side.fleet._pace
    pace._sleep, pace._clock, pace._counted = sleep, clock, clock()
    side.store.writes = Writes(sleep=sleep, clock=clock)
