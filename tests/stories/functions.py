"""The four functions as AWS calls them: environment, clients over HTTP, events by kind; time is real."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from ecs_gpu_recovery.aws import reboot_document
from ecs_gpu_recovery.aws.discover import discover
from ecs_gpu_recovery.aws.tables import GUARD, JOBS, NODES, TASKS
from ecs_gpu_recovery.aws.wiring import AwsSide, build
from ecs_gpu_recovery.core.model import Job, JobSpec
from testbed.aws.server import Server
from tests.stories.arrivals import Event, a_tick, passes_rules
from tests.stories.world import CHECK, TRAIN, container

HANDLERS = ("ecs_task_handler", "dcgm_task_monitor", "ecs_instance_monitor", "recovery_sweeper")


def handler(name: str) -> Any:
    module = __import__(f"ecs_gpu_recovery.lambdas.{name}", fromlist=["lambda_handler"])
    return module.lambda_handler


def handler_of(event: Event) -> str:
    """Which function the deployment's rules choose."""
    if event["detail-type"] == "ECS Task State Change":
        family = event["detail"]["taskDefinitionArn"].rpartition("/")[2].partition(":")[0]
        return "dcgm_task_monitor" if family == CHECK else "ecs_task_handler"
    return "ecs_instance_monitor" if event["source"] in ("aws.ecs", "aws.ssm") else "recovery_sweeper"


@dataclass
class Deployment:
    """One stack on a local AWS: tables, a topic and a cluster of its own."""

    server: Server
    cluster: str
    environment: dict[str, str]
    side: AwsSide
    document: str
    answers: list[dict[str, Any]] = field(default_factory=list)
    _heard: int = 0

    def submit(self, names: list[str]) -> None:
        for index, name in enumerate(names):
            self.server.control(
                "add_node",
                name=name,
                cluster=self.cluster,
                external=bool(index % 2),
                attributes={"node_name": name},
            )
        discover(
            self.server.client("ecs"),
            self.server.client("ssm"),
            self.side.store,
            self.cluster,
            datetime.now(UTC),
        )
        spec = JobSpec(name="train", task_def=f"{TRAIN}:1", container="main")
        self.side.runtime.submit(
            job_id="j1", cluster=self.cluster, spec=spec, nodes=names, at=datetime.now(UTC), check=False
        )

    def job(self) -> Job:
        return self.side.store.job("j1")

    def deliver(self) -> None:
        """Everything that has happened in our cluster since the last look."""
        events = self.server.control("events")
        new, self._heard = events[self._heard :], len(events)
        for event in new:
            elsewhere = self.cluster not in str(event["detail"].get("clusterArn", self.cluster))
            if passes_rules(event) and not elsewhere:
                self.answers.append(handler(handler_of(event))(event, None))

    def tick(self) -> dict[str, Any]:
        answer: dict[str, Any] = handler("recovery_sweeper")(a_tick(), None)
        return answer

    def rows(self, table: str) -> dict[str, dict[str, str]]:
        found = self.server.client("dynamodb").scan(TableName=self.environment[table], ConsistentRead=True)[
            "Items"
        ]
        key = {"JOB_TABLE_NAME": "job_id", "TASK_TABLE_NAME": "ecs_task_id", "NODE_TABLE_NAME": "node_name"}[
            table
        ]
        return {row[key]["S"]: {name: value.get("S", "") for name, value in row.items()} for row in found}


@contextmanager
def deployed(server: Server, patch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """The environment is that of the functions; what they keep per process is forgotten before and after."""
    mark = uuid.uuid4().hex[:8]
    db, ecs = server.client("dynamodb"), server.client("ecs")
    cluster = f"gpus-{mark}"
    names = {"JOB_TABLE_NAME": JOBS, "TASK_TABLE_NAME": TASKS, "NODE_TABLE_NAME": NODES}
    for table in names.values():
        db.create_table(**table.definition(f"{table.name}_{mark}"))
    ecs.create_cluster(clusterName=cluster)
    for family, name in ((TRAIN, "main"), (CHECK, "check")):
        ecs.register_task_definition(family=family, containerDefinitions=[container(name, 8)])
    stack = f"stack-{mark}"
    guard = f"{stack}-{GUARD.name}"
    db.create_table(**GUARD.definition(guard))
    document = reboot_document.name(stack)
    server.client("ssm").create_document(
        Name=document, Content=json.dumps(reboot_document.content()), DocumentType="Command"
    )
    environment = {role: f"{table.name}_{mark}" for role, table in names.items()} | {
        "STACK_NAME": stack,
        "GUARD_TABLE_NAME": guard,
        "ADMISSION_CHECK": "false",
        "ECS_CLUSTER_NAME": cluster,
        "DCGM_HEALTH_CHECK_TASK": CHECK,
        "SNS_TOPIC_ARN": server.client("sns").create_topic(Name=f"told-{mark}")["TopicArn"],
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "123456789012",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    for name, value in environment.items():
        patch.setenv(name, value)
    with fresh_process():
        side = build(environment, now=lambda: datetime.now(UTC))
        yield Deployment(server, cluster, environment, side, document)


@contextmanager
def fresh_process() -> Iterator[None]:
    """As after a cold start; and the log is left as it was found."""
    from ecs_gpu_recovery.lambdas import entry

    log = logging.getLogger("ecs_gpu_recovery")
    before = log.handlers[:], log.level, log.propagate
    entry.intake.cache_clear()
    try:
        yield
    finally:
        entry.intake.cache_clear()
        log.handlers[:], log.propagate = before[0], before[2]
        log.setLevel(before[1])
