"""Nights in which few reboots are too many: the fleet freezes, people thaw it, and every job still comes to its end."""

from __future__ import annotations

from testbed.nights.night import run


def test_a_frozen_fleet_is_thawed_and_every_night_ends_well() -> None:
    seen: set[str] = set()
    for seed in range(60):
        outcome = run(seed, sky="storms")
        assert not outcome.violation, str(outcome)
        seen |= {str(kind) for _, kind, *_ in outcome.history}
    assert {"frozen", "reboot"} <= seen, "some of them were storms"
