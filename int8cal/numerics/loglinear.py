"""The log-linear histogram: bins that need no range in advance, so that counting is one pass and adding is exact.

A float32's bit pattern shifted right by 13 is its bin: sign, 8 exponent bits, the top 10 mantissa bits; 1024 bins per
octave, each 2**-10 of its octave wide (the idea of HdrHistogram and DDSketch, on the number format itself).
Bins 0..2**18-1 are the positive values, 2**18.. the negative ones; zeros, NaN and infinities are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from int8cal.numerics.compiled import compiled

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

SHIFT = 13
HALF = 1 << (31 - SHIFT)  # positive bins
BINS = 2 * HALF
INFINITY_BIN = 0x7F800000 >> SHIFT  # bins from here to HALF hold infinities and NaN, which are counted apart


def bin_edges(bins: Int64, shift: int = SHIFT) -> tuple[Float64, Float64]:
    """Return the inner and outer magnitude of each bin (float64, sign not applied).

    Args:
        bins: Bin indices of non-negative values, int64 (N,), below INFINITY_BIN.
        shift: Bits dropped; 13 for 1024 bins per octave, 19 for 16.
    """
    inner = (bins.astype(np.uint32) << np.uint32(shift)).view(np.float32).astype(np.float64)
    following = (bins + 1).astype(np.uint32) << np.uint32(shift)
    # the last finite bin ends at 2**128, which float32 cannot hold
    outer = np.where(
        following < 0x7F800000, np.minimum(following, 0x7F7FFFFF).view(np.float32).astype(np.float64), 2.0**128
    )
    return inner, outer


@dataclass(frozen=True)
class Histogram:
    """A tensor's values as sorted weighted points: what every threshold method reads.

    Attributes:
        low, high: Inner and outer real edges of each non-empty bin, ascending, float64 (N,), signed.
        counts: Values in each bin, int64 (N,); a bin of exact zeros has low = high = 0.
        observed: Exact (min, max).
    """

    low: Float64
    high: Float64
    counts: Int64
    observed: tuple[float, float]

    @property
    def centers(self) -> Float64:
        """Mid-points of the bins, float64 (N,)."""
        return (self.low + self.high) / 2

    @cached_property
    def cumulative(self) -> Int64:
        """Number of values up to and including each bin, int64 (N,)."""
        return np.cumsum(self.counts)

    @cached_property
    def nonzero(self) -> Histogram:
        """The values that are not exact zeros, with the same observed range."""
        start = int(np.searchsorted(self.low, 0.0, side="left"))
        stop = int(np.searchsorted(self.high, 0.0, side="right"))
        if stop <= start:
            return self
        low, high, counts = (np.concatenate([each[:start], each[stop:]]) for each in (self.low, self.high, self.counts))
        return Histogram(low, high, counts, self.observed)

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.cumulative[-1]) if len(self.counts) else 0

    @property
    def amax(self) -> float:
        """Largest observed magnitude."""
        return max(-self.observed[0], self.observed[1], 0.0)

    def fraction_outside(self, low: float, high: float) -> float:
        """Return the fraction of values below low or above high, by bin centre; low <= high."""
        total = self.total
        if not total:
            return 0.0
        centers, below = self.centers, np.append(0, self.cumulative)
        inside = below[np.searchsorted(centers, high, side="right")] - below[np.searchsorted(centers, low, side="left")]
        return (total - int(inside)) / total


def histogram(bins: Int64, counts: Int64, zeros: int, observed: tuple[float, float], shift: int = SHIFT) -> Histogram:
    """Turn sparse log-linear counts into a Histogram.

    Args:
        bins: Non-empty bin indices, int64 (N,); sign bit at 2**(31 - shift).
        counts: Their counts, int64 (N,).
        zeros: Number of exact zeros.
        observed: Exact (min, max); the outermost bins are cut to it.
        shift: Bits dropped, as in `bin_edges`.
    """
    if (bins[1:] < bins[:-1]).any():
        order = np.argsort(bins, kind="stable")
        bins, counts = bins[order], counts[order]
    minimum, maximum = float(observed[0]), float(observed[1])
    size = len(bins) + (zeros > 0)
    low, high, weights = np.zeros(size), np.zeros(size), np.zeros(size, np.int64)
    _spread(bins, counts, int(zeros), shift, minimum, maximum, low, high, weights)
    return Histogram(low, high, weights, (minimum, maximum))


def _spread_loop(
    bins: Any, counts: Any, zeros: Any, shift: Any, minimum: Any, maximum: Any, low: Any, high: Any, weights: Any
) -> None:
    half = 1 << (31 - shift)
    bits = np.empty(2, np.uint32)
    edges = bits.view(np.float32)  # the same memory: the inner and the outer edge of a bin
    split = np.searchsorted(bins, half)
    negatives = bins.size - split
    if zeros > 0:  # the edges are 0 already
        weights[negatives] = zeros
    for index in range(bins.size):
        negative = index >= split
        magnitude = bins[index] - half if negative else bins[index]
        following = (magnitude + 1) << shift
        bits[0] = magnitude << shift
        bits[1] = following
        inner = np.float64(edges[0])
        # the last finite bin ends at 2**128, which float32 cannot hold
        outer = np.float64(edges[1]) if following < 0x7F800000 else 2.0**128
        # negative bins from the outermost in, zeros, positive bins from the innermost out
        at = bins.size - 1 - index if negative else negatives + (1 if zeros > 0 else 0) + index
        low[at] = min(max(-outer if negative else inner, minimum), maximum)
        high[at] = min(max(-inner if negative else outer, minimum), maximum)
        weights[at] = counts[index]


def _spread_twin(
    bins: Int64,
    counts: Int64,
    zeros: int,
    shift: int,
    minimum: float,
    maximum: float,
    low: Float64,
    high: Float64,
    weights: Int64,
) -> None:
    half = 1 << (31 - shift)
    split = int(np.searchsorted(bins, half))
    inner, outer = bin_edges(bins[:split], shift)
    inner_negative, outer_negative = bin_edges(bins[split:] - half, shift)
    middle = [0.0] if zeros else []
    np.clip(np.concatenate([-outer_negative[::-1], middle, inner]), minimum, maximum, out=low)
    np.clip(np.concatenate([-inner_negative[::-1], middle, outer]), minimum, maximum, out=high)
    weights[:] = np.concatenate([counts[split:][::-1], np.array([zeros] if zeros else [], np.int64), counts[:split]])


_spread = compiled(_spread_loop, _spread_twin)


def linear_histogram(source: Histogram, edges: Float64, *, magnitude: bool = False) -> Int64:
    """Resample to linear bins; counts stay integers and keep their sum.

    A bin's values are taken as spread evenly between its edges: the cumulative count at each linear edge is
    interpolated and rounded half to even, so the result depends on nothing but the counts.

    Args:
        source: The histogram.
        edges: Ascending bin edges, float64 (M + 1,), covering the values.
        magnitude: Histogram of |x| instead of x.

    Returns:
        Counts, int64 (M,).
    """
    if not magnitude:
        return _resampled(source.low, source.high, source.counts, edges)
    split = int(np.searchsorted(source.high, 0.0, side="right"))
    mirrored = (-source.high[:split][::-1], -source.low[:split][::-1], source.counts[:split][::-1].copy())
    total = _resampled(source.low[split:], source.high[split:], source.counts[split:], edges)
    return total + _resampled(*mirrored, edges)


def _resampled(low: Float64, high: Float64, counts: Int64, edges: Float64) -> Int64:
    result = np.zeros(len(edges) - 1, np.int64)
    if len(counts):
        _resample(low, high, counts, edges, result)
    return result


def _resample_loop(low: Any, high: Any, counts: Any, edges: Any, result: Any) -> None:
    # the count below an edge: everything in the bins before, plus the share of the bin that the edge cuts
    index = 0
    before = 0
    previous = 0
    for number in range(1, edges.size - 1):
        edge = edges[number]
        while index < counts.size and high[index] < edge:
            before += counts[index]
            index += 1
        below = before
        if index < counts.size:
            width = high[index] - low[index]
            if width > 0.0:
                share = min(max((edge - low[index]) / width, 0.0), 1.0)
                below += int(np.rint(share * counts[index]))
        result[number - 1] = below - previous
        previous = below
    # a value on the last edge belongs to the last bin
    result[edges.size - 2] = counts.sum() - previous


def _resample_twin(low: Float64, high: Float64, counts: Int64, edges: Float64, result: Int64) -> None:
    before = np.concatenate([[0], np.cumsum(counts)])
    index = np.searchsorted(high, edges, side="left")
    cut = np.minimum(index, len(counts) - 1)
    width = high[cut] - low[cut]
    share = np.clip((edges - low[cut]) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    share = np.where(width > 0, share, 0.0)
    below = np.where(index < len(counts), before[cut] + np.rint(share * counts[cut]).astype(np.int64), before[-1])
    below[-1] = before[-1]
    below[0] = 0
    result[:] = np.diff(below)


_resample = compiled(_resample_loop, _resample_twin)
