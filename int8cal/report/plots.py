"""What the page's script draws: histograms with every range that was looked at, and scales of single channels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.report.charts import LogScale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.evaluation.result import LayerWeights, TensorHistogram

# More channels than these are drawn in groups of neighbours, so that a page of a thousand wide layers stays small.
GROUPS = 128


@dataclass(frozen=True)
class Range:
    """A clip range that was looked at: its method, its values as text, and whether it is the chosen one."""

    method: str
    text: str
    chosen: bool


@dataclass(frozen=True)
class WeightRow:
    """The scales of one weight on the axis of all: places in percent, and how far they are apart."""

    anchor: int
    node: str
    op_type: str
    weight: str
    kind: str
    low: float
    middle: float
    high: float
    ratio: float
    spread: str
    text: str


def histogram_data(histogram: TensorHistogram) -> dict[str, Any] | None:
    """Return a tensor's histogram for the script.

    Args:
        histogram: len(edges) == len(counts) + 1, edges ascending, in the tensor's real units.

    Returns:
        {"edges", "counts", "lines": [[method, low, high, chosen]]}; edges are the two ends where bins are equally wide.
        None when there is nothing to draw (no counts, edges or range not finite).
    """
    edges, counts = histogram.edges, histogram.counts
    if not counts or len(edges) != len(counts) + 1 or sum(counts) <= 0:
        return None
    if not all(math.isfinite(value) for value in (*edges, histogram.low, histogram.high)):
        return None
    low, high = edges[0], edges[-1]
    if not high > low:  # a constant tensor: its bins get a width
        edges = tuple(np.linspace(low - (abs(low) or 1.0), high + (abs(high) or 1.0), len(edges)).tolist())
        low, high = edges[0], edges[-1]
    even = np.allclose(edges, np.linspace(low, high, len(edges)), rtol=0.0, atol=1e-6 * (high - low) / len(counts))
    lines = [[name, *bounds, chosen] for name, *bounds, chosen in _lines(histogram)]
    return {"edges": [low, high] if even else list(edges), "counts": list(counts), "lines": lines}


def ranges_of(histogram: TensorHistogram) -> list[Range]:
    """Return the chosen range, then those of the other methods."""
    return [Range(name, f"{low:.5g} to {high:.5g}", chosen) for name, low, high, chosen in _lines(histogram)]


def _lines(histogram: TensorHistogram) -> list[tuple[str, float, float, bool]]:
    chosen = (histogram.method, histogram.low, histogram.high, True)
    others = [
        (name, low, high, False)
        for name, (low, high) in histogram.candidates.items()
        # of a tensor that shares its scale, the method alone might have chosen another range
        if name != histogram.method or not np.allclose((low, high), chosen[1:3], rtol=1e-3, atol=0.0)
    ]
    return [line for line in (chosen, *others) if math.isfinite(line[1]) and math.isfinite(line[2])]


def weights_data(weights: LayerWeights) -> dict[str, Any]:
    """Return the scales of one weight for the script.

    Returns:
        {"step": channels per point, "low": [...], "high": [...]}: smallest and largest scale of each point, three
        significant digits; the two are the same list, left out, where a point is one channel.
    """
    scales = weights.entry.scales
    step = -(-len(scales) // GROUPS) or 1
    groups = [scales[start : start + step] for start in range(0, len(scales), step)]
    low, high = ([_short(end(group)) for group in groups] for end in (min, max))
    return {"step": step, "count": len(scales), "low": low} | ({"high": high} if step > 1 else {})


def weight_scale(all_weights: Sequence[LayerWeights]) -> LogScale | None:
    """Make one axis for the scales of all weights; None where there are none."""
    scales = [scale for weights in all_weights for scale in weights.entry.scales if scale > 0]
    if not scales:
        return None
    return LogScale(min(scales) / 1.25, max(scales) * 1.25)


def weight_rows(all_weights: Sequence[LayerWeights], scale: LogScale | None) -> list[WeightRow]:
    """Place each weight's scales on the axis of all, those that are furthest apart first."""
    rows = []
    for anchor, weights in enumerate(all_weights):
        scales = [value for value in weights.entry.scales if value > 0]
        if not scales or scale is None:
            continue
        low, middle, high = min(scales), float(np.median(scales)), max(scales)
        number = len(scales)
        axis = "per tensor" if weights.entry.axis is None else f"axis {weights.entry.axis}"
        rows.append(
            WeightRow(
                anchor=anchor,
                node=weights.node,
                op_type=weights.op_type,
                weight=weights.weight,
                kind=f"{weights.entry.dtype} {weights.entry.range}",
                low=scale.at(low),
                middle=scale.at(middle),
                high=scale.at(high),
                ratio=high / low,
                spread=f"×{high / low:.3g}",  # noqa: RUF001 (a ratio)
                text=f"{number} scale{'' if number == 1 else 's'} ({axis}), {low:.3g} to {high:.3g}, "
                f"median {middle:.3g}",
            )
        )
    return sorted(rows, key=lambda row: -row.ratio)


def _short(value: float) -> float:
    return float(f"{value:.3g}")
