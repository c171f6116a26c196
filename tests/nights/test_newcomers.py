"""Machines that join in the night: each is seen, examined, and then used, whoever hears of it and whoever dies."""

from __future__ import annotations

from testbed.nights.night import run


def test_machines_join_and_every_night_ends_well() -> None:
    joined = used = 0
    for seed in range(30):
        outcome = run(seed, sky="newcomers")
        assert not outcome.violation, str(outcome)
        new = {str(rest[0]) for _, kind, *rest in outcome.history if kind == "joins"}
        joined += len(new)
        used += sum(
            kind == "start" and bool(rest[1]) and rest[4] in new for _, kind, *rest in outcome.history
        )
    assert joined > 20
    assert used > 5, "and some jobs ran on them"
