"""Plain SVG charts for the generated pages. Nothing to install; readable on white and in black and white."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

GOOD, BAD, PLAIN, GRID, INK = "#2a7d53", "#b5452c", "#3f78b0", "#d9dee3", "#22282e"
_FONT = 'font-family="system-ui, sans-serif" font-size="13"'


def bars(title: str, rows: Sequence[tuple[str, float]], *, unit: str = "") -> str:
    """Counts of very different size: one bar each on a logarithmic scale, longest first."""
    rows = sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])
    left, width, step = max([190, *(24 + 7 * len(name) for name, _ in rows)]), 520, 21
    top = ceil(log10(max((value for _, value in rows), default=10)))
    parts = []
    for power in range(top + 1):
        x = left + width * power / top
        parts.append(_line(x, 40, x, 44 + step * len(rows)))
        parts.append(_text(x, 34, f"{10**power:,}", "middle", 11))
    for number, (name, value) in enumerate(rows):
        y = 46 + number * step
        length = max(2.0, width * log10(max(value, 1)) / top)
        parts.append(_text(left - 8, y + 12, name, "end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="15" fill="{PLAIN}"/>')
        parts.append(_text(left + length + 6, y + 12, f"{value:,.0f}{unit}", size=11))
    return page(title, left + width + 90, 56 + step * len(rows), parts)


def against_aims(title: str, rows: Sequence[tuple[str, float, str, bool]]) -> str:
    """Each number as a part of what it may be: the line at 1 is the aim. `rows`: name, part of the aim, label, met."""
    left, width, step = 270, 400, 23
    most = max([1.25, *(min(part, 2.0) for _, part, _, _ in rows)])
    one = left + width / most
    parts = [_text(one, 34, "the aim", "middle", 11)]
    for number, (name, part, label, met) in enumerate(rows):
        y = 44 + number * step
        length = max(2.0, width * min(part, most) / most)
        parts.append(_text(left - 8, y + 13, name, "end"))
        parts.append(
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="16" fill="{GOOD if met else BAD}"/>'
        )
        parts.append(_text(max(left + length, one) + 8, y + 13, label, size=11))
    parts.append(_line(one, 40, one, 46 + step * len(rows), INK))
    return page(title, 880, 60 + step * len(rows), parts)


def growth(title: str, points: Sequence[tuple[float, float]], across: str, up: str) -> str:
    """One curve on two logarithmic scales, every point with its number."""
    left, top, width, height = 86, 56, 500, 260
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = floor(log10(min(ys))), ceil(log10(max(ys)))
    span_x = log10(max(xs) / min(xs)) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + width * log10(x / min(xs)) / span_x,
            top + height * (1 - (log10(y) - low) / (high - low or 1)),
        )

    parts = []
    for power in range(low, high + 1):
        y = top + height * (1 - (power - low) / (high - low or 1))
        parts += [_line(left, y, left + width, y), _text(left - 8, y + 4, f"{10**power:,}", "end", 11)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    parts.append(f'<polyline points="{path}" fill="none" stroke="{PLAIN}" stroke-width="2"/>')
    for x, y in points:
        at_x, at_y = place(x, y)
        parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="4" fill="{PLAIN}"/>')
        parts.append(_text(at_x + 9, at_y + 15, f"{y:,.0f}", size=11))
        parts.append(_text(at_x, top + height + 18, f"{x:g}", "middle", 11))
    parts.append(_text(left + width / 2, top + height + 38, across, "middle"))
    parts.append(_text(left - 8, top - 14, up, "end", 11))
    return page(title, 640, top + height + 52, parts)


def page(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" {_FONT}>'
        f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>'
        f'<text x="12" y="18" font-weight="600" fill="{INK}">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = GRID) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, said: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}">{escape(said)}</text>'
