"""A simulated account for every test, and one local AWS with the simulator inside for those that ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.aws.cloud import Cloud
from testbed.aws.server import Server, serve
from tests.testbed.helpers import CLUSTER, TRAIN, make_document


@pytest.fixture
def cloud() -> Cloud:
    """Two nodes of 8 GPUs, an EC2 instance and an external one, and a definition that takes a whole node."""
    made = Cloud(seed=1)
    made.control.add_node(name="n0", cluster=CLUSTER)
    made.control.add_node(name="n1", cluster=CLUSTER, external=True)
    made.client("ecs").register_task_definition(**TRAIN)
    make_document(made)
    return made


@pytest.fixture(scope="session")
def server(ministack_python: Path) -> Iterator[Server]:
    """Permissions are checked, so that what is plugged in is seen to be checked too."""
    with serve(ministack_python, auth=True) as running:
        yield running


@pytest.fixture
def aws(server: Server) -> Server:
    server.control("reset")
    return server
