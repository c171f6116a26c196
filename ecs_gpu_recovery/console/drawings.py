"""Pictures made of numbers: the state diagram with the current state lit, and the attempts over time.

The moves come from `core.edges`, so a move that is added there is drawn here; only the places are chosen by
hand. Nothing carries a style of its own: classes say what a thing is, the style sheet how it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import hypot

from markupsafe import Markup, escape

from ..core.edges import JOB, NEW
from ..core.model import Job, JobStatus
from ..report import phases

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


def state_diagram(job: Job, label: Callable[[str], str], title: str) -> Markup:
    """All states and moves; those this job took are marked, and the state it is in is lit."""
    taken = {(e.before, e.after) for e in job.timeline if e.subject == "job" and e.before != e.after}
    been = {after for _, after in taken} | {before for before, _ in taken}
    parts = [
        f'<svg class="diagram" viewBox="0 0 {VIEW[0]} {VIEW[1]}" role="img" aria-label="{escape(title)}"'
        ' xmlns="http://www.w3.org/2000/svg">'
    ]
    for (before, after), edge in sorted(JOB.items(), key=lambda item: item[0] in taken):
        line = _line(before, after)
        kind = "edge taken" if (before, after) in taken else "edge"
        parts.append(
            f'<g class="{kind}"><title>{escape(edge.why)}</title><line x1="{line.x1:.1f}" y1="{line.y1:.1f}"'
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


_ROW, _LEFT, _RIGHT = 34.0, 96.0, 900.0


def attempts_picture(job: Job, now: datetime, words: Callable[[str], str], title: str) -> Markup:
    """One row per attempt, one bar per phase, on a common scale of time."""
    found = phases(job, now)
    if not found:
        return Markup("")
    begin, end = found[0].start, max(found[-1].end, found[0].start)
    span = max((end - begin).total_seconds(), 0.001)
    rows = sorted({p.attempt for p in found})
    height = _ROW * len(rows) + 24
    parts = [
        f'<svg class="attempts" viewBox="0 0 {_RIGHT:.0f} {height:.0f}" role="img"'
        f' aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">'
    ]
    for number, attempt in enumerate(rows):
        y = number * _ROW
        parts.append(f'<text class="row" x="0" y="{y + 20:.0f}">{escape(words("Attempt"))} {attempt}</text>')
        for phase in (p for p in found if p.attempt == attempt):
            x = _LEFT + (phase.start - begin).total_seconds() / span * (_RIGHT - _LEFT)
            width = max(2.0, phase.seconds / span * (_RIGHT - _LEFT))
            told = f"{words(phase.name)}: {phase.seconds:.1f} s"
            parts.append(
                f'<g class="phase s-{phase.status}"><title>{escape(told)}</title>'
                f'<rect x="{x:.1f}" y="{y + 4:.1f}" width="{width:.1f}" height="24" rx="4"/>'
                + (
                    f'<text x="{x + 6:.1f}" y="{y + 20:.1f}">{phase.seconds:.0f} s</text>'
                    if width > 44
                    else ""
                )
                + "</g>"
            )
    parts.append(_scale(span, height))
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 (every text in it is escaped above)


def _scale(span: float, height: float) -> str:
    parts = []
    for mark in (0, 0.25, 0.5, 0.75, 1):
        kind, x = "scale last" if mark == 1 else "scale", _LEFT + mark * (_RIGHT - _LEFT)
        parts.append(f'<text class="{kind}" x="{x:.0f}" y="{height - 4:.0f}">{duration(mark * span)}</text>')
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
