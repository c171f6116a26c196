"""Clients that look like boto3's and reach a simulated account without a wire.

Where botocore is installed, requests are checked against its model and errors are its own, so that code under
test meets what it would meet in production. Where it is not, both do without.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from .requests import ApiError

if TYPE_CHECKING:
    from botocore.model import ServiceModel

_TIMES = re.compile(r"[a-z].*At|.*DateTime|ExpiresAfter|lastUpdated|lastStatusChange")


class Calls(Protocol):
    actions: dict[str, dict[str, Any]]

    def call(self, service: str, action: str, data: dict[str, Any]) -> dict[str, Any]: ...


class SimulatedError(Exception):
    """Stands in for botocore's ClientError where botocore is not installed."""

    def __init__(self, response: dict[str, Any], operation_name: str) -> None:
        self.response, self.operation_name = response, operation_name
        super().__init__(f"{operation_name}: {response['Error']}")


class Client:
    """`client.start_task(cluster=…)` and its like; `get_paginator` too."""

    def __init__(self, cloud: Calls, service: str) -> None:
        self._cloud, self._service = cloud, service
        self._names = {snake(action): action for action in cloud.actions[service]}

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        action = self.__dict__.get("_names", {}).get(name)
        if action is None:
            raise AttributeError(f"the simulated {self.__dict__.get('_service')} has no {name}")
        return functools.partial(self._call, action)

    def _call(self, action: str, **request: Any) -> dict[str, Any]:
        _check(self._service, action, request)
        try:
            answer = self._cloud.call(self._service, action, copy.deepcopy(request))
        except ApiError as exc:
            raise client_error(exc, action) from exc
        found: dict[str, Any] = with_times(copy.deepcopy(answer))
        return {**found, "ResponseMetadata": {"HTTPStatusCode": 200, "RetryAttempts": 0}}

    def get_paginator(self, name: str) -> Paginator:
        return Paginator(getattr(self, name), "NextToken" if self._service == "ssm" else "nextToken")

    def close(self) -> None:
        """There is nothing to close."""


class Paginator:
    """All pages of a list."""

    def __init__(self, call: Callable[..., dict[str, Any]], token: str) -> None:
        self._ask, self._token = call, token

    def paginate(self, **request: Any) -> Iterator[dict[str, Any]]:
        request.pop("PaginationConfig", None)
        while True:
            answer = self._ask(**request)
            yield answer
            if not answer.get(self._token):
                return
            request[self._token] = answer[self._token]


def snake(action: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", action).lower()


def with_times(value: Any, name: str = "") -> Any:
    """Numbers that are times become times, as boto3 makes them."""
    if isinstance(value, dict):
        return {key: with_times(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_times(inner) for inner in value]
    if isinstance(value, int | float) and not isinstance(value, bool) and _TIMES.fullmatch(name):
        return datetime.fromtimestamp(value, UTC)
    return value


def client_error(error: ApiError, action: str) -> Exception:
    """What boto3 would raise for this answer."""
    response: dict[str, Any] = {
        "Error": {"Code": error.code, "Message": error.message},
        "ResponseMetadata": {"HTTPStatusCode": error.status, "RetryAttempts": 0},
    }
    try:
        from botocore.exceptions import ClientError
    except ImportError:
        return SimulatedError(response, action)
    return ClientError(response, action)  # type: ignore[arg-type]


def _check(service: str, action: str, request: dict[str, Any]) -> None:
    """Unknown or missing parameters never get as far as AWS: boto3 itself refuses them."""
    model = service_model(service)
    if model is None:
        return
    from botocore.exceptions import ParamValidationError
    from botocore.validate import ParamValidator

    shape = model.operation_model(action).input_shape
    if shape is None:
        return
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        raise ParamValidationError(report=report.generate_report())


@functools.cache
def service_model(service: str) -> ServiceModel | None:
    try:
        import botocore.session
    except ImportError:
        return None
    return botocore.session.get_session().get_service_model(service)
