"""Which node, or which link? Rounds of pairs, and what follows from them.

A ring runs at the speed of its worst link and does not say which one that is. So nodes are tested two by two:
in every round each node has one partner, and over two rounds it has both of its neighbours. A node that does
badly with every partner is bad; two nodes that do badly only with each other have a bad link between them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDS = 2
SLOW_SHARE = 0.5
"""Below this share of what is usual here, a link is slow."""

Round = list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """What two nodes made of each other."""

    round: int
    a: int
    b: int
    gbit_s: float | None = None
    """In each direction, both at once; None when they did not get through."""
    problem: str = ""

    def to_json(self) -> dict[str, object]:
        speed = None if self.gbit_s is None else round(self.gbit_s, 3)
        return {"round": self.round, "a": self.a, "b": self.b, "gbit_s": speed, "problem": self.problem}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """A node, or two nodes and what lies between them."""

    ranks: tuple[int, ...]
    broken: bool
    """Nothing gets through, or not what was sent; otherwise it is only slow."""
    evidence: str


def schedule(ranks: Sequence[int]) -> list[Round]:
    """Neighbours of the ring first, since a ring that did badly has its bad link among them; then all others."""
    first = _neighbours(ranks)
    met = {pair for a_round in first for pair in a_round}
    later = [[pair for pair in a_round if pair not in met] for a_round in _round_robin(ranks)]
    return [a_round for a_round in (*first, *later) if a_round]


def _neighbours(ranks: Sequence[int]) -> list[Round]:
    """Every link of the ring, in two rounds; an odd ring closes in a third."""
    count = len(ranks)
    links = [(min(a, b), max(a, b)) for a, b in zip(ranks, [*ranks[1:], *ranks[:1]], strict=True) if a != b]
    if count <= 2:
        return [links[:1]]
    even = count - count % 2
    return [links[0:even:2], links[1:even:2], links[even:]]


def _round_robin(ranks: Sequence[int]) -> list[Round]:
    """With an odd number of nodes one of them rests in each round."""
    circle: list[int | None] = list(ranks)
    if len(circle) % 2:
        circle.append(None)
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def enough(rounds: Sequence[Round], results: Sequence[PairResult], limit: float | None) -> bool:
    """Whether the rounds so far name the culprits: not while an accused node has met accused ones only."""
    ranks = {rank for a_round in rounds for pair in a_round for rank in pair}
    done = {rank: [r for r in results if rank in (r.a, r.b)] for rank in ranks}
    if any(len(met) < ROUNDS for met in done.values()):
        return False
    accused = set(_all_bad(results, limit))
    return all(any(_other(r, rank) not in accused for r in done[rank]) for rank in accused)


def usual(results: Sequence[PairResult]) -> float | None:
    """The speed to compare with: the median, over nodes, of each one's best. One bad node can't move it."""
    best: dict[int, float] = {}
    for result in results:
        if result.gbit_s is not None and not result.problem:
            for rank in (result.a, result.b):
                best[rank] = max(best.get(rank, 0.0), result.gbit_s)
    return statistics.median(best.values()) if best else None


def limit_of(results: Sequence[PairResult], given: float | None, share: float = SLOW_SHARE) -> float | None:
    """The slowest speed that is still good."""
    if given is not None:
        return given
    reference = usual(results)
    return None if reference is None else reference * share


def blame(results: Sequence[PairResult], limit: float | None) -> list[Blame]:
    """Nodes first, then links between nodes that are not to blame themselves."""
    accused = _all_bad(results, limit)
    found = [_of_node(rank, results) for rank in accused]
    for result in results:
        if _bad(result, limit) and not {result.a, result.b} & set(accused):
            found.append(
                Blame(ranks=(result.a, result.b), broken=result.gbit_s is None, evidence=_evidence(result))
            )
    return found


def _all_bad(results: Sequence[PairResult], limit: float | None) -> list[int]:
    """Nodes that did badly with two partners or more, and with none well."""
    met: dict[int, list[bool]] = {}
    for result in results:
        for rank in (result.a, result.b):
            met.setdefault(rank, []).append(_bad(result, limit))
    return sorted(rank for rank, bad in met.items() if len(bad) >= ROUNDS and all(bad))


def _of_node(rank: int, results: Sequence[PairResult]) -> Blame:
    mine = [result for result in results if rank in (result.a, result.b)]
    told = "; ".join(f"with rank {_other(result, rank)}: {_evidence(result)}" for result in mine)
    return Blame(ranks=(rank,), broken=any(result.gbit_s is None for result in mine), evidence=told)


def _bad(result: PairResult, limit: float | None) -> bool:
    return bool(result.problem) or result.gbit_s is None or (limit is not None and result.gbit_s < limit)


def _evidence(result: PairResult) -> str:
    return result.problem or f"{result.gbit_s or 0:.3g} Gbit/s"


def _other(result: PairResult, rank: int) -> int:
    return result.b if rank == result.a else result.a
