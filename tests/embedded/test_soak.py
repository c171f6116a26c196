"""Many jobs, one after the other, with faults, spares and killed controllers: none is lost, and nothing runs twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.soak import soak

#: JOBS=1000 pytest -m slow tests/embedded/test_soak.py, or: python -m tools.soak
MANY = int(os.environ.get("JOBS", "40"))


@pytest.mark.slow
def test_many_jobs_with_faults_end_as_they_must_and_nothing_is_left(tmp_path: Path) -> None:
    told = soak(tmp_path, MANY)
    assert sum(told["ends"].values()) == MANY  # type: ignore[attr-defined]
    assert len(told["met"]) > 4, told  # type: ignore[arg-type]
