"""The geometry of the plots: numbers in, coordinates out. The templates turn them into SVG.

Drawn by hand rather than by a plotting library, because a page with a hundred histograms then stays below 1 MB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from int8cal.evaluation.result import TensorHistogram

# The histogram's drawing area in SVG units; the page scales the whole.
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 520, 66, 508, 8, 118
AXIS = 20
ROW = 15
# Above, two layers differ by nothing that anybody would act on, and one exact layer would flatten all others.
DECIBEL_CAP = 60.0


@dataclass(frozen=True)
class Tick:
    """A place on an axis and what stands there."""

    at: float
    label: str


@dataclass(frozen=True)
class RangeRow:
    """One method's clip range, as a line below the histogram; `low` and `high` in SVG units, `text` the values."""

    method: str
    low: float
    high: float
    y: float
    text: str
    chosen: bool


@dataclass(frozen=True)
class HistogramChart:
    """A histogram of log counts, cut at the chosen range: one outline of what is kept, one of what is clipped."""

    kept: str
    clipped: str
    low: float
    high: float
    height: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    ranges: tuple[RangeRow, ...]


@dataclass(frozen=True)
class Scale:
    """A linear axis from a value to percent of its length."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Percent of the axis, 0 to 100, for a value; what lies outside goes to the nearer end."""
        return round(100 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0), 2)

    def ticks(self, most: int = 6) -> tuple[Tick, ...]:
        """Round numbers along the axis, at most about `most` of them."""
        return tuple(Tick(self.at(value), f"{value:.6g}") for value in nice_values(self.low, self.high, most))


def decibel_scale(values: Sequence[float]) -> Scale:
    """Make an axis for SQNR in dB: from 0, or the ten below the worst layer, to the ten above the best or the cap."""
    low = min(0.0, 10 * math.floor(min(values, default=0.0) / 10))
    best = min(max(values, default=0.0), DECIBEL_CAP)
    return Scale(low, max(0.0 if low < 0 else 10.0, 10 * math.ceil(best / 10)))


def interval_scale(values: Iterable[float]) -> Scale:
    """Make an axis for a drop and its interval; 0 is always on it, with room at both ends."""
    points = [0.0, *values]
    low, high = min(points), max(points)
    room = 0.1 * (high - low) or 1.0
    return Scale(low - room, high + room)


def nice_values(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two finite numbers, low < high."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10, 20) if (high - low) / (step * factor) <= most)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def histogram_chart(histogram: TensorHistogram) -> HistogramChart | None:
    """Lay out one tensor's histogram.

    Args:
        histogram: len(edges) == len(counts) + 1, edges ascending, in the tensor's real units.

    Returns:
        The chart in SVG units, or None when there is nothing to draw (no counts, edges or range not finite).
    """
    edges, counts = histogram.edges, histogram.counts
    if not counts or len(edges) != len(counts) + 1 or sum(counts) <= 0:
        return None
    if not all(math.isfinite(value) for value in (*edges, histogram.low, histogram.high)):
        return None
    low, high = min(edges[0], histogram.low), max(edges[-1], histogram.high)
    if not high > low:
        # A constant tensor: give its one bar a width.
        low, high = low - (abs(low) or 1.0), high + (abs(high) or 1.0)
    x = axis(low, high, LEFT, RIGHT)
    top = max(math.log10(1 + max(counts)), 1.0)
    y = axis(0.0, top, BOTTOM, TOP)
    inside = [histogram.low <= (edges[i] + edges[i + 1]) / 2 <= histogram.high for i in range(len(counts))]
    ranges = _ranges(histogram, x)
    return HistogramChart(
        kept=_outline(edges, [c if keep else 0 for c, keep in zip(counts, inside, strict=True)], x, y),
        clipped=_outline(edges, [0 if keep else c for c, keep in zip(counts, inside, strict=True)], x, y),
        low=x(histogram.low),
        high=x(histogram.high),
        height=BOTTOM + AXIS + ROW * len(ranges),
        x_ticks=tuple(Tick(x(value), f"{value:.5g}") for value in nice_values(low, high)),
        y_ticks=_count_ticks(top, y),
        ranges=ranges,
    )


def axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return the map from values between low and high to SVG units between start and end."""
    return lambda value: round(start + (end - start) * (value - low) / (high - low), 1)


def _count_ticks(top: float, y: Callable[[float], float]) -> tuple[Tick, ...]:
    """Powers of ten, thinned so that their labels do not touch; the axis is log10(1 + count), so 0 is on it."""
    step = 1 + math.floor(top) // 5
    powers = range(step if step > 1 else 0, math.floor(top) + 1, step)
    return tuple(Tick(y(math.log10(1 + 10**power)), _short_count(10**power)) for power in powers)


def _short_count(count: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count // size}{letter}"
    return str(count)


def _outline(
    edges: Sequence[float], counts: Sequence[int], x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    """Draw the steps over the bins as an SVG path; runs of equal height become one step, empty bins a gap."""
    base = _short(y(0.0))
    parts: list[str] = []
    previous = 0
    for index, count in enumerate([*counts, 0]):
        if count == previous:
            continue
        if previous:
            parts.append(f"H{_short(x(edges[index]))}")
        else:
            parts.append(f"M{_short(x(edges[index]))} {base}")
        parts.append(f"V{_short(y(math.log10(1 + count)))}" if count else f"V{base}")
        previous = count
    return "".join(parts)


def _ranges(histogram: TensorHistogram, x: Callable[[float], float]) -> tuple[RangeRow, ...]:
    """Put the chosen range first, then the other methods' ranges that were looked at."""
    others = [(name, *bounds) for name, bounds in histogram.candidates.items() if name != histogram.method]
    rows = [(histogram.method, histogram.low, histogram.high), *others]
    finite = [(name, low, high) for name, low, high in rows if math.isfinite(low) and math.isfinite(high)]
    return tuple(
        RangeRow(
            method=name,
            # Ranges of methods that were not chosen may reach beyond the axis; they end at its ends.
            low=min(max(x(low), LEFT), RIGHT),
            high=min(max(x(high), LEFT), RIGHT),
            y=BOTTOM + AXIS + ROW * row + 6,
            text=f"{low:.5g} to {high:.5g}",
            chosen=row == 0,
        )
        for row, (name, low, high) in enumerate(finite)
    )


def _short(value: float) -> str:
    return f"{value:g}"
