"""The search: every state that can be reached within the bounds, each judged, and each shown to come to an end.

Breadth first, so that a counterexample is as short as one can be. From every state two deterministic runs without
further faults must end: one in a lazy world, where only the sweeper and the clock move, and one in a friendly world,
where nodes come back and tasks finish.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ecs_gpu_recovery.core.errors import Bug

from . import monitors
from .bounds import Bounds
from .canon import digest
from .model import Model
from .monitors import Violation
from .moves import Move, moves
from .state import State

START = b""


@dataclass(slots=True)
class Result:
    """What a search has found."""

    bounds: Bounds
    states: int = 0
    transitions: int = 0
    depth: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    complete: bool = True  #: False where a limit cut the search short
    violation: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.states} states, {self.transitions} transitions, depth {self.depth}, {self.seconds:.1f} s"
            + ("" if self.complete else " (cut short)")
            + f": {self.bounds}",
            "  ended: " + ", ".join(f"{name} {count}" for name, count in sorted(self.ended.items())),
        ]
        if self.violation:
            lines += [
                f"  BROKEN: {self.violation}",
                *(f"  {n:3d}. {line}" for n, line in enumerate(self.trace, 1)),
            ]
        return "\n".join(lines)


class Search:
    """One search: exhaustive, unless a limit cuts it short."""

    def __init__(
        self,
        bounds: Bounds,
        *,
        model: Model | None = None,
        max_states: int | None = None,
        max_depth: int | None = None,
    ) -> None:
        self.model = model or Model(bounds)
        self.bounds = bounds
        self._max_states, self._max_depth = max_states, max_depth
        self._came: dict[bytes, tuple[bytes, str]] = {}
        self._lazy: dict[bytes, bytes] = {}
        self._kind: dict[bytes, bytes] = {}
        self._queue: deque[tuple[bytes, State, int]] = deque()
        self._result = Result(bounds)

    def run(self) -> Result:
        started = time.process_time()
        result = self._result
        try:
            self._explore()
            self._all_end()
        except _Found as found:
            result.violation = found.what
            result.trace = tuple(self._trace(found.at, found.then))
        result.states = len(self._came)
        result.seconds = time.process_time() - started
        return result

    # -- reach everything --------------------------------------------------------------------------------------

    def _explore(self) -> None:
        for _label in self._expand(START, Move("begin", self.model.begin), 0):
            pass
        while self._queue:
            if self._max_states and len(self._came) >= self._max_states:
                self._result.complete = False
                return
            name, state, depth = self._queue.popleft()
            if self._max_depth and depth >= self._max_depth:
                self._result.complete = False
                continue
            self._visit(name, state, depth)

    def _visit(self, name: bytes, state: State, depth: int) -> None:
        """Take every move. Remember which one a lazy and which one a friendly world would take."""
        ways: dict[str, bytes] = {}
        for move in moves(self.model, state):
            last = b""
            for reached in self._expand(name, move, depth + 1):
                last = reached
            if last and last != name:
                ways.setdefault("helps" if move.helps else move.kind, last)
        if not state.at_rest:
            clock = ways.get("sweep") or ways.get("advance") or b""
            finish = ways.get("finish", b"")
            self._lazy[name] = clock or ways.get("helps") or finish
            self._kind[name] = ways.get("helps") or finish or clock

    def _expand(self, name: bytes, move: Move, depth: int) -> Iterator[bytes]:
        """Take a move in all its outcomes; the last of them is the undisturbed one."""
        label = move.name
        try:
            for label, state in move.act():
                self._result.transitions += 1
                reached = digest(state, self.bounds)
                if reached not in self._came:
                    self._came[reached] = (name, label)
                    self._result.depth = max(self._result.depth, depth)
                    if state.at_rest:
                        monitors.at_rest(state, self.bounds)
                        ended = self._result.ended
                        ended[state.job.status.value] = ended.get(state.job.status.value, 0) + 1
                    self._queue.append((reached, state, depth))
                yield reached
        except (Violation, Bug) as exc:
            raise _Found(str(exc), name, label) from exc

    # -- everything ends ---------------------------------------------------------------------------------------

    def _all_end(self) -> None:
        for way, follow in (("lazy", self._lazy), ("friendly", self._kind)):
            good: set[bytes] = {name for name in self._came if name not in follow}
            for name in follow:
                self._chase(name, follow, good, way)

    def _chase(self, name: bytes, follow: dict[bytes, bytes], good: set[bytes], way: str) -> None:
        path: dict[bytes, None] = {}
        at = name
        while at not in good:
            if at in path:
                raise _Found(f"in a {way} world this goes round for ever", at, "")
            path[at] = None
            if not follow[at]:
                raise _Found(f"in a {way} world nothing more happens here", at, "")
            at = follow[at]
        good.update(path)

    # -- tell --------------------------------------------------------------------------------------------------

    def _trace(self, name: bytes, last: str) -> list[str]:
        labels = [last] if last else []
        while name != START:
            name, label = self._came[name]
            labels.append(label)
        return self._told(labels[::-1])

    def _told(self, labels: list[str]) -> list[str]:
        """Go the way once more, and say after each move where the job stands."""
        lines: list[str] = []
        state: State | None = None
        for label in labels:
            options = [Move("begin", self.model.begin)] if state is None else list(moves(self.model, state))
            state = _go(options, label)
            lines.append(label if state is None else f"{label}  ⇒  {describe(state)}")
            if state is None:
                break
        return lines


def _go(options: list[Move], label: str) -> State | None:
    for move in options:
        try:
            for found, state in move.act():
                if found == label:
                    return state
        except (Violation, Bug):
            continue
    return None


def describe(state: State) -> str:
    """The job in a line."""
    job = state.job
    ranks = " ".join(
        f"[{r.node} {r.node_status}"
        + (f" task {r.task_status}" if r.task_status else f" try {r.start_try}" if r.start_try else "")
        + (f" {r.exit}" if r.exit else "")
        + (f" verdict {r.verdict}" if r.verdict else "")
        + ("" if r.connected else " away")
        + "]"
        for r in job.ranks
    )
    pending = " ".join(order.key.partition("/")[2] for order in job.outbox)
    ending = f" ending as {job.ending.status}" if job.ending else ""
    return f"{job.status} attempt {job.attempt}{ending} {ranks}" + (f" outbox: {pending}" if pending else "")


class _Found(Exception):
    def __init__(self, what: str, at: bytes, then: str) -> None:
        self.what, self.at, self.then = what, at, then
        super().__init__(what)
