"""The search itself: it sees what is the same, tells how it got somewhere, and says when it did not see all."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.core.effects import ReplaceNode
from testbed.model.bounds import STEP, Bounds
from testbed.model.canon import digest
from testbed.model.model import T0, Model
from testbed.model.monitors import Violation, before_replacement
from testbed.model.moves import moves
from testbed.model.search import Search, describe
from testbed.model.state import State
from testbed.model.worlds import QUICK, RECOVERY
from tests.model.mutants import MUTANTS
from tools import model_check

TWO = Bounds()


def begin(bounds: Bounds = TWO) -> State:
    *_, (_, state) = Model(bounds).begin()
    return state


def after(state: State, *labels: str) -> State:
    """Where the moves with these labels lead."""
    for label in labels:
        found = [s for move in moves(Model(TWO), state) for said, s in move.act() if said == label]
        assert found, f"{label} can't happen in {describe(state)}"
        state = found[-1]
    return state


def test_nodes_are_interchangeable() -> None:
    one, other = after(begin(), "t0.0.1.0 ends: suspect"), after(begin(), "t1.0.1.0 ends: suspect")
    assert digest(one, TWO) == digest(other, TWO)
    assert digest(one, TWO) != digest(begin(), TWO)


def test_nodes_with_different_fates_are_not() -> None:
    both = after(begin(), "t0.0.1.0 ends: suspect", "t1.0.1.0 ends: done")
    assert digest(both, TWO) != digest(after(begin(), "t0.0.1.0 ends: done", "t1.0.1.0 ends: done"), TWO)


def test_it_makes_no_difference_when_something_happens() -> None:
    state = begin()
    later = replace(state, now=state.now + timedelta(days=1))
    assert digest(later, TWO) == digest(state, TWO)


def test_it_makes_a_difference_how_long_a_wait_still_takes() -> None:
    waiting = after(begin(), "t0.0.1.0 ends: suspect", "sweep")
    later = replace(waiting, now=waiting.now + timedelta(minutes=1))
    assert digest(later, TWO) != digest(waiting, TWO)


def test_versions_and_texts_make_no_difference() -> None:
    state = begin()
    told = replace(state, job=replace(state.job, version=99, outcome="x"))
    assert digest(told, TWO) == digest(state, TWO)


def test_the_same_search_twice_sees_the_same() -> None:
    one, other = (
        Search(QUICK["two verdicts and no retry"]).run(),
        Search(QUICK["two verdicts and no retry"]).run(),
    )
    assert (one.states, one.transitions, one.ended) == (other.states, other.transitions, other.ended)


def test_a_limit_is_told() -> None:
    assert not Search(RECOVERY, max_states=50).run().complete
    assert not Search(RECOVERY, max_depth=3).run().complete


def test_a_way_is_told_so_that_it_can_be_gone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS["tells nobody"]
    model = Model(mutant.world)
    mutant.plant(monkeypatch, model)
    result = Search(mutant.world, model=model).run()
    assert "BROKEN: FAILED, and nobody will be told" in str(result)
    steps = [line.partition("  ⇒  ")[0] for line in result.trace]
    assert steps[0] == "submit"
    assert all("⇒" in line for line in result.trace[:-1]), (
        "each step but the last says where the job stands then"
    )
    assert after(begin(), *steps[1:-1]).job.status.value in result.trace[-2]


def test_a_machine_is_not_to_be_taken_away_under_a_task() -> None:
    at_work = replace(begin().machines[0], proof="replace")
    order = ReplaceNode(key="node/n0/replace/1", node="n0")
    with pytest.raises(Violation, match=r"n0 is taken away under \['t0.0.1.0'\]"):
        before_replacement(begin().nodes[0], order, at_work, T0, STEP)


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command_lists_its_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    assert model_check.main(["--list"]) == 0
    assert "a process stalls or dies: verdicts=reboot, stalls=1" in capsys.readouterr().out


def test_the_command_searches_a_world_as_it_is_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert model_check.main(["--world", "three nodes", "--nodes", "1", "--depth", "4"]) == 0
    said = capsys.readouterr().out
    assert "nodes=1" in said
    assert "1 worlds were cut short" in said


def test_the_command_fails_when_something_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS["tells nobody"].plant(monkeypatch, Model(TWO))
    assert model_check.main(["--world", "two verdicts and no retry"]) == 1
    assert "nobody will be told" in capsys.readouterr().err
