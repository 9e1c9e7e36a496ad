"""Histograms with the ranges that were looked at, and scales of weights: from a calibration to what the page draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.calibration.ranges import candidates
from int8cal.evaluation.result import LayerScales, TensorHistogram
from int8cal.numerics.loglinear import linear_histogram
from int8cal.phrases import counted
from int8cal.report.charts import LogScale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.graph.plan import Plan
    from int8cal.job import ActivationType
    from int8cal.quantization.table import CalibrationTable
    from int8cal.report.document import Document, WeightScales

# fine enough that a tail of a hundredth of the range still has bins of its own when the page zooms in
BINS = 512
# More channels than these are drawn in groups of neighbours, so that a page of a thousand wide layers stays small.
GROUPS = 128


def tensor_histograms(
    tensors: Mapping[str, TensorStatistics],
    table: CalibrationTable,
    activations: ActivationType,
    percentile: float,
    known: Mapping[str, tuple[tuple[float, float], ...]],
) -> tuple[TensorHistogram, ...]:
    """Return one histogram per table entry that has statistics, with the range that each method would choose.

    Args:
        tensors: Statistics by full name.
        table: The table.
        activations, percentile: As for `calibration.ranges.choose`.
        known: Ranges of the methods where they were chosen from already, see `calibration.ranges.Ranges.methods`.
    """
    result = []
    for name, entry in table.every_tensor.items():
        if name not in tensors:
            continue  # raw pixels: their range was not chosen
        histogram = tensors[name].histogram
        low, high = histogram.observed
        if high <= low:
            low, high = min(low, 0.0), max(high, 0.0) if high != low or high else 1.0
        if high <= low:
            high = low + 1.0
        edges = np.linspace(low, high, BINS + 1)
        result.append(
            TensorHistogram(
                tensor=name,
                edges=tuple(edges.tolist()),
                counts=tuple(linear_histogram(histogram, edges).tolist()),
                low=entry.low,
                high=entry.high,
                method=entry.method,
                candidates=candidates(histogram, activations, percentile, known.get(name, ())),
            )
        )
    return tuple(result)


def layer_scales(plan: Plan, table: CalibrationTable) -> tuple[LayerScales, ...]:
    """Return the scales of every weight that the int8 model was built with: of layers, recurrent nodes, embeddings."""
    found = list(_weights_of(plan, table, ""))
    for path, body in plan.bodies.items():
        if path in table.bodies:
            found += _weights_of(body.plan, table.bodies[path], f"{path}/")
    return tuple(found)


def _weights_of(plan: Plan, table: CalibrationTable, place: str) -> Iterator[LayerScales]:
    named = [(layer.node, layer.op_type, layer.weight, layer.output) for layer in plan.weighted]
    named += [(each.node, each.op_type, name, "") for each in plan.recurrent for name in each.tensors]
    named += [(each.node, each.op_type, each.weight, "") for each in plan.embeddings]
    keyed = [(row, plan.weight_key(row[0], row[2])) for row in named]
    # a recurrent node or an embedding that stays float has no entry
    for (node, op_type, weight, output), key in keyed:
        if key in table.weights:
            names = [f"{place}{name}" if name else "" for name in (node, weight, output)]
            yield LayerScales(names[0], op_type, names[1], names[2], table.weights[key])


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


def ranges_of(histogram: TensorHistogram) -> list[tuple[str, str, bool]]:
    """Return the chosen range, then those of the other methods: the method, the range as text, whether it is chosen."""
    return [(name, f"{low:.5g} to {high:.5g}", chosen) for name, low, high, chosen in _lines(histogram)]


def _lines(histogram: TensorHistogram) -> list[tuple[str, float, float, bool]]:
    chosen = (histogram.method, histogram.low, histogram.high, True)
    others = [
        (name, low, high, False)
        for name, (low, high) in histogram.candidates.items()
        # of a tensor that shares its scale, the method alone might have chosen another range
        if name != histogram.method or not np.allclose((low, high), chosen[1:3], rtol=1e-3, atol=0.0)
    ]
    return [line for line in (chosen, *others) if math.isfinite(line[1]) and math.isfinite(line[2])]


def weights_data(weights: LayerScales) -> dict[str, Any]:
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


def weight_rows(document: Document) -> list[tuple[int, WeightScales]]:
    """Choose the weights whose scales can be drawn, each with its number; those that are furthest apart first."""
    rows = [(number, weights) for number, weights in enumerate(document.weights) if weights.spread is not None]
    return sorted(rows, key=lambda row: -(row[1].spread or 0.0))


def weight_scale(document: Document) -> LogScale | None:
    """Make one axis for the scales of all weights; None where there are none."""
    lows = [each.scale_min for each in document.weights if each.scale_min]
    highs = [each.scale_max for each in document.weights if each.scale_max]
    return LogScale(min(lows) / 1.25, max(highs) * 1.25) if lows and highs else None


def scales_text(weights: WeightScales) -> str:
    """Say how many scales a weight has, along what, and how they are spread."""
    axis = "per tensor" if weights.axis is None else f"axis {weights.axis}"
    spread = f"{weights.scale_min:.3g} to {weights.scale_max:.3g}, median {weights.scale_median:.3g}"
    return f"{counted(weights.scales, 'scale')} ({axis}), {spread}"


def _short(value: float) -> float:
    return float(f"{value:.3g}")
