"""Each message to people is an event on the bus too, with whose job it is, in a form that chats and pagers take."""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import replace
from typing import Any

import boto3
import pytest

from ecs_gpu_recovery.aws.incidents import CHAT, SOURCE, TYPE, IncidentBus, for_chat, told
from ecs_gpu_recovery.core.effects import Notify
from ecs_gpu_recovery.core.model import JobSpec
from ecs_gpu_recovery.core.resolutions import run_again
from tests.stories.account import KEYS

MESSAGE = Notify(
    key="j/notify/failed",
    subject="Job j failed",
    happened="Job j failed: it ran out of memory.",
    evidence="n1: verdict healthy",
    done="All tasks were stopped.",
    next="Read the logs.",
    node="n1",
    owner="ann",
    team="vision",
)


def test_an_event_names_the_job_its_owner_and_one_thread_for_all_that_is_said_of_it() -> None:
    said = told(MESSAGE)
    assert (said["job"], said["owner"], said["team"], said["thread"]) == ("j", "ann", "vision", "job/j")
    assert told(replace(MESSAGE, key="j/notify/waits.1"))["thread"] == "job/j"


def test_what_is_over_is_told_under_the_same_key_and_in_the_same_thread() -> None:
    (over,) = run_again("j-2", JobSpec(retry_of="j", submitted_by="ann"))
    opened, resolved = told(MESSAGE), told(over)
    assert (opened["status"], resolved["status"]) == ("open", "resolved")
    assert [resolved[part] for part in ("key", "thread")] == [opened[part] for part in ("key", "thread")]
    assert resolved[CHAT]["content"]["title"] == "Resolved: Job j was run again as j-2"


def test_a_chat_gets_what_its_schema_asks_for() -> None:
    """https://docs.aws.amazon.com/chatbot/latest/adminguide/custom-notifs.html"""
    said = for_chat(MESSAGE, "job/j")
    assert (said["version"], said["source"], said["id"]) == ("1.0", "custom", MESSAGE.key)
    assert said["content"] == {
        "textType": "client-markdown",
        "title": "Job j failed",
        "description": "Job j failed: it ran out of memory.\n*Owner:* ann, team vision\n"
        "*Evidence:* n1: verdict healthy\n*Done:* All tasks were stopped.",
        "nextSteps": ["Read the logs."],
        "keywords": ["vision", "n1"],
    }
    assert said["metadata"] == {"threadId": "job/j", "summary": "Job j failed", "eventType": TYPE}


@pytest.mark.ministack
def test_a_rule_of_one_s_own_hears_of_an_incident(aws_url: str) -> None:
    name = f"pager-{uuid.uuid4().hex[:8]}"
    events, sqs = (boto3.client(service, endpoint_url=aws_url, **KEYS) for service in ("events", "sqs"))
    queue = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    pattern = {"source": [SOURCE], "detail-type": [TYPE], "detail": {"cluster": [name]}}
    events.put_rule(Name=name, EventPattern=json.dumps(pattern))
    events.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": arn}])
    IncidentBus(events, "default", cluster=name, stack="S").put(MESSAGE)
    (got,) = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=10)["Messages"]
    detail: dict[str, Any] = json.loads(got["Body"])["detail"]
    assert detail == {"stack": "S", "cluster": name, **told(MESSAGE)}
    events.remove_targets(Rule=name, Ids=["1"])
    events.delete_rule(Name=name)
    sqs.delete_queue(QueueUrl=queue)


def test_a_bus_that_does_not_answer_holds_up_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing listens there."""
    from botocore.config import Config

    once = Config(retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=1)
    away = boto3.client("events", endpoint_url="http://127.0.0.1:9", config=once, **KEYS)
    with caplog.at_level(logging.WARNING, "ecs_gpu_recovery"):
        IncidentBus(away, "default", cluster="c", stack="S").put(MESSAGE)
    assert [record.message for record in caplog.records] == ["no incident on the bus"]
