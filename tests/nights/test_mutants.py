"""Tests of the tests: each planted bug is found, within a thousand nights."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.nights.mutants import MUTANTS, Mutant, hunt
from testbed.nights.night import run

#: Found after hundreds of nights only, or in long ones.
RARE = {
    "forget a job that waits",
    "give a released node to two jobs",
    "give one node to two jobs",
    "leave a lost node at once",
    "leave a task running behind",
    "let what was not sent run out",
    "look for no hang",
    "re-send a start without looking",
    "reboot in a frozen fleet",
    "repair a node for ever",
    "replace beside a stranger's task",
    "say that a job trains which hangs",
    "start on a new node at once",
    "take a silent node for a witness",
}


def planted(mutant: Mutant) -> object:
    return pytest.param(mutant, id=mutant.title, marks=[pytest.mark.slow] if mutant.title in RARE else [])


@pytest.mark.parametrize("mutant", [planted(mutant) for mutant in MUTANTS])
def test_the_nights_find(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    record_property("mutants", 1)
    found = hunt(mutant, most=1000)
    assert found is not None, f"{mutant.title}: not noticed"
    assert not run(found.seed, sky=mutant.sky).violation, "without the bug the same night ends well"
