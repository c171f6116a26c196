"""Rounds of pairs, and who is named by them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecs_gpu_recovery.health.collective import pairs
from ecs_gpu_recovery.health.collective.pairs import PairResult


def after_rounds(
    count: int,
    slow: set[int] = frozenset(),
    links: set[tuple[int, int]] = frozenset(),  # type: ignore[assignment]
) -> list[PairResult]:
    """The rounds a conductor would run, on nodes and links of which some are slow."""
    results: list[PairResult] = []
    rounds = pairs.schedule(range(count))
    for number, a_round in enumerate(rounds, start=1):
        for a, b in a_round:
            bad = a in slow or b in slow or (a, b) in links
            results.append(PairResult(round=number, a=a, b=b, gbit_s=1.0 if bad else 100.0))
        if pairs.enough(rounds, results, pairs.limit_of(results, None)):
            break
    return results


@pytest.mark.parametrize("count", range(2, 12))
def test_over_all_rounds_every_pair_meets_once(count: int) -> None:
    met = [pair for a_round in pairs.schedule(range(count)) for pair in a_round]
    assert sorted(met) == list(combinations(range(count), 2))


@pytest.mark.parametrize("count", range(2, 12))
def test_nobody_has_two_partners_in_one_round(count: int) -> None:
    for a_round in pairs.schedule(range(count)):
        ranks = [rank for pair in a_round for rank in pair]
        assert len(ranks) == len(set(ranks))


@given(count=st.integers(4, 64), data=st.data())
def test_one_slow_node_is_named_and_nobody_else(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count - 1))
    results = after_rounds(count, {bad})
    assert max(result.round for result in results) <= 3
    assert [b.ranks for b in pairs.blame(results, pairs.limit_of(results, None))] == [(bad,)]


@given(count=st.integers(6, 32), data=st.data())
def test_two_slow_nodes_are_named_and_nobody_else(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=2))
    results = after_rounds(count, bad)
    assert {b.ranks for b in pairs.blame(results, pairs.limit_of(results, None))} == {(r,) for r in bad}


@given(count=st.integers(4, 32), data=st.data())
def test_a_slow_link_is_named_without_its_nodes(count: int, data: st.DataObject) -> None:
    link = data.draw(st.sampled_from(pairs.schedule(range(count))[0]))
    results = after_rounds(count, links={link})
    assert [b.ranks for b in pairs.blame(results, pairs.limit_of(results, None))] == [link]


@given(count=st.integers(2, 64))
def test_equal_nodes_are_never_named(count: int) -> None:
    results = after_rounds(count)
    assert pairs.blame(results, pairs.limit_of(results, None)) == []


def test_of_three_nodes_the_slow_one_does_not_move_the_measure() -> None:
    results = after_rounds(3, {2})
    assert [b.ranks for b in pairs.blame(results, pairs.limit_of(results, None))] == [(2,)]


def test_two_nodes_are_a_link_and_need_a_given_limit() -> None:
    results = [PairResult(round=1, a=0, b=1, gbit_s=1.0)]
    assert pairs.blame(results, pairs.limit_of(results, None)) == []
    (named,) = pairs.blame(results, pairs.limit_of(results, 10.0))
    assert (named.ranks, named.broken) == ((0, 1), False)


def test_a_pair_that_does_not_get_through_is_broken() -> None:
    results = [PairResult(round=1, a=0, b=1, problem="no answer")]
    (named,) = pairs.blame(results, None)
    assert named.broken
