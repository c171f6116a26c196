"""Puts the AWS side together. Clients are made here and nowhere else, once per process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..config import LambdaSettings, lambda_settings
from ..core.model import Job
from ..runtime import Runtime
from .adopt import StoreAdopter
from .event_fields import family
from .fleet import EcsFleet
from .intake import Intake
from .notify import SnsNotifier
from .store import DynamoStore
from .upkeep import Upkeep


@dataclass(frozen=True, slots=True)
class AwsSide:
    """Everything the AWS side consists of."""

    settings: LambdaSettings
    store: DynamoStore
    fleet: EcsFleet
    runtime: Runtime
    intake: Intake


class LazyClient:
    """A boto3 client that is made when it is first used: a handler pays only for those it needs."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._client: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._client is None:
            self._client = self._make()
        return getattr(self._client, name)


def build(
    env: Mapping[str, str],
    *,
    now: Callable[[], datetime],
    on_commit: Callable[[Job | None, Job], None] | None = None,
    session: Any = None,
    settings: LambdaSettings | None = None,
) -> AwsSide:
    from botocore.config import Config as ClientConfig

    chosen = settings or lambda_settings(env)
    if session is None:
        import boto3

        session = boto3.session.Session()
    limits = ClientConfig(retries={"mode": "standard", "max_attempts": 4}, connect_timeout=5, read_timeout=20)

    def client(name: str) -> Any:
        return LazyClient(lambda: session.client(name, config=limits))

    store = DynamoStore(
        client("dynamodb"),
        cluster=chosen.cluster,
        job_table=chosen.job_table,
        task_table=chosen.task_table,
        node_table=chosen.node_table,
        lost_after=chosen.policy.node_lost_after,
    )
    ecs = client("ecs")
    fleet = EcsFleet(
        ecs=ecs, ssm=client("ssm"), cluster=chosen.cluster, check_task=chosen.check_task, now=now
    )
    notifier = SnsNotifier(client("sns"), chosen.topic_arn)

    def committed(old: Job | None, job: Job) -> None:
        intake.committed(job)
        if on_commit is not None:
            on_commit(old, job)

    runtime = Runtime(
        store=store,
        fleet=fleet,
        notifier=notifier,
        policy=chosen.policy,
        on_commit=committed,
        guess=True,
        rows=store,
    )
    adopter = StoreAdopter(store, ecs, chosen)
    intake = Intake(
        runtime,
        fleet,
        adopter,
        cluster=chosen.cluster,
        check_family=family(chosen.check_task),
        upkeep=Upkeep(ecs, chosen),
    )
    return AwsSide(chosen, store, fleet, runtime, intake)
