"""The wire between a client and AWS: every call is counted, and any of them can be made to fail.

A local AWS is never busy and never loses an answer. A real one does both, so the tests do it here, in the
client's own hooks, and the code above runs as it would.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.httpsession import URLLib3Session

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Fault = Callable[[AWSPreparedRequest], AWSResponse | None]


class Wire:
    """Listens to one client. `calls` are the operations that were asked for; `sent` counts retries too."""

    def __init__(self, client: DynamoDBClient) -> None:
        self.calls: list[str] = []
        self.sent = 0
        self._faults: list[tuple[str, Fault]] = []
        self._session = URLLib3Session()
        client.meta.events.register("before-call.dynamodb", self._called)
        client.meta.events.register("before-send.dynamodb", self._sending)

    def _called(self, model: Any, **_: Any) -> None:
        self.calls.append(model.name)

    def _sending(self, request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse | None:
        self.sent += 1
        operation = event_name.rpartition(".")[2]
        for planned in self._faults:
            if planned[0] in (operation, "*"):
                self._faults.remove(planned)
                return planned[1](request)
        return None

    def taken(self) -> list[str]:
        """The calls since the last look."""
        calls, self.calls = self.calls, []
        return calls

    def plan(self, operation: str, fault: Fault, *, times: int = 1, after: int = 0) -> None:
        """The next `times` requests of an operation meet this fault, once `after` others have passed."""
        self._faults += [(operation, let_pass)] * after + [(operation, fault)] * times

    def lose_the_answer(self, request: AWSPreparedRequest) -> AWSResponse:
        """AWS does what it was asked to; the answer never arrives."""
        assert self._session.send(request).status_code == 200
        return answer("InternalServerError", status=500)(request)  # type: ignore[return-value]


def let_pass(_: AWSPreparedRequest) -> None:
    return None


def answer(code: str, *, status: int = 400, **body: Any) -> Fault:
    """AWS says no, in its own form."""
    raw = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": code, **body}).encode()

    def fault(request: AWSPreparedRequest) -> AWSResponse:
        headers = {"content-type": "application/x-amz-json-1.0", "x-amzn-requestid": "made-up"}
        return AWSResponse(request.url, status, headers, _Raw(raw))

    return fault


def cancelled(*codes: str) -> Fault:
    """A transaction that was not made, with a reason for each of its actions."""
    return answer("TransactionCanceledException", CancellationReasons=[{"Code": code} for code in codes])


def broken(error: Exception) -> Fault:
    """There is no answer at all."""

    def fault(_: AWSPreparedRequest) -> AWSResponse:
        raise error

    return fault


class _Raw:
    """The part of a response's body that the client reads."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, **_: Any) -> Any:
        yield self._body
