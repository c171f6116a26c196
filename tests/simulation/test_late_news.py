"""News that is minutes old when it comes, while other senders are at work."""

from __future__ import annotations

from ecs_gpu_recovery.simulation.night import run


def test_an_order_caused_by_old_news_belongs_to_its_sender_all_the_same() -> None:
    bad = [str(outcome) for seed in (13, 98, 187, 281) if (outcome := run(seed, sky="late-news")).violation]
    assert not bad, "\n".join(bad)
