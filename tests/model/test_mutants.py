"""No check that can't fail: every planted bug is found, and the way to it is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.model.model import Model
from testbed.model.search import Result, Search
from tests.model.mutants import MUTANTS, Mutant


def hunt(mutant: Mutant, patch: pytest.MonkeyPatch) -> Result:
    model = Model(mutant.world)
    mutant.plant(patch, model)
    return Search(mutant.world, model=model).run()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("mutants", 1)
    result = hunt(MUTANTS[name], monkeypatch)
    assert result.violation, f"not noticed in {result.states} states"
    assert MUTANTS[name].says in result.violation
    assert result.trace[0].startswith("submit")
    assert len(result.trace) > 1
