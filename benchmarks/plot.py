"""Plots for docs/, as SVG text: points with a line, and bars. Axes start at 0; the ticks are those of the reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from int8cal.report.charts import Scale, nice_values

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 380, 260  # of one panel
LEFT, RIGHT, TOP, BOTTOM = 56, 366, 44, 214
BAR = 24
LABELS = 270  # room for the bars' names
INK, FAINT, POINT, OTHER = "#222222", "#d8d8d8", "#1f5fa8", "#b0b7c0"
COLOURS = ("#8a5a2b", "#6b7280", "#2e7d5b", "#a04468", "#7a6f00", "#545b9c", "#9c5454")  # all but the own curve


@dataclass(frozen=True)
class Points:
    """One panel: (x, y) points, y >= 0, and perhaps a line (start, slope) with a note."""

    title: str
    points: tuple[tuple[float, float], ...]
    line: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar from 0 to `value`, with the range that was measured; `own` bars stand out."""

    label: str
    value: float
    low: float
    high: float
    own: bool = False


@dataclass(frozen=True)
class Curve:
    """One line: at each place of the axis (median, low, high), or None; the `own` curve stands out."""

    label: str
    values: tuple[tuple[float, float, float] | None, ...]
    own: bool = False


def curves(title: str, axis: str, places: Sequence[str], rows: Sequence[Curve]) -> str:
    """Draw lines over named places, each with its spread; this y axis does not start at 0.

    Args:
        title: Of the whole, with the unit of y.
        axis: What the places are.
        places: Names along x, at equal distances.
        rows: At least one curve, together at least one value; a curve has as many values as there are places.
    """
    known = [value for row in rows for value in row.values if value is not None]
    low, high = min(value[1] for value in known), max(value[2] for value in known)
    margin = 0.05 * (high - low) or 1.0
    y = Scale(low - margin, high + margin)
    right = LEFT + 400

    def across(index: int) -> float:
        return round(LEFT + 20 + (right - LEFT - 40) * index / max(len(places) - 1, 1), 1)

    def up(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * y.at(value) / 100, 1)

    parts = [_text(14, 18, title, size=14)]
    for value in nice_values(y.low, y.high):
        parts.append(f'<path d="M{LEFT} {up(value)}H{right}" stroke="{FAINT}"/>')
        parts.append(_text(LEFT - 6, up(value) + 4, f"{value:.6g}", anchor="end"))
    parts += [_text(across(index), BOTTOM + 16, place, anchor="middle") for index, place in enumerate(places)]
    parts.append(_text((LEFT + right) / 2, BOTTOM + 34, axis, anchor="middle"))
    # the names stand beside the ends of their lines, pushed apart where lines end together
    order = sorted(rows, key=lambda row: -next((value[0] for value in reversed(row.values) if value), low))
    for place, row in enumerate(order):
        colour = POINT if row.own else COLOURS[rows.index(row) % len(COLOURS)]
        beside = 3 * (place - (len(order) - 1) / 2)  # spreads would hide each other
        at = [(across(index) + beside, value) for index, value in enumerate(row.values) if value is not None]
        line = "L".join(f"{x} {up(value[0])}" for x, value in at)
        parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="{3 if row.own else 1.5}"/>')
        parts += [f'<path d="M{x} {up(value[1])}V{up(value[2])}" stroke="{colour}"/>' for x, value in at]
        parts += [f'<circle cx="{x}" cy="{up(value[0])}" r="3" fill="{colour}"/>' for x, value in at]
        name = round(TOP + (BOTTOM - TOP) * place / max(len(order) - 1, 1), 1)
        parts.append(f'<path d="M{at[-1][0] + 6} {up(at[-1][1][0])}L{right + 24} {name}" stroke="{FAINT}"/>')
        parts.append(f'<text x="{right + 28}" y="{name + 4}" font-size="12" fill="{colour}">{escape(row.label)}</text>')
    return _svg(right + 220, HEIGHT, title, parts)


def chart(title: str, axis: str, panels: Sequence[Points]) -> str:
    """Draw panels side by side.

    Args:
        title: Of the whole.
        axis: What x is.
        panels: At least one, each with at least one point.
    """
    parts = [_text(14, 18, title, size=14)]
    for index, panel in enumerate(panels):
        parts += [f'<g transform="translate({index * WIDTH} 0)">', *_panel(panel, axis), "</g>"]
    return _svg(WIDTH * len(panels), HEIGHT, title, parts)


def bars(title: str, axis: str, rows: Sequence[Bar]) -> str:
    """Draw horizontal bars, each with its figure and a thin line for its range."""
    x = Scale(0.0, 1.08 * max(row.high for row in rows))
    width, span = 760, 760 - LABELS - 60
    height = 52 + BAR * len(rows)

    def at(value: float) -> float:
        return round(LABELS + span * x.at(value) / 100, 1)

    parts = [_text(14, 18, title, size=14)]
    for value in nice_values(0.0, x.high):
        parts.append(f'<path d="M{at(value)} 30V{height - 20}" stroke="{FAINT}"/>')
        parts.append(_text(at(value), height - 6, f"{value:.6g}", anchor="middle"))
    parts.append(_text(LABELS - 8, height - 6, axis, anchor="end"))
    for index, row in enumerate(rows):
        y = 34 + BAR * index
        colour = POINT if row.own else OTHER
        parts.append(
            f'<rect x="{LABELS}" y="{y}" width="{at(row.value) - LABELS:.1f}" height="{BAR - 8}" fill="{colour}"/>'
        )
        parts.append(f'<path d="M{at(row.low)} {y + 8}H{at(row.high)}" stroke="{INK}"/>')
        parts.append(_text(LABELS - 8, y + 12, row.label, anchor="end"))
        parts.append(_text(at(row.high) + 6, y + 12, f"{row.value:.2f}"))
    return _svg(width, height, title, parts)


def _panel(panel: Points, axis: str) -> list[str]:
    x = Scale(0.0, 1.05 * max(point[0] for point in panel.points))
    y = Scale(0.0, 1.1 * max(point[1] for point in panel.points) or 1.0)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across, up = x.at(point[0]) / 100, y.at(point[1]) / 100
        return round(LEFT + (RIGHT - LEFT) * across, 1), round(BOTTOM - (BOTTOM - TOP) * up, 1)

    parts = [_text(LEFT, TOP - 8, f"{panel.title}{'; ' + panel.note if panel.note else ''}")]
    for value in nice_values(0.0, y.high):
        height = place((0.0, value))[1]
        parts.append(f'<path d="M{LEFT} {height}H{RIGHT}" stroke="{FAINT}"/>')
        parts.append(_text(LEFT - 6, height + 4, f"{value:.6g}", anchor="end"))
    parts += [
        _text(place((value, 0.0))[0], BOTTOM + 16, f"{value:.6g}", anchor="middle")
        for value in nice_values(0.0, x.high)
    ]
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 34, axis, anchor="middle"))
    if panel.line is not None:
        start, slope = panel.line
        ends = [place((value, start + slope * value)) for value in (0.0, x.high)]
        parts.append(
            f'<path d="M{ends[0][0]} {ends[0][1]}L{ends[1][0]} {ends[1][1]}" stroke="{OTHER}" stroke-width="2"/>'
        )
    for point in panel.points:
        across, up = place(point)
        parts.append(f'<circle cx="{across}" cy="{up}" r="4" fill="{POINT}"/>')
    return parts


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="sans-serif" fill="{INK}"><title>{escape(title)}</title>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])
