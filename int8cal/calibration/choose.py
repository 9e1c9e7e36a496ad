"""Statistics -> ranges: one affine per group of tensors that share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.numerics.affine import S8, SMALLEST_SCALE, U8, Affine, QType, affine_from_range
from int8cal.numerics.loglinear import linear_histogram
from int8cal.numerics.thresholds.entropy import BINS, entropy_threshold
from int8cal.numerics.thresholds.mse import mse_range, squared_error
from int8cal.numerics.thresholds.points import points_of
from int8cal.numerics.thresholds.simple import max_range, percentile_range

if TYPE_CHECKING:
    from int8cal.job import ActivationType, Method
    from int8cal.numerics.loglinear import Histogram
    from int8cal.numerics.thresholds.points import Points

METHODS: tuple[Method, ...] = ("max", "percentile", "kl", "mse")


@dataclass(frozen=True)
class Choice:
    """A chosen range: its affine, the method that chose it, and a warning or ""."""

    affine: Affine
    method: str
    warning: str = ""


def activation_type(activations: ActivationType) -> tuple[QType, bool]:
    """Return the integer type of activations and whether it is symmetric."""
    return (S8, True) if activations == "s8" else (U8, False)


def choose(histogram: Histogram, method: Method, activations: ActivationType, percentile: float) -> Choice:
    """Choose the affine of one tensor (or of a group's merged values).

    Args:
        histogram: Observed values.
        method: "auto" takes the candidate with the least expected squared error of the quantized values.
        activations: "u8" (zero point 0 where the tensor is >= 0, else asymmetric) or "s8" (symmetric).
        percentile: In percent, for method "percentile" and as a candidate of "auto".
    """
    dtype, symmetric = activation_type(activations)
    low, high = histogram.observed
    if low == high == 0.0:
        return Choice(affine_from_range(0.0, 0.0, dtype, symmetric=symmetric), "max", "only zeros were observed")
    if method != "auto":
        return _by_method(histogram, method, dtype, percentile, symmetric=symmetric)
    points = points_of(histogram)
    choices = _all_methods(histogram, dtype, percentile, points, symmetric=symmetric)
    errors = [squared_error(*points, choice.affine) for choice in choices]
    return choices[int(np.argmin(errors))]


def candidates(histogram: Histogram, activations: ActivationType, percentile: float) -> dict[str, tuple[float, float]]:
    """Return the range that each method would choose, for reports."""
    dtype, symmetric = activation_type(activations)
    choices = _all_methods(histogram, dtype, percentile, points_of(histogram), symmetric=symmetric)
    return {name: (choice.affine.low, choice.affine.high) for name, choice in zip(METHODS, choices, strict=True)}


def _all_methods(
    histogram: Histogram, dtype: QType, percentile: float, points: Points, *, symmetric: bool
) -> list[Choice]:
    return [_by_method(histogram, name, dtype, percentile, symmetric=symmetric, points=points) for name in METHODS]


def _by_method(
    histogram: Histogram,
    method: Method,
    dtype: QType,
    percentile: float,
    *,
    symmetric: bool,
    points: Points | None = None,
) -> Choice:
    warning = ""
    if method == "percentile":
        low, high = percentile_range(histogram, percentile)
        if low == high == 0.0:  # more exact zeros than the percentile keeps
            method, warning = "max", f"the {percentile:g} % percentile is 0, max is used"
            low, high = max_range(histogram)
    elif method == "mse":
        low, high = mse_range(histogram, dtype, symmetric=symmetric, points=points)
    elif method == "kl":
        found = kl_range(histogram, symmetric=symmetric)
        if found is None:
            method, warning = "max", "too few distinct values for kl, max is used"
            low, high = max_range(histogram)
        else:
            low, high = found
    else:
        low, high = max_range(histogram)
    affine = affine_from_range(low, high, dtype, symmetric=symmetric)
    if affine.scale == SMALLEST_SCALE:
        warning = f"all values are within {histogram.amax:.3g} of 0, where float32 ends: the smallest scale is used"
    return Choice(affine, method, warning)


def kl_range(histogram: Histogram, *, symmetric: bool = False) -> tuple[float, float] | None:
    """Clip at the entropy threshold t of |x|.

    Args:
        histogram: Observed values; exact zeros do not count.
        symmetric: The type is s8, whose half axis has 128 levels even where the tensor is one-sided.

    Returns:
        [max(min, -t), min(max, t)], or None for a degenerate histogram.
    """
    low, high = histogram.observed
    amax = histogram.amax
    width = amax / BINS
    counts = linear_histogram(histogram.nonzero, np.linspace(0.0, amax, BINS + 1), magnitude=True)
    one_sided = (low >= 0.0 or high <= 0.0) and not symmetric
    found = entropy_threshold(counts, 256 if one_sided else 128, width)
    if found is None:
        return None
    threshold, _ = found
    return max(low, -threshold), min(high, threshold)
