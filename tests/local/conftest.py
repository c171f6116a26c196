"""Every test gets a cluster of its own, and leaves no process behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the embedded cluster supervises processes through Linux's /proc", allow_module_level=True)

from ecs_gpu_recovery.local.cluster import Cluster
from tests.local.helpers import a_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with a_cluster(tmp_path / "state") as made:
        yield made
