"""News that is minutes old when it comes, while other senders are at work: a bug it once showed.

Another one, a start that is sent again though its task has ended, is shown by the contract of the fleets."""

from __future__ import annotations

from testbed.nights.night import Night


def test_the_common_sky_has_such_nights_too() -> None:
    found = [
        seed
        for seed in range(100)
        if (w := Night(seed).weather).late_s == 600 and w.stall_s == 115 and w.roomy
    ]
    assert found
