"""The log-linear histogram: bins that need no range in advance, so that counting is one pass and adding is exact.

A float32's bit pattern shifted right by 13 is its bin: sign, 8 exponent bits, the top 10 mantissa bits; 1024 bins per
octave, each 2**-10 of its octave wide (the idea of HdrHistogram and DDSketch, on the number format itself).
Bins 0..2**18-1 are the positive values, 2**18.. the negative ones; zeros, NaN and infinities are counted apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from int8cal.numerics import Float64, Int64
from int8cal.numerics.compiled import compiled

Counts = tuple[Int64, Int64]  # a sparse histogram: bins and their counts

SHIFT = 13
HALF = 1 << (31 - SHIFT)  # positive bins
BINS = 2 * HALF
INFINITY_BIN = 0x7F800000 >> SHIFT  # bins from here to HALF hold infinities and NaN, which are counted apart

COARSE_SHIFT = 19  # 16 bins per octave, for per-channel histograms
COARSE_BINS = 1 << (32 - COARSE_SHIFT)
_COARSE_HALF = COARSE_BINS // 2
_OCTAVE = 1 << (23 - COARSE_SHIFT)
_LAST = (0x7F800000 >> COARSE_SHIFT) - 1  # the last coarse bin of finite magnitudes
_RATIO = 1 << (COARSE_SHIFT - SHIFT)  # fine bins in a coarse one
_STEPS = 16  # of an exponent
_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.int64))


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
    def mean(self) -> float:
        """Mean of the values, as far as bins tell; 0 without values."""
        return float(self.counts @ self.centers) / max(self.total, 1)

    @property
    def mean_square(self) -> float:
        """Mean of their squares, likewise."""
        return float(self.counts @ np.square(self.centers)) / max(self.total, 1)

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

    def percentile_range(self, percent: float) -> tuple[float, float]:
        """Clip so that `percent` of the values stay inside, the rest shared by both tails.

        Args:
            percent: In (0, 100]; 100 is the observed range.

        Returns:
            (low, high) in real units. A tensor that is >= 0 (or <= 0) is clipped at its one far end only.
        """
        low, high = self.observed
        outside = (100.0 - percent) / 100.0
        if low >= 0.0:
            return low, self._quantile(1.0 - outside)
        if high <= 0.0:
            return self._quantile(outside), high
        return self._quantile(outside / 2), self._quantile(1.0 - outside / 2)

    def _quantile(self, fraction: float) -> float:
        """Return the value below which `fraction` of the values lie, linear inside a bin."""
        target = fraction * float(self.cumulative[-1])
        # counts are integers, so comparing with the next integer is the same, and spares a copy in floats
        index = int(np.searchsorted(self.cumulative, np.int64(math.ceil(target)), side="left"))
        index = min(index, len(self.cumulative) - 1)
        before = self.cumulative[index] - self.counts[index]
        share = (target - before) / self.counts[index]
        return float(self.low[index] + np.clip(share, 0.0, 1.0) * (self.high[index] - self.low[index]))


def histogram(bins: Int64, counts: Int64, zeros: int, observed: tuple[float, float]) -> Histogram:
    """Turn sparse log-linear counts into a Histogram.

    Args:
        bins: Non-empty bin indices, ascending, int64 (N,).
        counts: Their counts, int64 (N,).
        zeros: Number of exact zeros.
        observed: Exact (min, max); the outermost bins are cut to it.
    """
    split = int(np.searchsorted(bins, HALF))
    inner, outer = bin_edges(bins % HALF)
    # negative bins from the outermost in, zeros, positive bins from the innermost out
    middle = np.zeros(int(zeros > 0))
    low = np.concatenate([-outer[split:][::-1], middle, inner[:split]])
    high = np.concatenate([-inner[split:][::-1], middle, outer[:split]])
    weights = np.concatenate([counts[split:][::-1], np.full(len(middle), zeros, np.int64), counts[:split]])
    return Histogram(np.clip(low, *observed), np.clip(high, *observed), weights, observed)


def add_counts(*parts: Counts) -> Counts:
    """Add sparse histograms (bins, counts), int64 (N,) each; bins ascend in the sum."""
    bins, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    if not (bins[1:] > bins[:-1]).all():
        order = np.argsort(bins, kind="stable")  # a merge, where parts ascend
        bins, counts = bins[order], counts[order]
        first = np.flatnonzero(np.append(True, bins[1:] > bins[:-1]))
        bins, counts = bins[first], np.add.reduceat(counts, first)
    return bins, counts


def moved(bins: Int64, counts: Int64, exponents: Float64) -> tuple[Counts, Counts]:
    """Multiply each channel of a per-channel histogram by 2**exponent: shift it by octaves, or spread it anew.

    Args:
        bins, counts: Sparse, int64 (N,); the flat index is channel * COARSE_BINS + bin.
        exponents: Per channel, (C,), multiples of 1 / 16.

    Returns:
        The histogram of all channels together in fine bins, and the per-channel one in bins as it came; both sparse,
        bins ascending. Values of a coarse bin are taken as spread evenly.
    """
    channel, within = np.divmod(bins, COARSE_BINS)
    sixteenths = np.rint(exponents * _STEPS).astype(np.int64)[channel]
    octaves, steps = np.divmod(sixteenths, _STEPS)
    sign, magnitude = np.divmod(within, _COARSE_HALF)
    # what leaves the range of float32 stays in its outermost bin, and never changes its sign
    magnitude = np.clip(magnitude + octaves * _OCTAVE, 0, _LAST)
    fine, coarse = [_NOTHING], [_NOTHING]
    for step in np.unique(steps):
        few = steps == step
        factor = 2.0 ** (step / _STEPS)
        places = sign[few] * _COARSE_HALF + magnitude[few]
        dense = np.zeros(COARSE_BINS, np.int64)
        np.add.at(dense, places, counts[few])
        filled = np.flatnonzero(dense)
        parts, shares = _divided(filled, dense[filled])
        if step:
            parts = _scaled(parts, factor, SHIFT)
            dense[filled] = _scaled(filled, factor, COARSE_SHIFT)  # from here on where each bin goes
            places = dense[places]
        fine.append((parts, shares))
        coarse.append((channel[few] * COARSE_BINS + places, counts[few]))
    return add_counts(*fine), add_counts(*coarse)


def _divided(bins: Int64, counts: Int64) -> Counts:
    """Share each coarse bin's count among the fine bins that it is made of."""
    below = np.rint(counts[:, None] * (np.arange(_RATIO + 1) / _RATIO)).astype(np.int64)
    shares = np.diff(below, axis=1).reshape(-1)
    fine = (bins[:, None] * _RATIO + np.arange(_RATIO)).reshape(-1)
    return fine[shares > 0], shares[shares > 0]


def _scaled(bins: Int64, factor: float, shift: int) -> Int64:
    """Return the bin that holds factor times the centre of each bin."""
    half = 1 << (31 - shift)
    sign, magnitude = np.divmod(bins, half)
    inner, outer = bin_edges(magnitude, shift)
    largest = float(np.finfo(np.float32).max)
    centre = np.minimum((inner + outer) / 2 * factor, largest).astype(np.float32)
    result: Int64 = sign * half + (centre.view(np.uint32) >> np.uint32(shift)).astype(np.int64)
    return result


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
    """Write the counts between edges; see `linear_histogram`."""
    inner = edges[1:-1]
    index = np.searchsorted(high, inner)
    cut = np.minimum(index, counts.size - 1)
    width = high[cut] - low[cut]
    inside = (index < counts.size) & (width > 0.0)
    share = np.clip((inner - low[cut]) / np.where(inside, width, 1.0), 0.0, 1.0)
    within = np.where(inside, np.rint(share * counts[cut]), 0.0).astype(np.int64)
    below = np.append(0, np.cumsum(counts))[index] + within
    result[:] = np.diff(below, prepend=0, append=counts.sum())


_resample = compiled(_resample_loop, _resample_twin, value_s=20e-9)
