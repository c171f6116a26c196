"""What the tests of the AWS side share: one local AWS for those that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aws.place import Place, a_place


@pytest.fixture
def place(aws_url: str) -> Iterator[Place]:
    with a_place(aws_url) as made:
        yield made
