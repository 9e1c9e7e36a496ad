"""The pictures that report.html holds as SVG: numbers in, coordinates out.

Histograms and scales of single channels are not here: the page's script draws them when they come into view.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from int8cal.evaluation.result_parts import ends
from int8cal.phrases import counted
from int8cal.report import wording
from int8cal.report.reading import is_guessed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from int8cal.evaluation.result import MixedPoint, MixedPrecision
    from int8cal.report.document import Document

# A picture's drawing area in SVG units; the page scales the whole. Narrow, so that text stays readable on a telephone.
LEFT, RIGHT, TOP, BOTTOM = 48, 384, 20, 168
LABEL = 70
# Above, two layers differ by nothing that anybody would act on, and one exact layer would flatten all others.
DECIBEL_CAP = 60.0
# Values of x that are as good as 0: no axis is made for what a few of the smallest floats could not divide.
_NOTHING = 1e-9


@dataclass(frozen=True)
class Tick:
    """A place on an axis and what stands there."""

    at: float
    label: str


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


@dataclass(frozen=True)
class LogScale:
    """A logarithmic axis from a value above 0 to percent of its length."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Percent of the axis, 0 to 100."""
        return round(100 * math.log(value / self.low) / math.log(self.high / self.low), 2)

    def ticks(self) -> tuple[Tick, ...]:
        """Powers of ten inside the axis, with 2 and 5 times them on a short one, at most about six."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        step = 1 + (last - first) // 7
        factors = (1, 2, 5) if last - first <= 2 else (1,)
        values = [factor * 10.0**power for power in range(first, last + 1, step) for factor in factors]
        return tuple(Tick(self.at(value), f"{value:g}") for value in values if self.low <= value <= self.high)


@dataclass(frozen=True)
class Dot:
    """A point of a picture.

    Attributes:
        x, y: Its values, then its place in SVG units.
        label, text: What stands beside it, on its right or `before` it, and what it says when pointed at.
        chosen: Whether it stands for the model that was written.
        span: Ends of its interval along y, None where there is none.
    """

    x: float
    y: float
    label: str
    text: str
    chosen: bool = False
    span: tuple[float, float] | None = None
    before: bool = False


@dataclass(frozen=True)
class Picture:
    """Dots over two linear axes, in SVG units; `line` joins them in order or is "", `marker` is a value of x."""

    dots: tuple[Dot, ...]
    line: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_label: str
    y_label: str
    marker: Tick | None = None


def picture(
    dots: Sequence[Dot],
    *,
    x_label: str,
    y_label: str,
    x_text: str = "{:g}",
    joined: bool = False,
    marker: tuple[float, str] | None = None,
) -> Picture:
    """Lay out measured points; the x axis begins at 0.

    Args:
        dots: At least one, finite, x >= 0.
        x_label, y_label, x_text: Names of the axes, and how ticks of x read.
        joined: Draw a line from each to the next.
        marker: A value of x with its label, drawn as a vertical line.
    """
    ends = [value for dot in dots for value in (dot.y, *(dot.span or ()))]
    low, high = min(ends), max(ends)
    room = 0.15 * (high - low) or 0.1 * abs(high) or 1.0
    farthest = max([dot.x for dot in dots] + ([marker[0]] if marker else []))
    last = 1.3 * farthest if farthest > _NOTHING else 1.0
    x, y = axis(0.0, last, LEFT, RIGHT), axis(low - room, high + room, BOTTOM, TOP)
    placed = tuple(
        replace(
            dot,
            x=x(dot.x),
            y=y(dot.y),
            span=dot.span and (y(dot.span[0]), y(dot.span[1])),
            before=any(0.0 <= x(other.x) - x(dot.x) < LABEL for other in dots if other is not dot),
        )
        for dot in dots
    )
    return Picture(
        dots=placed,
        line="M" + "L".join(f"{dot.x:g} {dot.y:g}" for dot in placed) if joined else "",
        x_ticks=tuple(Tick(x(value), x_text.format(value)) for value in nice_values(0.0, last, 5)),
        y_ticks=tuple(Tick(y(value), f"{value:.6g}") for value in nice_values(low - room, high + room, 5)),
        x_label=x_label,
        y_label=y_label,
        marker=None if marker is None else Tick(x(marker[0]), marker[1]),
    )


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


def axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return the map from values between low and high to SVG units between start and end."""
    return lambda value: round(start + (end - start) * (value - low) / (high - low), 1)


def speed_picture(document: Document) -> tuple[Picture | None, str]:
    """Draw accuracy over latency of both models.

    Returns:
        The picture and a sentence below it; None where one of both was not measured, of which other places say why.
        Top-1 accuracy where labels are known. Else the SQNR of the outputs, in which float32 is the reference and so
        has no point but a line at its latency.
    """
    latency, metrics = document.latency, document.metrics
    if latency is None or latency.fp32 is None or latency.int8 is None:
        return None, ""
    guess = is_guessed(latency)
    times = [f"{'perhaps ' if guess else ''}{wording.milliseconds(each)}" for each in (latency.fp32, latency.int8)]
    doubt = f"Both latencies are {document.why('latency_ms.speedup_ci95')}." if guess else ""
    top1 = metrics.top1
    if top1 is not None and top1.fp32 is not None and top1.int8 is not None:
        floats, codes = top1.fp32, top1.int8
        low, high = top1.drop_ci95  # in points
        span = None if low is None or high is None else (max(floats - high / 100, 0.0), min(floats - low / 100, 1.0))
        dots = [
            Dot(latency.fp32, floats, "float32", f"float32: {wording.fraction(floats)}, {times[0]}"),
            Dot(latency.int8, codes, "int8", f"int8: {wording.fraction(codes)}, {times[1]}", chosen=True, span=span),
        ]
        told = "The bar of int8 is where its accuracy lies with 95 % confidence, beside float32 on the same samples."
        told = " ".join(filter(None, (doubt, told if span else "")))
        return picture(dots, x_label="ms per sample", y_label="top-1"), told
    if metrics.sqnr_db is None:
        return None, ""
    span = ends(metrics.sqnr_db_ci95)
    pointed = f"int8: {wording.decibel(metrics.sqnr_db)}, {times[1]}"
    dot = Dot(latency.int8, metrics.sqnr_db, "int8", pointed, chosen=True, span=span)
    text = "SQNR is measured against float32, so float32 is a line, not a point."
    marker = (latency.fp32, f"float32, {times[0]}")
    told = " ".join(filter(None, (doubt, text)))
    return picture([dot], x_label="ms per sample", y_label="SQNR, dB", marker=marker), told


def curve_picture(curve: Sequence[MixedPoint]) -> Picture | None:
    """Draw SQNR over estimated time of the models that were evaluated; nothing where fewer than two have an SQNR."""
    dots = [
        Dot(point.estimated_percent, point.sqnr_db, "", _told(point), point.kept)
        for point in curve
        if point.sqnr_db is not None
    ]
    if len(dots) < 2:
        return None
    label = "estimated time beside the int8 model"
    return picture(dots, x_label=label, y_label="SQNR, dB", x_text="+{:g} %", joined=True)


def noise_picture(found: MixedPrecision) -> Picture | None:
    """Draw what each layer costs in float over what it adds to the noise; layers that cost nothing stay at 0."""
    dots = [
        Dot(
            max(layer.estimated_percent, 0.0),
            layer.contribution,
            "",
            f"{layer.node}: {layer.contribution:.3f} of the noise, "
            f"{layer.estimated_percent:+.1f} % estimated time, {layer.decision}",
        )
        for layer in found.layers
    ]
    label = "estimated time that float adds"
    return picture(dots, x_label=label, y_label="share of the noise", x_text="+{:g} %") if len(dots) > 1 else None


def _told(point: MixedPoint) -> str:
    left = counted(point.layers_left, "layer")
    kept = ", kept" if point.kept else ""
    return f"{left} in float, {point.estimated_percent:+.1f} % by estimate: {wording.decibel(point.sqnr_db)}{kept}"
