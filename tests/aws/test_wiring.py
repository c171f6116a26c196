"""How the clients of the AWS side behave towards a service that does not answer as it should."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest

from ecs_gpu_recovery.aws import wiring
from ecs_gpu_recovery.aws.fleet import EcsFleet
from ecs_gpu_recovery.config import Config
from ecs_gpu_recovery.core.effects import CheckNode
from ecs_gpu_recovery.core.errors import Transient
from ecs_gpu_recovery.core.node_record import Node
from tests.answering import Answer, answering

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ARN = "arn:aws:ecs:us-east-1:123456789012:"
NODE = Node(
    name="n1",
    cluster="c",
    instance=f"{ARN}container-instance/c/1",
    host="i-1",
    created_at=NOW,
    updated_at=NOW,
)
DEFINITION = {"taskDefinition": {"containerDefinitions": [{"name": "gpu-health"}]}}
STARTED = {"tasks": [{"taskArn": f"{ARN}task/c/t1"}], "failures": []}


class Service:
    """ECS over HTTP. `starts` are its answers to StartTask, one after the other; None: it hangs up instead."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, dict[str, Any]] | None] = []
        self.started, self.url = 0, ""

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        said: tuple[int, dict[str, Any]] | None = (200, DEFINITION)
        if headers["X-Amz-Target"].endswith("StartTask"):
            self.started += 1
            said = self.starts.pop(0) if self.starts else (200, STARTED)
        return said and (said[0], json.dumps(said[1]).encode())

    def fleet(self, monkeypatch: pytest.MonkeyPatch) -> EcsFleet:
        monkeypatch.setenv("AWS_ENDPOINT_URL", self.url)
        session = boto3.session.Session(
            aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
        )
        env = {
            "ECS_CLUSTER_NAME": "c",
            "DCGM_HEALTH_CHECK_TASK": "check:1",
            "SNS_TOPIC_ARN": "arn:aws:sns:us-east-1:123456789012:t",
        }
        return wiring.build(env, now=lambda: NOW, session=session).fleet


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    with answering(made.answer) as made.url:
        yield made


def start(fleet: EcsFleet) -> object:
    order = CheckNode(key="k", node="n1", level="quick", token="gr-0123456789abcdef")
    return list(fleet.check_node(None, NODE, order, again=False))


@pytest.mark.parametrize(
    "answer", [None, (500, {"__type": "ServerException"}), (503, {})], ids=["hangs up", "500", "503"]
)
def test_a_start_that_may_have_been_made_is_not_sent_again_before_somebody_looks(
    service: Service, answer: tuple[int, dict[str, Any]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """StartTask takes no token: the client's own second try would be a second task."""
    service.starts = [answer]
    with pytest.raises(Transient):
        start(service.fleet(monkeypatch))
    assert service.started == 1


def test_a_start_that_was_throttled_is_sent_again_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.starts = [(400, {"__type": "ThrottlingException", "message": "Rate exceeded"})]
    assert start(service.fleet(monkeypatch))
    assert service.started == 2


def test_a_start_that_reached_nobody_is_sent_again() -> None:
    """What never got a connection was not made."""
    from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

    for never in (ConnectTimeoutError, EndpointConnectionError):
        assert wiring.start_once(caught_exception=never(endpoint_url="u", error="e")) is None
    assert wiring.start_once(caught_exception=ReadTimeoutError(endpoint_url="u", error="e")) is False


def test_a_call_that_nobody_answers_ends_before_the_function_does() -> None:
    pauses = sum(min(2**tried, 20) for tried in range(wiring.TRIES - 1))
    longest = wiring.TRIES * (wiring.CONNECT_S + wiring.READ_S) + pauses
    assert longest <= 0.75 * Config.LAMBDA_TIMEOUT_SECONDS
