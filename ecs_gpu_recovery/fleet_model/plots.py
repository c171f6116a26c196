"""Two pictures as plain SVG: where the time goes, and how job size matters. Nothing to install."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log2

from .fleet import KINDS
from .study import Line

#: From good to bad; told apart by lightness too, for those who don't see the colours.
COLOURS = dict(
    zip(
        KINDS,
        ("#2a9d62", "#f2c14e", "#bcd9c7", "#7fb7e6", "#3f87c4", "#1d5b93", "#93a8ba", "#c8553d", "#6b2737"),
        strict=True,
    )
)
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'


def where_time_goes(lines: Sequence[Line]) -> str:
    """One bar per policy: all its time, by what it was spent on."""
    row, left, width = 22, 250, 560
    height = 66 + row * len(lines)
    parts = []
    for number, line in enumerate(lines):
        y, x = 56 + number * row, float(left)
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(line.title)}</text>')
        for kind in KINDS:
            share = line.shares[kind] * width
            if share > 0:
                title = f"<title>{escape(kind)} {line.shares[kind]:.1%}</title>"
                place = f'x="{x:.1f}" y="{y}" width="{share:.1f}" height="16"'
                parts.append(f'<rect {place} fill="{COLOURS[kind]}">{title}</rect>')
            x += share
        parts.append(f'<text x="{left + width + 6}" y="{y + 12}">{line.ettr.mean:.1%}</text>')
    return _page(880, height, _legend(12, 40) + "".join(parts), "Where the time goes")


def _legend(x: float, y: float) -> str:
    parts = []
    for kind in KINDS:
        parts.append(f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 14:.0f}" y="{y}" font-size="11">{escape(kind)}</text>')
        x += 30 + 6.2 * len(kind)
    return "".join(parts)


def by_job_size(points: Sequence[tuple[int, float, float]]) -> str:
    """Two curves over the number of nodes of a job: automatic and by hand."""
    left, top, width, height = 60, 40, 480, 260
    most = log2(max(size for size, _, _ in points) or 1) or 1.0

    def place(size: int, value: float) -> str:
        return f"{left + width * log2(size) / most:.1f},{top + height * (1 - value):.1f}"

    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + height * (1 - tick)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{tick:.0%}</text>')
    for size, _, _ in points:
        x = left + width * log2(size) / most
        parts.append(f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{size}</text>')
    for column, (colour, name) in enumerate((("#2a9d62", "automatic"), ("#c8553d", "by hand")), 1):
        path = " ".join(place(int(point[0]), float(point[column])) for point in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        end_x, end_y = place(int(points[-1][0]), float(points[-1][column])).split(",")
        parts.append(f'<text x="{float(end_x) + 6:.1f}" y="{end_y}" fill="{colour}">{name}</text>')
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 36}" text-anchor="middle">nodes of a job</text>'
    )
    return _page(640, top + height + 50, "".join(parts), "Effective training time by job size")


def _page(width: int, height: float, body: str, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" {_FONT}>'
        f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>'
        f'<text x="12" y="18" font-weight="600">{escape(title)}</text>{body}</svg>\n'
    )
