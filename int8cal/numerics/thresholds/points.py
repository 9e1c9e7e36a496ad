"""A histogram as weighted points: what ranges are compared on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.numerics.compiled import compiled
from int8cal.numerics.loglinear import linear_histogram

if TYPE_CHECKING:
    from int8cal.numerics.loglinear import Histogram

Float64 = npt.NDArray[np.float64]
Points = tuple[Float64, Float64]  # values and weights

# Points are linear bins in windows around 0, each a quarter as wide as the one before: a tensor with an outlier may be
# clipped to a small part of its range, and the rounding error there needs points finer than that range's steps.
RESOLUTION = 2048  # points per window: 8 per step of a range that fills it
WINDOWS = 4.0 ** -np.arange(5)


def points_of(histogram: Histogram) -> Points:
    """Resample a histogram to weighted points: (values, weights), float64 (M,); zeros stay exact zeros, at the end."""
    low, high = min(histogram.observed[0], 0.0), max(histogram.observed[1], 0.0)
    if high <= low:
        return np.zeros(1), np.array([float(histogram.total)])
    edges = np.empty(WINDOWS.size * (RESOLUTION + 1))
    edges = edges[: _merge(low * WINDOWS, high * WINDOWS, RESOLUTION, edges)]
    counts = linear_histogram(histogram.nonzero, edges)
    used = np.flatnonzero(counts)
    points = (edges[used] + edges[used + 1]) / 2
    zeros = histogram.total - histogram.nonzero.total
    return np.append(points, 0.0), np.append(counts[used].astype(np.float64), float(zeros))


def _merge_loop(starts: Any, stops: Any, bins: Any, edges: Any) -> Any:
    # the edges of linspace(start, stop, bins + 1) of all windows, ascending, each once
    windows = starts.size
    steps = np.empty(windows)
    heads = starts.copy()
    places = np.zeros(windows, np.int64)
    for k in range(windows):
        steps[k] = (stops[k] - starts[k]) / bins
    filled = 0
    while True:
        least = 0
        for k in range(1, windows):
            if heads[k] < heads[least]:
                least = k
        edge = heads[least]
        if edge == np.inf:
            return filled
        if filled == 0 or edge != edges[filled - 1]:
            edges[filled] = edge
            filled += 1
        place = places[least] + 1
        places[least] = place
        if place < bins:
            heads[least] = place * steps[least] + starts[least]
        else:
            heads[least] = stops[least] if place == bins else np.inf


def _merge_twin(starts: Float64, stops: Float64, bins: int, edges: Float64) -> int:
    merged = np.unique(np.linspace(starts, stops, bins + 1))
    edges[: merged.size] = merged
    return merged.size


_merge = compiled(_merge_loop, _merge_twin)
