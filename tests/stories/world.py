"""The AWS side end to end, in one process: the real handlers' intake, the real adapters, DynamoDB and SNS over HTTP,
and a simulated ECS and SSM whose time the test lets pass.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
from botocore.config import Config

from ecs_gpu_recovery.aws import wiring
from ecs_gpu_recovery.aws.discover import discover
from ecs_gpu_recovery.config import LambdaSettings
from ecs_gpu_recovery.core.model import Job, JobSpec
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.testing.aws.cloud import Cloud
from ecs_gpu_recovery.testing.aws.model import Knobs
from tests.aws.ministack import dynamodb, fresh_tables

CLUSTER = "gpus"
CHECK = "gpu-dcgm-health-check"
TRAIN = "train"
POLICY = Policy(lease=timedelta(seconds=90))


def container(name: str, gpus: int) -> dict[str, Any]:
    return {"name": name, "image": f"{name}:1", "cpu": 1024, "memory": 4096, "resourceRequirements": [{"type": "GPU", "value": str(gpus)}]}


class Wired:
    """A session whose ECS and SSM are simulated and whose DynamoDB and SNS are a local AWS."""

    def __init__(self, cloud: Cloud, url: str, on_call: Callable[[str, str], None]) -> None:
        self._cloud, self._url, self._on_call = cloud, url, on_call

    def client(self, name: str, config: Config | None = None) -> Any:
        if name in ("ecs", "ssm"):
            return Counting(self._cloud.client(name), name, self._on_call)
        made = boto3.client(name, endpoint_url=self._url, region_name="us-east-1", aws_access_key_id="testing",  # type: ignore[call-overload]
                            aws_secret_access_key="testing", config=config)  # fmt: skip
        made.meta.events.register("before-call", lambda model, **_: self._on_call(name, model.name))
        return made


class Counting:
    """Tells of every call before it is made."""

    def __init__(self, client: Any, service: str, on_call: Callable[[str, str], None]) -> None:
        self._client, self._service, self._on_call = client, service, on_call

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**request: Any) -> Any:
            self._on_call(self._service, name)
            return method(**request)

        return call


class Died(BaseException):
    """The function's process is gone; nothing may catch it."""


@dataclass
class World:
    """One account with one cluster, and the events on their way to the handlers."""

    cloud: Cloud
    url: str
    settings: LambdaSettings
    queue: deque[dict[str, Any]] = field(default_factory=deque)
    calls: list[tuple[str, str]] = field(default_factory=list)
    die_at: int = -1
    deaths: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    queue_url: str = ""

    def __post_init__(self) -> None:
        self.session = Wired(self.cloud, self.url, self._called)
        self.side = wiring.build({}, now=self.now, session=self.session, settings=self.settings)
        self.cloud.subscribe(self.queue.append)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.cloud.agenda.now(), UTC)

    def _called(self, service: str, action: str) -> None:
        self.calls.append((service, action))
        if len(self.calls) == self.die_at:
            self.deaths += 1
            raise Died(f"{service} {action}")

    # -- what people and tools do ------------------------------------------------------------------------------

    def add_nodes(self, count: int, *, gpus: int = 8) -> list[str]:
        names = [f"n{i}" for i in range(count)]
        for i, name in enumerate(names):
            self.cloud.control.add_node(name=name, cluster=CLUSTER, gpus=gpus, external=bool(i % 2), attributes={"node_name": name})
        self.pump()
        discover(self.session.client("ecs"), self.session.client("ssm"), self.side.store, CLUSTER, self.now())
        return names

    def submit(self, names: list[str], *, check: bool = False, job_id: str = "j1") -> str:
        spec = JobSpec(name="train", task_def=f"{TRAIN}:1", container="main", master_port=29500)
        self.side.runtime.submit(job_id=job_id, cluster=CLUSTER, spec=spec, nodes=names, at=self.now(), check=check)
        self.settle(2)
        return job_id

    def job(self, job_id: str = "j1") -> Job:
        return self.side.store.job(job_id)

    def task_of(self, rank: int, job_id: str = "j1") -> str:
        return self.job(job_id).ranks[rank].task_id

    # -- time --------------------------------------------------------------------------------------------------

    def deliver(self, event: dict[str, Any]) -> None:
        """As Lambda does: an invocation that died is tried twice more."""
        for _ in range(3):
            try:
                self.side.intake.take(event)
                return
            except Died:
                self.side = wiring.build({}, now=self.now, session=self.session, settings=self.settings)

    def pump(self) -> None:
        while self.queue:
            self.deliver(self.queue.popleft())

    def settle(self, seconds: float, step: float = 0.1) -> None:
        """Let time pass, delivering events as they come."""
        for _ in range(int(seconds / step)):
            self.cloud.advance(step)
            self.pump()

    def tick(self) -> None:
        at = self.now().isoformat()
        self.deliver({"version": "0", "id": "t", "source": "aws.scheduler", "detail-type": "Scheduled Event", "time": at, "resources": [],
                      "account": "123456789012", "region": "us-east-1", "detail": "{}"})  # fmt: skip
        self.pump()

    def run(self, job_id: str = "j1", *, minutes: int = 240) -> Job:
        """Until the job has ended and nothing is left to send; the sweeper comes every minute."""
        for _ in range(minutes):
            self.settle(4, 0.5)
            job = self.job(job_id)
            if job.status.final and not job.outbox:
                return job
            self.cloud.advance(56)
            self.pump()
            self.tick()
        raise AssertionError(f"still {self.job(job_id).status} after {minutes} minutes: {self.job(job_id)}")

    # -- what can be seen --------------------------------------------------------------------------------------

    def live_tasks(self, kind: str = "train") -> list[dict[str, Any]]:
        return [t for t in self.cloud.control.tasks() if t["env"].get("GPU_RECOVERY_KIND") == kind and t["status"] != "STOPPED"]

    def node_statuses(self) -> dict[str, str]:
        return {node.name: node.status.value for node in self.side.store.nodes()}

    def published(self) -> list[str]:
        sqs = boto3.client("sqs", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="testing", aws_secret_access_key="testing")
        while True:
            got = sqs.receive_message(QueueUrl=self.queue_url, MaxNumberOfMessages=10).get("Messages", [])
            if not got:
                return [m["Message"] for m in self.messages]
            for message in got:
                self.messages.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"])


@contextmanager
def a_world(url: str, *, seed: int = 0, policy: Policy = POLICY, knobs: Knobs | None = None) -> Iterator[World]:
    cloud = Cloud(seed=seed, knobs=knobs or Knobs(check_s=1.0, reboot_s=60.0, stop_s=1.0))
    ecs = cloud.client("ecs")
    ecs.create_cluster(clusterName=CLUSTER) if "create_cluster" in ecs._names else None
    for family, name in ((TRAIN, "main"), (CHECK, "check")):
        ecs.register_task_definition(family=family, containerDefinitions=[container(name, 8)])
    keys: dict[str, Any] = {"endpoint_url": url, "region_name": "us-east-1", "aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    sns, sqs = boto3.client("sns", **keys), boto3.client("sqs", **keys)
    client = dynamodb(url)
    with fresh_tables(client) as names:
        mark = names["job_table"].rpartition("_")[2]
        topic = sns.create_topic(Name=f"told-{mark}")["TopicArn"]
        queue = sqs.create_queue(QueueName=f"told-{mark}")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        settings = LambdaSettings(cluster=CLUSTER, check_task=CHECK, topic_arn=topic, policy=policy, **names)
        world = World(cloud, url, settings, queue_url=queue)
        yield world


def with_retries(count: int) -> Policy:
    return replace(POLICY, max_retries=count)
