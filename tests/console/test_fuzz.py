"""The API fed with whatever its own description allows, and with what it does not: no error of its own, no surprise.

Every operation is tried to the end, whatever the others do, so that one finding does not hide the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

schemathesis = pytest.importorskip("schemathesis", reason="the fuzzer is part of the development environment")
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from hypothesis.errors import Unsatisfiable  # noqa: E402
from schemathesis.checks import (  # noqa: E402
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.failures import FailureGroup  # noqa: E402

from tests.console.helpers import console, still_state, submitted  # noqa: E402

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
#: The stream has no end; it has tests of its own.
ENDLESS = "/api/live"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[httpx.Client]:
    """A console with something to find: a job that waits, one that ended, an order, a message, a deed."""
    with console(still_state(tmp_path, nodes=6), patience_s=30.0) as client:
        first = submitted(client, any_nodes=1, id="j1")
        client.post(f"/api/jobs/{first['id']}/stop", json={"why": "to have one that ended"})
        submitted(client, any_nodes=1, id="j2")
        client.post("/api/nodes/node-6/reboot", json={"why": "to have an order"})
        yield client


def _fuzz(client: httpx.Client, examples: int) -> dict[str, str]:
    """What was found, by operation."""
    described = client.get("/api/openapi.json").json()
    schema = schemathesis.openapi.from_dict(described)
    found: dict[str, str] = {}
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path == ENDLESS:
            continue
        tried += 1
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            try:
                _try(operation.as_strategy(generation_mode=mode), client, examples)
            except FailureGroup as group:
                told = "\n".join(str(failure) for failure in group.exceptions)
                found[f"{operation.label} {mode.value}"] = told[:2000]
            except Unsatisfiable:  # where nothing can be sent, nothing can be wrong with it
                assert mode is schemathesis.GenerationMode.NEGATIVE, operation.label
                assert "{" not in operation.path, operation.label
    assert tried >= 22
    return found


def _try(strategy: Any, client: httpx.Client, examples: int) -> None:
    @seed(20261115)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def run(case: Any) -> None:
        sent = {"authorization": client.headers["authorization"]}
        case.call_and_validate(base_url=str(client.base_url), headers=sent, checks=CHECKS, timeout=30)

    run()


def test_nothing_that_is_sent_makes_the_api_fail(served: httpx.Client) -> None:
    assert _fuzz(served, examples=3) == {}


@pytest.mark.slow
def test_nothing_makes_the_api_fail_in_many_more_tries(served: httpx.Client) -> None:
    assert _fuzz(served, examples=40) == {}
