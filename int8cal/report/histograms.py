"""Statistics -> the histograms that report.html draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.calibration.choose import candidates
from int8cal.evaluation.result import TensorHistogram
from int8cal.numerics.loglinear import linear_histogram

if TYPE_CHECKING:
    from collections.abc import Mapping

    from int8cal.calibration.statistics import TensorStatistics
    from int8cal.calibration.table import CalibrationTable
    from int8cal.job import ActivationType

# fine enough that a tail of a hundredth of the range still has bins of its own when the page zooms in
BINS = 512


def tensor_histograms(
    tensors: Mapping[str, TensorStatistics], table: CalibrationTable, activations: ActivationType, percentile: float
) -> tuple[TensorHistogram, ...]:
    """Return one histogram per table entry that has statistics, with the range that each method would choose."""
    result = []
    for name, entry in table.tensors.items():
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
                candidates=candidates(histogram, activations, percentile),
            )
        )
    return tuple(result)
