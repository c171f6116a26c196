"""Pictures made of numbers: the state diagram with the current state lit, and the attempts over time.

The moves come from `core.edges`, so a move that is added there is drawn here; only the places are chosen by
hand. Nothing carries a style of its own: classes say what a thing is, the style sheet how it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import hypot

from markupsafe import Markup, escape

from ..core.edges import JOB, NEW
from ..core.model import Entry, Job, JobStatus, NodeStatus
from ..report import Phase, Stretch
from .texts import NODE_LABELS

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


@dataclass(frozen=True, slots=True)
class _Line:
    x1: float
    y1: float
    x2: float
    y2: float


def _border(center: tuple[float, float], towards: tuple[float, float], *, dot: bool) -> tuple[float, float]:
    """Where a line from the centre of a box leaves it."""
    dx, dy = towards[0] - center[0], towards[1] - center[1]
    if dot:
        length = hypot(dx, dy) or 1.0
        return center[0] + dx / length * 8, center[1] + dy / length * 8
    scale = min(_WIDTH / 2 / abs(dx) if dx else 9e9, _HEIGHT / 2 / abs(dy) if dy else 9e9)
    return center[0] + dx * scale, center[1] + dy * scale


def _line(before: str, after: str) -> _Line:
    a, b = PLACES[before], PLACES[after]
    x1, y1 = _border(a, b, dot=before == NEW)
    x2, y2 = _border(b, a, dot=False)
    if (after, before) in JOB:  # both ways: two lines side by side
        length = hypot(x2 - x1, y2 - y1) or 1.0
        ox, oy = -(y2 - y1) / length * 9, (x2 - x1) / length * 9
        x1, y1, x2, y2 = x1 + ox, y1 + oy, x2 + ox, y2 + oy
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
    been = {after for _, after in taken} | {before for before, _ in taken}
    parts = [
        f'<svg class="diagram" viewBox="0 0 {VIEW[0]} {VIEW[1]}" role="img" aria-label="{escape(title)}"'
        ' xmlns="http://www.w3.org/2000/svg">'
    ]
    for (before, after), edge in sorted(JOB.items(), key=lambda item: item[0] in taken):
        line = _line(before, after)
        kind = "edge taken" if (before, after) in taken else "edge"
        parts.append(
            f'<g class="{kind}"><title>{escape(words(edge.why))}</title><line x1="{line.x1:.1f}" y1="{line.y1:.1f}"'
            f' x2="{line.x2:.1f}" y2="{line.y2:.1f}"/><polygon points="{_head(line)}"/></g>'
        )
    x, y = PLACES[NEW]
    parts.append(f'<circle class="begin" cx="{x}" cy="{y}" r="7"/>')
    for status in JobStatus:
        x, y = PLACES[status]
        kind = "now" if status is job.status else "been" if status in been else "other"
        left, top = x - _WIDTH / 2, y - _HEIGHT / 2
        parts.append(
            f'<g class="state {kind} s-{status}" data-state="{status}">'
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="10"/>'
            f'<text class="name" x="{x}" y="{y - 3}">{escape(label(status))}</text>'
            f'<text class="raw" x="{x}" y="{y + 14}">{status}</text></g>'
        )
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 (every text in it is escaped above)


_ROW, _LANE, _LEFT, _RIGHT, _TOP = 34.0, 22.0, 110.0, 900.0, 20.0
#: Of a large job only so many nodes get a lane; those that something happened to come first.
MOST_LANES = 16
_EVENTFUL = frozenset({NodeStatus.REBOOTING, NodeStatus.FAILED, NodeStatus.UNKNOWN})


@dataclass(frozen=True, slots=True)
class _Span:
    """From moments to places on the picture."""

    begin: datetime
    seconds: float

    def x(self, at: datetime) -> float:
        share = (at - self.begin).total_seconds() / self.seconds
        return _LEFT + min(1.0, max(0.0, share)) * (_RIGHT - _LEFT)


def attempts_picture(
    found: Sequence[Phase], nodes: Mapping[str, Sequence[Stretch]], words: Callable[[str], str], title: str
) -> Markup:
    """The job's phases, and below them what each node did meanwhile, on one scale of time."""
    if not found:
        return Markup("")
    begin, end = found[0].start, max(found[-1].end, found[0].start)
    span = _Span(begin, max((end - begin).total_seconds(), 0.001))
    chosen = chosen_lanes(nodes)
    bottom = _TOP + _ROW + _LANE * len(chosen)
    parts = [
        f'<svg class="attempts" viewBox="0 0 {_RIGHT:.0f} {bottom + 22:.0f}" role="img"'
        f' aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">',
        _attempt_marks(found, span, bottom, words("Attempt")),
        f'<text class="row" x="0" y="{_TOP + 20:.0f}">{escape(words("Job"))}</text>',
    ]
    for phase in found:
        told = f"{words(phase.name)}: {duration(phase.seconds)}"
        parts.append(
            _bar(phase.status, span.x(phase.start), span.x(phase.end), _TOP + 4, 24, told, words(phase.name))
        )
    for number, name in enumerate(chosen):
        y = _TOP + _ROW + number * _LANE
        parts.append(
            f'<text class="lane" x="0" y="{y + 14:.0f}">{escape(_short(name))}<title>{escape(name)}</title></text>'
        )
        for stretch in nodes[name]:
            told = f"{name}: {words(NODE_LABELS.get(stretch.status, stretch.status))}, {duration(stretch.seconds)}"
            parts.append(_bar(stretch.status, span.x(stretch.start), span.x(stretch.end), y + 4, 14, told))
    parts.append(_scale(span.seconds, bottom + 22))
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 (every text in it is escaped above)


def chosen_lanes(nodes: Mapping[str, Sequence[Stretch]]) -> list[str]:
    """The nodes that are drawn, in the order of the ranks."""
    known = [name for name, stretches in nodes.items() if stretches]
    if len(known) <= MOST_LANES:
        return known
    eventful = {name for name in known if any(s.status in _EVENTFUL for s in nodes[name])}
    first = sorted(known, key=lambda name: name not in eventful)[:MOST_LANES]
    return [name for name in known if name in first]


def _short(name: str) -> str:
    return name if len(name) <= 15 else f"{name[:7]}…{name[-7:]}"


def _bar(status: str, x: float, right: float, y: float, height: float, told: str, label: str = "") -> str:
    width = max(2.0, right - x)
    inside = ""
    if label and width > 7.2 * len(label) + 12:
        inside = f'<text x="{x + 6:.1f}" y="{y + height - 8:.1f}">{escape(label)}</text>'
    return (
        f'<g class="phase{" lane" if not label else ""} s-{status}"><title>{escape(told)}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.0f}" rx="3"/>{inside}</g>'
    )


def _attempt_marks(found: Sequence[Phase], span: _Span, bottom: float, word: str) -> str:
    """A line where each attempt begins, with its number; numbers that would overlap are left out."""
    parts, seen, last = [], set(), -999.0
    for phase in found:
        if phase.attempt in seen:
            continue
        seen.add(phase.attempt)
        x = span.x(phase.start)
        if phase.attempt:
            parts.append(f'<line class="attempt" x1="{x:.1f}" y1="2" x2="{x:.1f}" y2="{bottom:.0f}"/>')
        if x - last > 76:
            where, kind = (x + 4, "scale first") if x < _RIGHT - 80 else (x - 4, "scale last")
            parts.append(f'<text class="{kind}" x="{where:.1f}" y="12">{escape(word)} {phase.attempt}</text>')
            last = x
    return "".join(parts)


def _scale(span: float, height: float) -> str:
    parts = []
    for mark in (0, 0.25, 0.5, 0.75, 1):
        kind, x = ("scale last" if mark == 1 else "scale"), _LEFT + mark * (_RIGHT - _LEFT)
        parts.append(f'<text class="{kind}" x="{x:.0f}" y="{height - 6:.0f}">{duration(mark * span)}</text>')
    return "".join(parts)


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
