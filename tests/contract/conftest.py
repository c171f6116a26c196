"""Every test here runs on every store, the one of the nights too: what one promises, the others keep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ecs_gpu_recovery.engine.ports import Store
from tests.contract.worlds import World, dynamodb_world, memory_world, sqlite_world

#: In memory: all rows in the commit, those of one rank, or none.
FIT = {"memory": None, "memory, owing some": 1, "memory, owing all": 0}


@pytest.fixture(params=["sqlite", *FIT, pytest.param("dynamodb", marks=pytest.mark.ministack)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "sqlite":
        made = sqlite_world(tmp_path)
    elif request.param == "dynamodb":
        made = dynamodb_world(request.getfixturevalue("aws_url"))
    else:
        made = memory_world(FIT[request.param])
    with made as world:
        yield world


@pytest.fixture
def store(world: World) -> Store:
    return world.store
