"""A queue of dead letters and the functions they are for, as far as the project uses the two; and letters for it.

The queue hides what is taken for as long as it was asked to, like the real one; time passes when a test says so.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

STACK = "EcsGpuRecoveryStack"
URL = "https://sqs.us-east-1.amazonaws.com/123456789012/EcsGpuRecoveryStack-DeadLettersQueue"
ACCOUNT = "us-east-1:123456789012"
HANDLER = f"{STACK}-EcsTaskHandler"


def function_arn(name: str = HANDLER) -> str:
    return f"arn:aws:lambda:{ACCOUNT}:function:{name}"


def queue_arn(name: str = HANDLER) -> str:
    return f"arn:aws:sqs:{ACCOUNT}:{name}"


def of_queue(event: object) -> dict[str, Any]:
    """What SQS moves here when a function has failed on it as often as the queue lets it."""
    message = _message(json.dumps(event), {})
    return {**message, "Attributes": {"DeadLetterQueueSourceArn": queue_arn()}}


def of_rule(event: object, **more: str) -> dict[str, Any]:
    """What EventBridge leaves when it could not reach the queue of a rule's function."""
    told = {
        "RULE_ARN": f"arn:aws:events:{ACCOUNT}:rule/{STACK}-RulesTrainingTask",
        "TARGET_ARN": queue_arn(),
        "ERROR_CODE": "NO_PERMISSIONS",
        "ERROR_MESSAGE": "not authorized to send to the queue",
        "RETRY_ATTEMPTS": "30",
        "EXHAUSTED_RETRY_CONDITION": "MaximumRetryAttempts",
    }
    return _message(json.dumps(event), {**told, **more})


def of_schedule(event: object, **more: str) -> dict[str, Any]:
    """What the scheduler leaves when it could not call the sweeper."""
    told = {
        "SCHEDULE_ARN": f"arn:aws:scheduler:{ACCOUNT}:schedule/default/{STACK}-RecoverySweeper",
        "TARGET_ARN": function_arn(f"{STACK}-RecoverySweeper"),
        "ERROR_CODE": "Lambda.TooManyRequestsException",
        "SCHEDULED_TIME": "2026-11-15T02:00:00Z",
    }
    return _message(json.dumps(event), {**told, **more})


def of_function(event: object, **more: object) -> dict[str, Any]:
    """What Lambda leaves when a function failed on an event three times."""
    body = {
        "version": "1.0",
        "timestamp": "2026-11-15T02:03:04.567Z",
        "requestContext": {
            "requestId": "e4b46cbf-b738-xmpl-8880-a18cdf61200e",
            "functionArn": f"{function_arn()}:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": 3,
        },
        "requestPayload": event,
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "responsePayload": {"errorMessage": "no table", "errorType": "NotFound", "stackTrace": []},
    }
    return _message(json.dumps({**body, **more}), {})


def _message(body: str, told: dict[str, str]) -> dict[str, Any]:
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in told.items()}
    return {"Body": body, "MessageAttributes": attributes}


@dataclass
class Queue:
    """SQS as far as letters go."""

    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)  #: until when
    receipts: dict[str, str] = field(default_factory=dict)
    now: float = 0.0
    made: int = 0

    def put(self, message: dict[str, Any], id: str = "") -> str:
        self.made += 1
        name = id or f"{self.made:08d}-1111-4222-8333-444455556666"
        stamp = {"SentTimestamp": str(1794708000000 + self.made * 1000)}
        self.hidden.pop(name, None)
        self.kept[name] = {**message, "MessageId": name, "Attributes": stamp}
        return name

    def _visible(self) -> list[str]:
        return [name for name in self.kept if self.hidden.get(name, 0.0) <= self.now]

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: list[str]) -> dict[str, Any]:
        assert QueueUrl == URL
        seen = len(self._visible())
        counts = {
            "ApproximateNumberOfMessages": seen,
            "ApproximateNumberOfMessagesNotVisible": len(self.kept) - seen,
        }
        return {"Attributes": {name: str(counts[name]) for name in AttributeNames}}

    def receive_message(
        self, *, QueueUrl: str, MaxNumberOfMessages: int, VisibilityTimeout: int, **more: Any
    ) -> dict[str, Any]:
        assert QueueUrl == URL
        assert more["MessageAttributeNames"] == ["All"]
        found = []
        for name in self._visible()[:MaxNumberOfMessages]:
            self.hidden[name] = self.now + VisibilityTimeout
            self.made += 1
            self.receipts[f"r{self.made}"] = name
            found.append({**self.kept[name], "ReceiptHandle": f"r{self.made}"})
        return {"Messages": found} if found else {}

    def change_message_visibility_batch(
        self, *, QueueUrl: str, Entries: list[dict[str, Any]]
    ) -> dict[str, Any]:
        assert QueueUrl == URL
        assert 1 <= len(Entries) <= 10
        for entry in Entries:
            self.hidden[self.receipts[entry["ReceiptHandle"]]] = self.now + entry["VisibilityTimeout"]
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries]}

    def delete_message(self, *, QueueUrl: str, ReceiptHandle: str) -> dict[str, Any]:
        assert QueueUrl == URL
        del self.kept[self.receipts[ReceiptHandle]]
        return {}


@dataclass
class Called:
    """The functions: what they were given, and how they answer."""

    given: list[tuple[str, Any]] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)  #: names of functions
    take: Callable[[Any], object] = id  #: what they do with an event

    def invoke(self, *, FunctionName: str, InvocationType: str, Payload: bytes) -> dict[str, Any]:
        assert InvocationType == "RequestResponse"
        self.given.append((FunctionName, json.loads(Payload)))
        if FunctionName in self.failing:
            said = {"errorMessage": "still no table", "errorType": "NotFound"}
            return {
                "StatusCode": 200,
                "FunctionError": "Unhandled",
                "Payload": io.BytesIO(json.dumps(said).encode()),
            }
        self.take(json.loads(Payload))
        answer = {"kind": "task", "taken": True, "why": "rank 2 of job j1 has stopped", "record": "job/j1"}
        return {"StatusCode": 200, "Payload": io.BytesIO(json.dumps(answer).encode())}
