"""Machines that are replaced: in every night each is gone and followed by another one, or a person was told."""

from __future__ import annotations

from testbed.nights.night import run


def test_machines_are_replaced_and_every_night_ends_well() -> None:
    kinds: set[str] = set()
    for seed in range(40):
        outcome = run(seed, sky="rungs")
        assert not outcome.violation, str(outcome)
        kinds |= {str(kind) for _, kind, *_ in outcome.history}
    assert {"replace", "joins", "reboot", "frozen"} <= kinds
