"""Every test here runs on both stores: what one promises, the other keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ecs_gpu_recovery.engine.ports import Store
from tests.aws.ministack import local_aws
from tests.contract.worlds import World, dynamodb_world, sqlite_world


@pytest.fixture(scope="session")
def aws_url(ministack_python: Path) -> Iterator[str]:
    with local_aws(ministack_python) as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("dynamodb", marks=pytest.mark.ministack)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "sqlite":
        with sqlite_world(tmp_path) as made:
            yield made
    else:
        with dynamodb_world(request.getfixturevalue("aws_url")) as made:
            yield made


@pytest.fixture
def store(world: World) -> Store:
    return world.store
