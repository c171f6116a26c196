"""Nights in which hosts restart under their tasks, whose end is then told as a success, and told late."""

from __future__ import annotations

from datetime import datetime

import pytest

from ecs_gpu_recovery.core.job import rules
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import Rank
from testbed.nights.night import run


def test_the_cluster_s_word_is_not_enough_before_the_agent_has_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sure(draft: Draft, rank: Rank, at: datetime | None) -> bool:
        return rank.connected and at is not None and rank.back_at is not None and at > rank.back_at

    monkeypatch.setattr(rules, "_ran_for_sure", sure)
    assert any("did not finish" in run(seed, sky="restarts").violation for seed in range(400))
