"""Everything that can happen in small worlds, seen to the last state: all rules hold, and everything ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.model.bounds import Bounds
from testbed.model.search import Search
from testbed.model.worlds import ALL, QUICK, RECOVERY, THOROUGH


def check(bounds: Bounds) -> None:
    result = Search(bounds).run()
    assert not result.violation, f"\n{result}"
    assert result.complete
    assert result.ended, "a world in which nothing ends proves nothing"


@pytest.mark.parametrize("world", QUICK)
def test_every_state_of_a_small_world(world: str) -> None:
    check(QUICK[world])


@pytest.mark.slow
@pytest.mark.parametrize("world", THOROUGH)
def test_every_state_of_a_larger_world(world: str) -> None:
    check(THOROUGH[world])


def test_a_recovery_can_end_well_and_badly() -> None:
    ended = Search(replace(RECOVERY, nodes=1)).run().ended
    assert set(ended) == {"COMPLETE", "FAILED"}


def test_no_world_is_searched_twice() -> None:
    assert len(set(map(str, ALL.values()))) == len(ALL)
