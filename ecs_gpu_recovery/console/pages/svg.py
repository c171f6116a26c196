"""Pictures made of numbers: the state diagram with the current state lit, and the attempts over time.

The moves come from `core.edges`, so a move that is added there is drawn here; only the places are chosen by
hand. Nothing carries a style of its own: classes say what a thing is, the style sheet how it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import copysign, hypot

from markupsafe import Markup, escape

from ...core.edges import JOB, NEW
from ...core.model import Entry, Job, JobStatus, NodeStatus
from ...report import Phase, Stretch
from .labels import NODE_LABELS

_WIDTH, _HEIGHT = 150.0, 46.0
#: The four waits form the recovery's circle, clockwise; the ends that all of them can reach are inside it.
PLACES: dict[str, tuple[float, float]] = {
    NEW: (345, 16),
    JobStatus.COMPLETE: (82, 86),
    JobStatus.IN_PROGRESS: (270, 86),
    JobStatus.PENDING_HEALTHCHECK: (600, 86),
    JobStatus.PENDING_RESTART: (600, 346),
    JobStatus.RESTARTING: (270, 346),
    JobStatus.FAILED: (435, 176),
    JobStatus.USER_STOPPED: (435, 260),
}
VIEW = (684, 376)
#: A node's: the round through a job and its repair, clockwise. What can happen to it in any state is not drawn.
NODE_PLACES: dict[str, tuple[float, float]] = {
    NodeStatus.UNKNOWN: (82, 30),
    NodeStatus.AVAILABLE: (256, 30),
    NodeStatus.ASSIGNED: (430, 30),
    NodeStatus.IN_PROGRESS: (604, 140),
    NodeStatus.PENDING: (604, 240),
    NodeStatus.PENDING_HEALTHCHECK: (430, 140),
    NodeStatus.REBOOTING: (343, 240),
    NodeStatus.FAILED: (82, 140),
}
NODE_VIEW = (684, 270)
_N = NodeStatus
NODE_LIFE = frozenset(
    {
        (_N.UNKNOWN, _N.AVAILABLE),
        (_N.UNKNOWN, _N.PENDING_HEALTHCHECK),
        (_N.AVAILABLE, _N.ASSIGNED),
        (_N.AVAILABLE, _N.PENDING_HEALTHCHECK),
        (_N.ASSIGNED, _N.IN_PROGRESS),
        (_N.IN_PROGRESS, _N.AVAILABLE),
        (_N.IN_PROGRESS, _N.PENDING),
        (_N.PENDING, _N.PENDING_HEALTHCHECK),
        (_N.PENDING_HEALTHCHECK, _N.AVAILABLE),
        (_N.PENDING_HEALTHCHECK, _N.REBOOTING),
        (_N.PENDING_HEALTHCHECK, _N.FAILED),
        (_N.REBOOTING, _N.PENDING_HEALTHCHECK),
        (_N.REBOOTING, _N.FAILED),
        (_N.FAILED, _N.AVAILABLE),
        (_N.FAILED, _N.PENDING_HEALTHCHECK),
        (_N.FAILED, _N.REBOOTING),
    }
)


@dataclass(frozen=True, slots=True)
class _Line:
    x1: float
    y1: float
    x2: float
    y2: float


def _border(
    center: tuple[float, float], aside: tuple[float, float], towards: tuple[float, float], *, dot: bool
) -> tuple[float, float]:
    """Where a line leaves a box, that begins so far aside of its centre and goes as from there to another."""
    dx, dy = towards[0] - center[0], towards[1] - center[1]
    if dot:
        length = hypot(dx, dy) or 1.0
        return center[0] + dx / length * 8, center[1] + dy / length * 8
    scale = min(
        (_WIDTH / 2 - copysign(aside[0], aside[0] * dx)) / abs(dx) if dx else 9e9,
        (_HEIGHT / 2 - copysign(aside[1], aside[1] * dy)) / abs(dy) if dy else 9e9,
    )
    return center[0] + aside[0] + dx * scale, center[1] + aside[1] + dy * scale


def _line(
    before: str, after: str, places: Mapping[str, tuple[float, float]], moves: Container[tuple[str, str]]
) -> _Line:
    a, b = places[before], places[after]
    aside = (0.0, 0.0)
    if (after, before) in moves:  # both ways: two lines side by side
        dx, dy = b[0] - a[0], b[1] - a[1]
        length = hypot(dx, dy) or 1.0
        aside = (-dy / length * 9, dx / length * 9)
    x1, y1 = _border(a, aside, b, dot=before == NEW)
    x2, y2 = _border(b, aside, a, dot=False)
    return _Line(x1, y1, x2, y2)


def _head(line: _Line) -> str:
    """The tip of the arrow, as the points of a triangle."""
    length = hypot(line.x2 - line.x1, line.y2 - line.y1) or 1.0
    ux, uy = (line.x2 - line.x1) / length, (line.y2 - line.y1) / length
    bx, by = line.x2 - ux * 9, line.y2 - uy * 9
    points = ((line.x2, line.y2), (bx - uy * 4.5, by + ux * 4.5), (bx + uy * 4.5, by - ux * 4.5))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def state_diagram(
    job: Job,
    label: Callable[[str], str],
    title: str,
    words: Callable[[str], str] = str,
    earlier: Iterable[Entry] = (),
) -> Markup:
    """All states and moves; those this job took are marked, and the state it is in is lit."""
    known = (*earlier, *job.timeline)
    taken = {(e.before, e.after) for e in known if e.subject == "job" and e.before != e.after}
    moves = {move: words(edge.why) for move, edge in JOB.items()}
    return _drawn(PLACES, VIEW, moves, taken, job.status, label, title)


def node_diagram(
    status: str, moves: Iterable[Mapping[str, str]], label: Callable[[str], str], title: str
) -> Markup:
    """The life of a node: the moves it took are marked, and the state it is in is lit."""
    taken = {(move["before"], move["after"]) for move in moves if move["before"] != move["after"]}
    life = {(a.value, b.value): f"{label(a)} → {label(b)}" for a, b in NODE_LIFE}
    return _drawn(NODE_PLACES, NODE_VIEW, life, taken, status, label, title)


def _drawn(
    places: Mapping[str, tuple[float, float]],
    view: tuple[int, int],
    moves: Mapping[tuple[str, str], str],
    taken: Collection[tuple[str, str]],
    now: str,
    label: Callable[[str], str],
    title: str,
) -> Markup:
    """Boxes at their places, and an arrow with its reason for each move."""
    been = {state for move in taken for state in move}
    parts = [
        f'<svg class="diagram" viewBox="0 0 {view[0]} {view[1]}" role="img" aria-label="{escape(title)}"'
        ' xmlns="http://www.w3.org/2000/svg">'
    ]
    for (before, after), why in sorted(moves.items(), key=lambda item: (item[0] in taken, item[0])):
        line = _line(before, after, places, moves)
        kind = "edge taken" if (before, after) in taken else "edge"
        parts.append(
            f'<g class="{kind}"><title>{escape(why)}</title><line x1="{line.x1:.1f}" y1="{line.y1:.1f}"'
            f' x2="{line.x2:.1f}" y2="{line.y2:.1f}"/><polygon points="{_head(line)}"/></g>'
        )
    for status, (x, y) in places.items():
        if status == NEW:
            parts.append(f'<circle class="begin" cx="{x}" cy="{y}" r="7"/>')
            continue
        kind = "now" if status == now else "been" if status in been else "other"
        left, top = x - _WIDTH / 2, y - _HEIGHT / 2
        parts.append(
            f'<g class="state {kind} s-{status}" data-state="{status}">'
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="10"/>'
            f'<text class="name" x="{x}" y="{y - 3}">{escape(label(status))}</text>'
            f'<text class="raw" x="{x}" y="{y + 14}">{status}</text></g>'
        )
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 (every text in it is escaped above)


#: Of a large job only so many nodes get a lane; those that something happened to come first.
MOST_LANES = 16
_EVENTFUL = frozenset({NodeStatus.REBOOTING, NodeStatus.FAILED, NodeStatus.UNKNOWN})
#: An attempt's number needs so much room, in hundredths of the width.
_ROOM = 9.0


@dataclass(frozen=True, slots=True)
class _Span:
    """From moments to places, in hundredths of the width: the picture is as wide as the page lets it be."""

    begin: datetime
    seconds: float

    def x(self, at: datetime) -> float:
        return min(1.0, max(0.0, (at - self.begin).total_seconds() / self.seconds)) * 100


def attempts_picture(
    found: Sequence[Phase], nodes: Mapping[str, Sequence[Stretch]], words: Callable[[str], str], title: str
) -> Markup:
    """The job's phases, and below them what each node did meanwhile, on one scale of time.

    Each line is a name and a picture of its own, so that words keep their size on every screen.
    """
    if not found:
        return Markup("")
    begin, end = found[0].start, max(found[-1].end, found[0].start)
    span = _Span(begin, max((end - begin).total_seconds(), 0.001))
    bars = []
    for phase in found:
        name = words(phase.name)
        bars.append(_bar(phase.status, span, phase, f"{name}: {duration(phase.seconds)}", name))
    names, lanes = (
        [f'<span class="job">{escape(words("Job"))}</span>'],
        [f'<svg class="job">{"".join(bars)}</svg>'],
    )
    for name in chosen_lanes(nodes):
        bars = []
        for stretch in nodes[name]:
            state = words(NODE_LABELS.get(stretch.status, stretch.status))
            bars.append(_bar(stretch.status, span, stretch, f"{name}: {state}, {duration(stretch.seconds)}"))
        names.append(f'<span class="lane" title="{escape(name)}">{escape(short(name))}</span>')
        lanes.append(f"<svg>{''.join(bars)}</svg>")
    marks = _attempt_marks(found, span, words("Attempt"))
    return Markup(  # noqa: S704 (every text in it is escaped above)
        f'<div class="attempts" role="img" aria-label="{escape(title)}"><div>{"".join(names)}</div>'
        f'<div class="plot">{marks}{"".join(lanes)}{_scale(span.seconds)}</div></div>'
    )


def power_picture(
    points: Mapping[float, float],
    most: float,
    shown: tuple[datetime, datetime],
    still: tuple[datetime, datetime] | None,
    marks: Sequence[datetime],
    title: str,
) -> Markup:
    """The power of a node's GPUs over time, on the scale of its whole gang: flat is seen as flat.

    The time in which they are known to stand still is shaded, and a line stands where the hang was seen.
    """
    span = _Span(shown[0], max((shown[1] - shown[0]).total_seconds(), 0.001))
    parts = []
    if still is not None:
        x, right = span.x(still[0]), span.x(still[1])
        parts.append(f'<rect class="still" x="{x:.1f}" width="{max(0.5, right - x):.1f}" height="24"/>')
    places = " ".join(
        f"{span.x(datetime.fromtimestamp(at, UTC)):.1f},{22 - 20 * value / (most or 1.0):.1f}"
        for at, value in sorted(points.items())
    )
    parts.append(f'<polyline points="{places}"/>' if places else "")
    parts += [
        f'<line class="seen" x1="{span.x(at):.1f}" x2="{span.x(at):.1f}" y1="0" y2="24"/>' for at in marks
    ]
    return Markup(  # noqa: S704 (every text in it is escaped)
        f'<svg class="power" viewBox="0 0 100 24" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def chosen_lanes(nodes: Mapping[str, Sequence[Stretch]]) -> list[str]:
    """The nodes that are drawn, in the order of the ranks."""
    known = [name for name, stretches in nodes.items() if stretches]
    if len(known) <= MOST_LANES:
        return known
    eventful = {name for name in known if any(s.status in _EVENTFUL for s in nodes[name])}
    first = sorted(known, key=lambda name: name not in eventful)[:MOST_LANES]
    return [name for name in known if name in first]


def short(name: str) -> str:
    """A name whose end tells as much as its beginning."""
    return name if len(name) <= 10 else f"{name[:2]}…{name[-6:]}"


def _bar(status: str, span: _Span, part: Phase | Stretch, told: str, label: str = "") -> str:
    x, right = span.x(part.start), span.x(part.end)
    inside = ""
    if label and right - x > 1.1 * len(label):  # cut off by its own frame where the page is too narrow for it
        inside = (
            f'<svg x="{x:.2f}%" width="{right - x:.2f}%"><text x=".5em" y="50%">{escape(label)}</text></svg>'
        )
    return (
        f'<g class="phase{" lane" if not label else ""} s-{status}"><title>{escape(told)}</title>'
        f'<rect x="{x:.2f}%" width="{max(0.2, right - x):.2f}%" height="100%" rx="3"/>{inside}</g>'
    )


def _attempt_marks(found: Sequence[Phase], span: _Span, word: str) -> str:
    """A line where each attempt begins, and its number where there is room for it."""
    begins = {phase.attempt: span.x(phase.start) for phase in reversed(found)}
    ends = {phase.attempt: span.x(phase.end) for phase in found}
    parts = []
    for attempt, x in begins.items():
        if attempt:
            parts.append(f'<line class="attempt" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="100%"/>')
        if ends[attempt] - x > _ROOM:
            parts.append(
                f'<text x="{x:.2f}%" dx="{".4em" if attempt else 0}" y="1em">{escape(word)} {attempt}</text>'
            )
    return f'<svg class="marks">{"".join(parts)}</svg>'


def _scale(seconds: float) -> str:
    """Five times; of them a small screen shows three."""
    kinds = {0: "first", 25: "between", 50: "", 75: "between", 100: "last"}
    tell: Callable[[float], str] = duration if seconds >= 20 else "{:.1f} s".format
    marks = (
        f'<text class="{kind}" x="{x}%" y="1em">{tell(x / 100 * seconds)}</text>' for x, kind in kinds.items()
    )
    return f'<svg class="scale">{"".join(marks)}</svg>'


def duration(seconds: float) -> str:
    """A time span in one or two units."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.0f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
