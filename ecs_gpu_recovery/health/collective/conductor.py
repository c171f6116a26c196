"""Rank 0's part: who is here, one test of all together, and rounds of pairs when that went badly.

A network problem is not a GPU fault. Nothing here can lead to a reboot; the report names the node or the link
and leaves it to people or to the scheduler what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from ecs_gpu_recovery.health.collective import pairs, transfer
from ecs_gpu_recovery.health.collective.pairs import PairResult
from ecs_gpu_recovery.health.collective.rendezvous import ABSENT, DIED, HERE, SILENT, Hall, Message

SCHEMA = "gpu-health-collective/1"
OK, NOT_TESTED, NAMED = 0, 3, 4

_GRACE_S = 5.0
_LEFT_OUT: Message = {"status": "left_out", "gbit_s": None, "problem": ""}
_RESULTS = {OK: "ok", NOT_TESTED: "not_tested", NAMED: "degraded"}
_ABOUT = {
    ABSENT: ("node-absent", "never came to the test"),
    DIED: ("node-died", "hung up in the middle of the test"),
    SILENT: ("node-silent", "stopped answering in the middle of the test"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be tested, and when it counts as bad."""

    backend: str = "auto"
    size: int = 32 << 20
    repeats: int = 4
    deadline_s: float = 60.0
    join_s: float = 120.0
    min_gbit_s: float | None = None
    slow_share: float = pairs.SLOW_SHARE
    always_pairs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One thing a person should look at."""

    kind: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    evidence: str


@dataclass(slots=True)
class Conductor:
    """One test from the welcome to the report."""

    hall: Hall
    plan: Plan
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    backend: str = "tcp"
    whole: Message = field(default_factory=lambda: dict(_LEFT_OUT))
    results: list[PairResult] = field(default_factory=list)
    steps: int = 0

    def run(self) -> Message:
        """The whole test. The report is also what every other node is told."""
        self.hall.welcome(self.plan.join_s)
        self.hall.listener.close()
        here = self.hall.here()
        guests = self.hall.guests
        addresses = {str(rank): [guests[rank].address, guests[rank].port] for rank in here}
        self.hall.tell(here, {"do": "begin", "addresses": addresses})
        self.backend = self._backend()
        complete = len(here) == len(guests)
        alone = len(guests) == 1
        if complete and (not alone or self.backend != "tcp"):
            self._all_together(here)
        unsure = self._went_badly() or not complete or self.plan.min_gbit_s is None
        if not alone and (unsure or self.plan.always_pairs):
            self._pairs()
        report = self.report()
        self.hall.tell(self.hall.here(), {"do": "end", "report": report})
        return report

    def _backend(self) -> str:
        """NCCL needs GPUs and PyTorch on every node; plain TCP tests the links without either."""
        if self.plan.backend != "auto":
            return self.plan.backend
        here = [guest for guest in self.hall.guests if guest.state == HERE]
        return "nccl" if here and all(guest.gpus and guest.nccl for guest in here) else "tcp"

    def _all_together(self, ranks: Sequence[int]) -> None:
        answers = self._together(ranks)
        problem = self._problem(ranks, answers)
        if problem:
            self.whole = {"status": "failed", "gbit_s": None, "problem": problem}
            return
        carried = self._all_reduced(ranks)
        if self.backend == "tcp":
            carried = transfer.ring_bytes(len(ranks), self.plan.size)
        speed = _gbit_s(carried, answers, ranks) if carried else None
        slow = speed is not None and self.plan.min_gbit_s is not None and speed < self.plan.min_gbit_s
        self.whole = {"status": "slow" if slow else "ok", "gbit_s": speed, "problem": ""}

    def _workers(self, ranks: Sequence[int]) -> int:
        return len(ranks) if self.backend != "nccl" else sum(self.hall.guests[rank].gpus for rank in ranks)

    def _all_reduced(self, ranks: Sequence[int]) -> float:
        """What an all-reduce moves through each of its workers."""
        workers = self._workers(ranks)
        return self.plan.size * 2 * (workers - 1) / workers

    def _together(self, ranks: Sequence[int]) -> dict[int, Message]:
        """These nodes at once: an all-reduce by PyTorch, or around a ring by TCP."""
        if self.backend == "tcp":
            order = self._order("ring") | {"ranks": list(ranks)}
            return self.hall.order(dict.fromkeys(ranks, order), self.plan.deadline_s + _GRACE_S)
        return self._torch([list(ranks)])

    def _torch(self, groups: Sequence[Sequence[int]]) -> dict[int, Message]:
        """Groups side by side; the first of each is where its processes meet."""
        firsts = [group[0] for group in groups]
        ports = self.hall.order({rank: {"do": "port"} for rank in firsts}, _GRACE_S * 2)
        orders: dict[int, Message] = {}
        for group in groups:
            if group[0] not in ports:
                continue
            master = self.hall.guests[group[0]].address
            offset = 0
            for rank in group:
                each = self.hall.guests[rank].gpus if self.backend == "nccl" else 1
                orders[rank] = self._order("torch") | {
                    "backend": self.backend,
                    "master": master,
                    "port": ports[group[0]].get("port"),
                    "world": self._workers(group),
                    "first": offset,
                    "each": each,
                }
                offset += each
        return self.hall.order(orders, self.plan.deadline_s + _GRACE_S)

    def _order(self, do: str) -> Message:
        self.steps += 1
        plan = self.plan
        return {
            "do": do,
            "name": f"{do}-{self.steps}",
            "size": plan.size,
            "repeats": plan.repeats,
            "deadline_s": plan.deadline_s,
        }

    def _problem(self, ranks: Sequence[int], answers: dict[int, Message]) -> str:
        """The first thing that went wrong; a node that is gone explains the complaints of the others."""
        for rank in ranks:
            if rank not in answers:
                state = self.hall.guests[rank].state
                return f"rank {rank} {_ABOUT[state][1] if state in _ABOUT else 'gave no answer'}"
        return next((str(answers[r]["problem"]) for r in ranks if "problem" in answers[r]), "")

    def _went_badly(self) -> bool:
        return self.whole["status"] in ("failed", "slow")

    def _pairs(self) -> None:
        """Two rounds; more only while they leave open who is to blame."""
        rounds = pairs.schedule(self.hall.here())
        for number, a_round in enumerate(rounds, start=1):
            living = [pair for pair in a_round if set(pair) <= set(self.hall.here())]
            if living:
                self.results += self._round(number, living)
            limit = pairs.limit_of(self.results, self.plan.min_gbit_s, self.plan.slow_share)
            alive = set(self.hall.here())
            still = [[pair for pair in r if set(pair) <= alive] for r in rounds]
            if pairs.enough([r for r in still if r], self.results, limit):
                return

    def _round(self, number: int, found: pairs.Round) -> list[PairResult]:
        if self.backend == "tcp":
            orders: dict[int, Message] = {}
            for a, b in found:
                order = self._order("pair")
                orders[a], orders[b] = order | {"with": b}, order | {"with": a}
            answers = self.hall.order(orders, self.plan.deadline_s + _GRACE_S)
        else:
            answers = self._torch(found)
        return [self._pair(number, a, b, answers) for a, b in found]

    def _pair(self, number: int, a: int, b: int, answers: dict[int, Message]) -> PairResult:
        result = PairResult(round=number, a=a, b=b)
        problem = self._problem((a, b), answers)
        if problem:
            return replace(result, problem=problem)
        carried = self.plan.size if self.backend == "tcp" else self._all_reduced((a, b))
        return replace(result, gbit_s=_gbit_s(carried, answers, (a, b)))

    def named(self) -> list[Named]:
        """Everything a person should look at, the gone first."""
        guests = self.hall.guests
        found = []
        for guest in guests:
            if guest.state in _ABOUT:
                kind, text = _ABOUT[guest.state]
                found.append(self._name(kind, (guest.rank,), text))
        gone = {guest.rank for guest in guests if guest.state in _ABOUT}
        tested = [r for r in self.results if not gone & {r.a, r.b}]
        limit = pairs.limit_of(tested, self.plan.min_gbit_s, self.plan.slow_share)
        for blamed in pairs.blame(tested, limit):
            what = "node" if len(blamed.ranks) == 1 else "link"
            kind = f"{what}-{'broken' if blamed.broken else 'slow'}"
            found.append(self._name(kind, blamed.ranks, blamed.evidence))
        if self._went_badly() and not found:
            speed = self.whole["gbit_s"]
            said = self.whole["problem"] or f"{speed:.3g} Gbit/s, and every pair by itself is fast enough"
            everyone = tuple(guest.rank for guest in guests)
            found.append(self._name(f"all-nodes-{self.whole['status']}", everyone, str(said)))
        return found

    def _name(self, kind: str, ranks: tuple[int, ...], evidence: str) -> Named:
        names = tuple(self.hall.guests[rank].name or f"rank {rank}" for rank in ranks)
        return Named(kind=kind, nodes=names, ranks=ranks, evidence=evidence)

    def report(self) -> Message:
        found = self.named()
        measured = self.whole["status"] == "ok" or any(r.gbit_s is not None for r in self.results)
        code = NAMED if found else OK if measured else NOT_TESTED
        limit = pairs.limit_of(self.results, self.plan.min_gbit_s, self.plan.slow_share)
        return {
            **_document(code, _why(found, self.whole, self.backend, measured), len(self.hall.guests)),
            "backend": self.backend,
            "size_mib": self.plan.size / (1 << 20),
            "limit_gbit_s": None if limit is None else round(limit, 3),
            "started_at": self.started_at.isoformat(),
            "nodes": [guest.to_json() for guest in self.hall.guests],
            "all_nodes": self.whole,
            "pairs": [result.to_json() for result in self.results],
            "findings": [asdict(one) for one in found],
            "strangers": self.hall.strangers[:20],
        }


def _gbit_s(carried: float, answers: dict[int, Message], ranks: Sequence[int]) -> float:
    """The slowest tells the time."""
    return carried * 8 / max(float(str(answers[rank]["seconds"])) for rank in ranks) / 1e9


def not_tested(why: str, world: int, named: Named | None = None) -> Message:
    """The report of a node that never got into the test, or lost rank 0 on the way."""
    report = _document(NOT_TESTED if named is None else NAMED, why, world)
    return report | {"findings": [asdict(named)] if named is not None else []}


def _document(code: int, why: str, world: int) -> Message:
    """A report in which nothing was measured."""
    now = datetime.now(UTC).isoformat()
    return {
        "schema": SCHEMA,
        "result": _RESULTS[code],
        "exit_code": code,
        "why": why,
        "backend": None,
        "world": world,
        "size_mib": None,
        "limit_gbit_s": None,
        "started_at": now,
        "finished_at": now,
        "nodes": [],
        "all_nodes": dict(_LEFT_OUT),
        "pairs": [],
        "findings": [],
        "strangers": [],
    }


def _why(found: Sequence[Named], whole: Message, backend: str, measured: bool) -> str:
    if found:
        told = [f"{one.kind}: {' - '.join(one.nodes)} ({one.evidence})" for one in found[:3]]
        more = len(found) - 3
        return "; ".join(told) + (f"; and {more} more" if more > 0 else "")
    if not measured:
        return "a single node has no link to another; nothing was tested"
    speed = whole["gbit_s"]
    how_fast = f", {speed:.3g} Gbit/s" if isinstance(speed, float) else ""
    return f"all nodes reach each other ({backend}{how_fast})"
