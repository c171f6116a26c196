"""One local AWS for all stories; a world of its own for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws.ministack import local_aws
from tests.stories.world import World, a_world


@pytest.fixture(scope="session")
def aws_url(ministack_python: Path) -> Iterator[str]:
    with local_aws(ministack_python) as url:
        yield url


@pytest.fixture
def world(aws_url: str) -> Iterator[World]:
    with a_world(aws_url) as made:
        yield made
