"""Puts the AWS side together. Clients are made here and nowhere else, once per process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from ..core.effects import Order
from ..core.events import Fact
from ..core.model import Job
from ..engine.dispatch import Spread, in_turn
from ..engine.runtime import Runtime
from ..settings import LambdaSettings, lambda_settings
from . import hang_document, last_look, reboot_document
from .adopt import StoreAdopter
from .event_fields import family
from .evidence import Evidence
from .fleet import EcsFleet
from .guard import DynamoGuard
from .hang_look import HangLook
from .incidents import IncidentBus
from .intake import Intake
from .last_look import LastLook
from .last_words import LastWords
from .machines import Machines
from .newcomers import Newcomers
from .notify import SnsNotifier, TimelineArchive
from .rate_limit import OwnTurns, Pace, SharedTurns
from .reboots import Reboots
from .replacements import Replacements
from .retired import Retired
from .store import DynamoStore
from .upkeep import Upkeep

#: A call that nobody answers must end well before the function does, whose other work would be lost with it.
TRIES, CONNECT_S, READ_S = 5, 3, 12


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
        self._making = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        with self._making:
            if self._client is None:
                self._client = self._make()
        return getattr(self._client, name)


def start_once(response: Any = None, caught_exception: Exception | None = None, **_: Any) -> bool | None:
    """Whether botocore may send a StartTask again: False where the one before may have been made.

    It takes no token, so a second one would be a second task. The order stays, and its next sender looks first.
    """
    from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError

    if caught_exception is not None:
        return None if isinstance(caught_exception, ConnectTimeoutError | EndpointConnectionError) else False
    return False if response is not None and response[0].status_code >= 500 else None


def in_threads(act: Callable[[Order], list[Fact]], orders: Sequence[Order]) -> list[list[Fact]]:
    """Orders of one kind beside each other: a call takes a tenth of a second, and a large gang has a thousand."""
    if len(orders) == 1:
        return [act(orders[0])]
    with ThreadPoolExecutor(len(orders)) as pool:
        return list(pool.map(act, orders))


def _made(session: Any, name: str) -> Any:
    from botocore.client import BaseClient
    from botocore.config import Config as ClientConfig

    limits = ClientConfig(
        retries={"mode": "standard", "total_max_attempts": TRIES},
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
    )
    if name == "s3":  # by default boto3 signs for one address of the whole world, in the old way
        limits = limits.merge(
            ClientConfig(signature_version="s3v4", s3={"us_east_1_regional_endpoint": "regional"})
        )
    client = session.client(name, config=limits)
    if isinstance(client, BaseClient):
        client.meta.events.register("needs-retry.ecs.StartTask", start_once)  # type: ignore[arg-type]
    return client


def build(
    env: Mapping[str, str],
    *,
    now: Callable[[], datetime],
    on_commit: Callable[[Job | None, Job], None] | None = None,
    session: Any = None,
    settings: LambdaSettings | None = None,
    clock: Callable[[], datetime] | None = None,
    spread: Spread = in_turn,
) -> AwsSide:
    """`now` is the time that facts are told under; waits count from the `clock`, where that is another one."""
    chosen = settings or lambda_settings(env)
    if session is None:
        import boto3

        session = boto3.session.Session()

    def client(name: str) -> Any:
        return LazyClient(partial(_made, session, name))

    db = client("dynamodb")
    store = DynamoStore(
        db,
        cluster=chosen.ECS_CLUSTER_NAME,
        job_table=chosen.JOB_TABLE_NAME,
        task_table=chosen.TASK_TABLE_NAME,
        node_table=chosen.NODE_TABLE_NAME,
        lost_after=chosen.policy.node_lost_after,
    )
    ecs = client("ecs")
    ssm, evidence = client("ssm"), Evidence(client("s3"), chosen.EVIDENCE_BUCKET)
    stack, cluster, machines = chosen.STACK_NAME, chosen.ECS_CLUSTER_NAME, Machines(client("ec2"))
    fleet = EcsFleet(
        ecs=ecs,
        reboots=Reboots(
            *(ssm, evidence),
            document=reboot_document.name(stack),
            cluster=cluster,
            beside=chosen.beside_reboots,
        ),
        replacements=Replacements(
            client("autoscaling"),
            LastLook(ssm, evidence, document=last_look.name(stack), cluster=cluster),
            machines,
        ),
        looks=HangLook(ssm, evidence, document=hang_document.name(stack), cluster=cluster),
        logs=client("logs"),
        machines=machines,
        cluster=chosen.ECS_CLUSTER_NAME,
        check_task=chosen.DCGM_HEALTH_CHECK_TASK,
        now=now,
        pace=Pace(SharedTurns(db, chosen.CALL_TABLE_NAME) if chosen.CALL_TABLE_NAME else OwnTurns()),
    )
    archive = TimelineArchive(client("logs"), chosen.TIMELINE_LOG_GROUP, now)
    words = LastWords(
        client("logs"), fleet.definitions, lambda job_id: store.last(job_id) or store.job(job_id)
    )
    bus = IncidentBus(
        client("events"), chosen.INCIDENT_BUS, cluster=chosen.ECS_CLUSTER_NAME, stack=chosen.STACK_NAME
    )
    notifier = SnsNotifier(client("sns"), chosen.SNS_TOPIC_ARN, archive, words.about, bus.put)

    runtime = Runtime(
        store=store,
        fleet=fleet,
        notifier=notifier,
        policy=replace(chosen.policy, labels=True, keeps_evidence=bool(chosen.EVIDENCE_BUCKET)),
        guard=DynamoGuard(db, chosen.GUARD_TABLE_NAME, chosen.ECS_CLUSTER_NAME)
        if chosen.GUARD_TABLE_NAME
        else None,
        on_commit=on_commit,
        clock=clock or now,
        spread=spread,
    )
    adopter = StoreAdopter(store, ecs, chosen)
    newcomers = Newcomers(ecs, ssm, chosen.ECS_CLUSTER_NAME, chosen.node_tag)
    intake = Intake(
        runtime,
        fleet,
        adopter,
        cluster=chosen.ECS_CLUSTER_NAME,
        check_family=family(chosen.DCGM_HEALTH_CHECK_TASK),
        store=store,
        newcomers=newcomers,
        upkeep=Upkeep(ecs, chosen, newcomers, Retired(machines, store)),
    )
    return AwsSide(chosen, store, fleet, runtime, intake)
