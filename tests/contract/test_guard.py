"""The record of the fleet's guard, on every store that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.errors import NewerRecord, Unreadable, VersionConflict
from ecs_gpu_recovery.core.guard import FleetGuard, Freeze, Request
from ecs_gpu_recovery.engine.ports import GuardStore
from tests.contract.worlds import CLUSTER, T0

#: A store, and a hand that writes over its record.
Place = tuple[GuardStore, Callable[[str], object]]


@contextmanager
def _in_sqlite(folder: Path) -> Iterator[Place]:
    from ecs_gpu_recovery.local.guard import SqliteGuard
    from ecs_gpu_recovery.local.store import SqliteStore

    store = SqliteStore(folder / "state.db")
    damage = "UPDATE fleet_guard SET record=?"
    try:
        yield SqliteGuard(store, CLUSTER), lambda text: store.write(lambda c: c.execute(damage, (text,)))
    finally:
        store.close()


def _in_memory() -> AbstractContextManager[Place]:
    from testbed.nights.memory import MemoryGuard

    made = MemoryGuard(CLUSTER)
    return nullcontext((made, lambda text: setattr(made, "damage", text)))


@contextmanager
def _in_dynamodb(url: str) -> Iterator[Place]:
    from ecs_gpu_recovery.aws.guard import DynamoGuard
    from ecs_gpu_recovery.aws.tables import GUARD
    from tests.aws.ministack import dynamodb

    client = dynamodb(url)
    client.create_table(**GUARD.definition("guard-contract"))

    def damage(text: str) -> None:
        client.update_item(
            TableName="guard-contract",
            Key={GUARD.key: {"S": CLUSTER}},
            UpdateExpression="SET #r = :r",
            ExpressionAttributeNames={"#r": "record"},
            ExpressionAttributeValues={":r": {"S": text}},
        )

    try:
        yield DynamoGuard(client, "guard-contract", CLUSTER), damage
    finally:
        client.delete_table(TableName="guard-contract")
        client.close()


@pytest.fixture(params=["sqlite", "memory", pytest.param("dynamodb", marks=pytest.mark.ministack)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        made: AbstractContextManager[Place] = _in_sqlite(tmp_path)
    elif request.param == "memory":
        made = _in_memory()
    else:
        made = _in_dynamodb(request.getfixturevalue("aws_url"))
    with made as place:
        yield place


FULL = FleetGuard(
    cluster=CLUSTER,
    requests=(Request(key="j/1/0/reboot", node="n0", job="j", at=T0, since=T0, why="Xid 79"),),
    frozen=Freeze(at=T0, why="to see", by="ann"),
    version=1,
)


def test_a_fleet_without_a_record_has_an_empty_guard(place: Place) -> None:
    assert place[0].guard() == FleetGuard(cluster=CLUSTER)


def test_what_was_written_is_read_again(place: Place) -> None:
    store, _ = place
    store.commit_guard(FULL)
    assert store.guard() == FULL
    store.commit_guard(replace(FULL, frozen=None, version=2))
    assert store.guard() == replace(FULL, frozen=None, version=2)


def test_who_comes_too_late_changes_nothing(place: Place) -> None:
    store, _ = place
    store.commit_guard(FULL)
    for version in (1, 3):
        with pytest.raises(VersionConflict) as refused:
            store.commit_guard(replace(FULL, frozen=None, version=version))
        assert refused.value.newest in (None, FULL)
    assert store.guard() == FULL


@pytest.mark.parametrize(
    ("text", "error"), [("{", Unreadable), ("[]", Unreadable), ('{"format": 99}', NewerRecord)]
)
def test_a_record_that_cannot_be_read_is_said_to_be_so(
    place: Place, text: str, error: type[Exception]
) -> None:
    store, damage = place
    store.commit_guard(FULL)
    damage(text)
    with pytest.raises(error):
        store.guard()
