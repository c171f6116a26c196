"""A world of its own for each story: in memory, or on the one local AWS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stories.world import World, a_world


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as made:
        yield made


@pytest.fixture
def http_world(aws_url: str) -> Iterator[World]:
    with a_world(aws_url) as made:
        yield made
