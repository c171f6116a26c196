"""An embedded control plane on a folder of the test, with nothing of it left afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ecs_gpu_recovery.local.controller import Controller, NodeWish


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    wishes = [NodeWish(name=f"node-{n}", gpus=2, boot_seconds=0.1) for n in (1, 2)]
    with Controller(tmp_path / "state", nodes=wishes) as made:
        try:
            yield made
        finally:
            made.parts.cluster.shutdown()
