"""What events ask of records, done together: facts that arrive together are committed once per record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from ..core.errors import NodesTaken, NotFound
from ..core.events import Fact, NodeSeen
from ..core.model import Job
from ..core.node.table import decide_node
from ..core.node_record import Node
from ..engine.runtime import Runtime
from ..engine.sweeper import Report
from ..engine.troubles import Attempt
from .errors import ForeignRecord
from .parsed import Kind

log = logging.getLogger("ecs_gpu_recovery")


class Adopter(Protocol):
    """Takes over a job that another tool recorded."""

    def adopt(self, row: Mapping[str, Any], at: datetime) -> Job:
        """Make the job's record from the schema's attributes alone. Raises `NotFound` where they don't suffice."""

    def adopt_strays(self, at: datetime, attempt: Attempt) -> None:
        """Take over the jobs that no event has led to, each in an attempt of its own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was done with an event, for the log and for tests."""

    kind: str
    taken: bool
    why: str
    record: str = ""
    report: Report | None = None  #: of a sweep


def _nothing_more() -> None:
    """Where there is nothing to remember."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What one event asks for: to tell facts to a job, or to a node, and to remember it once they are recorded."""

    answer: Answer
    at: datetime
    facts: Sequence[Fact]
    job: str = ""
    node: Node | None = None
    proof: Callable[[Node], Sequence[Fact]] | None = None  #: asks what else is known of a node that shows up
    done: Callable[[], None] = field(default=_nothing_more, compare=False)

    @property
    def group(self) -> str:
        """Errands of one group are done in one commit of its record. Nodes of a job concern the job as well."""
        if self.node is None:
            return f"job {self.job}"
        return f"nodes of {self.node.job_id}" if self.node.job_id else f"node {self.node.name}"


class Errands:
    """Does them, group by group."""

    def __init__(self, runtime: Runtime, adopter: Adopter, ready: Callable[[], None]) -> None:
        """`ready` returns when this process may write a record again."""
        self._runtime, self._adopter, self._ready = runtime, adopter, ready

    def do(self, errands: Sequence[Errand]) -> list[Answer | Exception]:
        """An answer for each of them, or why it failed.

        A group that fails is tried again one by one, so that a fact which can't be taken spoils no other.
        """
        groups: dict[str, list[int]] = {}
        for number in sorted(range(len(errands)), key=lambda number: errands[number].at):
            groups.setdefault(errands[number].group, []).append(number)
        answers: dict[int, Answer | Exception] = {}
        for name, numbers in groups.items():
            self._ready()
            some = [errands[number] for number in numbers]
            said = self._try(some)
            if isinstance(said[0], Exception) and len(some) > 1:
                log.warning(
                    "events tried one by one", extra={"group": name, "events": len(some), "why": str(said[0])}
                )
                said = [self._try([errand])[0] for errand in some]
            answers.update(zip(numbers, said, strict=True))
        return [answers[number] for number in range(len(errands))]

    def _try(self, errands: Sequence[Errand]) -> Sequence[Answer | Exception]:
        try:
            news = self._tell_job(errands) if errands[0].node is None else self._tell_nodes(errands)
        except (NotFound, NodesTaken) as exc:
            if errands[0].node is not None and len(errands) > 1:
                return [exc] * len(errands)
            return [Answer(errand.answer.kind, False, str(exc)) for errand in errands]
        except Exception as exc:  # noqa: BLE001 - whoever handed in the event hears of it
            return [exc] * len(errands)
        for errand in errands:
            errand.done()
        return [
            errand.answer if news else replace(errand.answer, why="nothing new")
            for errand, news in zip(errands, news, strict=True)
        ]

    def _tell_job(self, errands: Sequence[Errand]) -> list[bool]:
        job_id, facts = errands[0].job, [fact for errand in errands for fact in errand.facts]
        try:
            self._runtime.handle(job_id, facts)
        except ForeignRecord as exc:
            if any(errand.answer.kind != Kind.TASK for errand in errands):
                raise
            self._adopter.adopt(exc.row, self._runtime.since(errands[-1].at))
            self._runtime.handle(job_id, facts)
        return [True] * len(errands)

    def _tell_nodes(self, errands: Sequence[Errand]) -> list[bool]:
        """Only what is news to a node is told, with all that follows it: the last word must stand. The rest, and that
        is most of it, costs nothing more."""
        told: dict[str, tuple[Node, list[Fact]]] = {}
        news = []
        for errand in errands:
            assert errand.node is not None
            node, facts = told.get(errand.node.name, (errand.node, []))
            fresh = list(errand.facts) if facts else list(self._fresh(node, errand.facts))
            if errand.proof is not None:
                fresh = [*errand.facts, *errand.proof(node)]
            news.append(bool(fresh))
            if fresh:
                told[node.name] = (node, [*facts, *fresh])
        if told:
            self._runtime.handle_nodes(told.values())
        return news

    def _fresh(self, node: Node, facts: Iterable[Fact]) -> Iterable[Fact]:
        """A job that holds the node decides by itself whether its machine has registered anew."""
        for fact in facts:
            anew = isinstance(fact, NodeSeen) and fact.succeeds(node)
            if anew or decide_node(node, fact, self._runtime.policy).changed:
                yield fact
