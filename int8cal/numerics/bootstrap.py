"""95 % interval of a mean of figures per sample by resampling, for figures of which nothing else is known."""

from __future__ import annotations

import statistics
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from int8cal.numerics.intervals import paired_interval, student_t95

if TYPE_CHECKING:
    from int8cal.numerics import Array, Float64

RESAMPLES = 4999
MOST = 20_000  # samples beyond which a mean is normal, and Student's interval is the same as ten seconds of drawing
_AT_ONCE = 1 << 22  # drawn indices that are held at a time: 32 MB


def paired_mean_interval(first: Float64, second: Float64) -> tuple[float, float] | None:
    """Interval of the mean difference of two figures of the same samples.

    Args:
        first, second: One finite figure per sample, (N,) each.

    Returns:
        (low, high) of mean(first - second), in the figures' unit; None for fewer than two samples.

    Numerics: figures that are all 0 or 1 are counts, and get the score interval of paired proportions (`intervals`), in
    which few samples or none that differ do not pass for certainty. All others get a bootstrap over the samples'
    differences; see `mean_interval`.
    """
    samples = len(first)
    if samples < 2:
        return None
    if all(np.isin(each, (0.0, 1.0)).all() for each in (first, second)):
        return paired_interval(int((first > second).sum()), int((second > first).sum()), samples)
    return mean_interval(first - second)


def mean_interval(values: Float64) -> tuple[float, float] | None:
    """Interval of a mean over the choice of samples.

    Args:
        values: Finite, (N,).

    Returns:
        (low, high); None for fewer than two values. It is a point where all values are equal.

    Numerics: expanded percentile bootstrap (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", 5.3). The
    plain percentile interval is too short by the factor sqrt((N - 1) / N) and for want of Student's t; the percentiles
    of this one are moved outwards by as much. Measured coverage in 1,000 trials, with 10, 20 and 50 samples: normal 94,
    95, 95 %; differences of log-normal figures (sigma 0.8) 96, 93, 95 %; figures of which four fifths are 0 and the
    others log-normal 79, 83, 88 %. The plain percentile interval covered 89, 92, 94 %; 90, 90, 95 %; 75, 81, 87 %.
    Where few samples differ, no interval can know what was not seen.
    """
    samples = len(values)
    if samples < 2:
        return None
    centre = float(values.mean())
    if (values == values[0]).all():
        return centre, centre
    if samples > MOST:
        margin = student_t95(samples - 1) * float(values.std(ddof=1)) / sqrt(samples)
        return centre - margin, centre + margin
    tail = statistics.NormalDist().cdf(-sqrt(samples / (samples - 1)) * student_t95(samples - 1))
    low, high = np.quantile(_resampled_means(values), (tail, 1.0 - tail))
    return min(float(low), centre), max(float(high), centre)


def _resampled_means(values: Float64) -> Array:
    """Draw as many values with replacement, again and again, and take their means: (RESAMPLES,)."""
    generator = np.random.default_rng(0)
    samples = len(values)
    means = []
    left = RESAMPLES
    while left:
        rows = min(left, max(_AT_ONCE // samples, 1))
        means.append(values[generator.integers(samples, size=(rows, samples))].mean(axis=1))
        left -= rows
    return np.concatenate(means)
