"""The tables in memory are held against a local AWS: every call of some nights, made there again, is answered alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws.ministack import dynamodb, fresh_tables
from tests.stories.account import InMemory
from tests.stories.memory import GUARDED, TURNS, Tables
from tests.stories.plots import BY_NAME
from tests.stories.world import World, a_world

pytestmark = pytest.mark.ministack


class Recording:
    """Notes what was asked and what was answered."""

    def __init__(self, tables: Tables, log: list[tuple[str, dict[str, Any], Any]]) -> None:
        self._tables, self._log = tables, log

    def __getattr__(self, action: str) -> Any:
        method = getattr(self._tables, action)
        if action in ("rows", "write"):  # what the test itself does
            return method

        def call(**request: Any) -> Any:
            try:
                answer = method(**request)
            except ClientError as exc:
                self._log.append((action, request, seen_error(exc)))
                raise
            self._log.append((action, request, answer))
            return answer

        return call


def seen_error(exc: ClientError) -> Any:
    response: dict[str, Any] = dict(exc.response)
    codes = [reason.get("Code") or "None" for reason in response.get("CancellationReasons", ())]
    return {"error": response["Error"]["Code"], "item": response.get("Item"), "codes": codes}


def alike(answer: Any) -> Any:
    """What the store reads of an answer, in one order."""
    plain = {
        key: value
        for key, value in answer.items()
        if key in ("Item", "Items", "Responses", "error", "item", "codes")
    }
    if "Responses" in plain:
        plain["Responses"] = {
            table: sorted(rows, key=str) for table, rows in plain["Responses"].items() if rows
        }
    return json.loads(json.dumps(plain, sort_keys=True, default=lambda value: value.hex()))


def record(names: dict[str, str], plot: str) -> list[tuple[str, dict[str, Any], Any]]:
    """The calls of a night with some disturbance, on tables with these names."""
    log: list[tuple[str, dict[str, Any], Any]] = []
    with a_world() as world:
        account = world.account
        assert isinstance(account, InMemory)
        account._tables = Recording(account._tables, log)  # type: ignore[assignment]
        world.session._account = account
        world.new_process()
        tell(world, plot)
    there = {"ecs_job": names["job_table"], "ecs_task": names["task_table"], "ecs_node": names["node_table"]}
    return [
        (action, renamed(request, there), renamed(answer, there))
        for action, request, answer in log
        if request.get("TableName") not in (TURNS, GUARDED)
    ]


def tell(world: World, plot: str) -> None:
    BY_NAME[plot].begin(world)
    world.twice = True
    others = world.a_process()
    world.wire.meanwhile[len(world.wire.calls) + 6] = lambda: (
        others.runtime.stop("j1", by="ann", why="", at=world.now()) and None
    )
    BY_NAME[plot].then(world)
    world.run()


def renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            names.get(key, key): names.get(inner, renamed(inner, names))
            if key == "TableName"
            else renamed(inner, names)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [renamed(inner, names) for inner in value]
    return value


@pytest.mark.parametrize("plot", ["gpu fault", "terminated"])
def test_the_same_calls_get_the_same_answers(aws_url: str, plot: str) -> None:
    client = dynamodb(aws_url)
    with fresh_tables(client) as names:
        log = record(names, plot)
        for number, (action, request, expected) in enumerate(log):
            try:
                answer: Any = getattr(client, action)(**request)
            except ClientError as exc:
                answer = seen_error(exc)
            assert alike(answer) == alike(expected), f"call {number}: {action} {request}"
        assert {action for action, _, _ in log} == {
            "get_item",
            "batch_get_item",
            "query",
            "update_item",
            "transact_write_items",
        }
        assert any("error" in answer for _, _, answer in log)
    client.close()
