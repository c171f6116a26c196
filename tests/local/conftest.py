"""Every test gets a cluster of its own, and leaves no process behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the embedded cluster supervises processes through Linux's /proc", allow_module_level=True)

from ecs_gpu_recovery.local.cluster import Cluster
from tests.embedded.helpers import living


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "state")
    try:
        yield made
    finally:
        made.shutdown()
    assert living(made) == []
