"""The two thresholds that need no search: the observed range, and percentiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from int8cal.numerics.loglinear import Histogram


def max_range(histogram: Histogram) -> tuple[float, float]:
    """Return the observed (min, max): nothing is clipped."""
    return histogram.observed


def percentile_range(histogram: Histogram, percent: float) -> tuple[float, float]:
    """Clip so that `percent` of the values stay inside, the rest shared by both tails.

    Args:
        histogram: The tensor's values.
        percent: In (0, 100]; 100 is the observed range.

    Returns:
        (low, high) in real units. A tensor that is >= 0 (or <= 0) is clipped at its one far end only.
    """
    low, high = histogram.observed
    outside = (100.0 - percent) / 100.0
    if low >= 0.0:
        return low, _quantile(histogram, 1.0 - outside)
    if high <= 0.0:
        return _quantile(histogram, outside), high
    return _quantile(histogram, outside / 2), _quantile(histogram, 1.0 - outside / 2)


def _quantile(histogram: Histogram, fraction: float) -> float:
    """Return the value below which `fraction` of the values lie, linear inside a bin."""
    cumulative = histogram.cumulative
    target = fraction * float(cumulative[-1])
    # counts are integers, so comparing with the next integer is the same, and spares a copy in floats
    index = min(int(np.searchsorted(cumulative, np.int64(math.ceil(target)), side="left")), len(cumulative) - 1)
    before = cumulative[index] - histogram.counts[index]
    share = (target - before) / histogram.counts[index]
    return float(histogram.low[index] + np.clip(share, 0.0, 1.0) * (histogram.high[index] - histogram.low[index]))
