"""What the tests of the AWS side share: one local AWS for those that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws.ministack import local_aws
from tests.aws.place import Place, a_place


@pytest.fixture(scope="session")
def aws_url(ministack_python: Path) -> Iterator[str]:
    with local_aws(ministack_python) as url:
        yield url


@pytest.fixture
def place(aws_url: str) -> Iterator[Place]:
    with a_place(aws_url) as made:
        yield made
