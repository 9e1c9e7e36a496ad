"""The log-linear histogram: bins that need no range in advance, so that counting is one pass and adding is exact.

A float32's bit pattern shifted right by 13 is its bin: sign, 8 exponent bits, the top 10 mantissa bits; 1024 bins per
octave, each 2**-10 of its octave wide (the idea of HdrHistogram and DDSketch, on the number format itself).
Bins 0..2**18-1 are the positive values, 2**18.. the negative ones; zeros, NaN and infinities are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
class Spectrum:
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

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @property
    def amax(self) -> float:
        """Largest observed magnitude."""
        return max(-self.observed[0], self.observed[1], 0.0)

    def fraction_outside(self, low: float, high: float) -> float:
        """Return the fraction of values below low or above high, by bin centre."""
        total = self.total
        outside = (self.centers < low) | (self.centers > high)
        return float(self.counts[outside].sum() / total) if total else 0.0


def spectrum(bins: Int64, counts: Int64, zeros: int, observed: tuple[float, float], shift: int = SHIFT) -> Spectrum:
    """Turn sparse log-linear counts into a Spectrum.

    Args:
        bins: Non-empty bin indices, int64 (N,); with another shift, sign bit at 2**(31 - shift).
        counts: Their counts, int64 (N,).
        zeros: Number of exact zeros.
        observed: Exact (min, max); the outermost bins are cut to it.
    """
    half = 1 << (31 - shift)
    order = np.argsort(bins, kind="stable")
    bins, counts = bins[order], counts[order]
    split = int(np.searchsorted(bins, half))
    inner, outer = bin_edges(bins[:split], shift)
    inner_negative, outer_negative = bin_edges(bins[split:] - half, shift)
    middle = [0.0] if zeros else []
    low = np.concatenate([-outer_negative[::-1], middle, inner])
    high = np.concatenate([-inner_negative[::-1], middle, outer])
    weights = np.concatenate([counts[split:][::-1], np.array([zeros] if zeros else [], np.int64), counts[:split]])
    return Spectrum(
        np.clip(low, *observed),
        np.clip(high, *observed),
        weights.astype(np.int64),
        (float(observed[0]), float(observed[1])),
    )


def linear_histogram(source: Spectrum, edges: Float64, *, magnitude: bool = False) -> Int64:
    """Resample to linear bins; counts stay integers and keep their sum.

    A bin's values are taken as spread evenly between its edges: the cumulative count at each linear edge is
    interpolated and rounded half to even, so the result depends on nothing but the counts.

    Args:
        source: The spectrum.
        edges: Ascending bin edges, float64 (M + 1,), covering the values.
        magnitude: Histogram of |x| instead of x.

    Returns:
        Counts, int64 (M,).
    """
    if not magnitude:
        return _resample(source.low, source.high, source.counts, edges)
    negative = source.high <= 0
    total = _resample(source.low[~negative], source.high[~negative], source.counts[~negative], edges)
    mirrored = (-source.high[negative][::-1], -source.low[negative][::-1], source.counts[negative][::-1])
    return total + _resample(*mirrored, edges)


def _resample(low: Float64, high: Float64, counts: Int64, edges: Float64) -> Int64:
    if not len(counts):
        return np.zeros(len(edges) - 1, np.int64)
    before = np.concatenate([[0], np.cumsum(counts)])
    # the count below an edge: everything in the bins before, plus the share of the bin that the edge cuts
    index = np.searchsorted(high, edges, side="left")
    cut = np.minimum(index, len(counts) - 1)
    width = high[cut] - low[cut]
    share = np.clip((edges - low[cut]) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    share = np.where(width > 0, share, 0.0)
    below = np.where(index < len(counts), before[cut] + np.rint(share * counts[cut]).astype(np.int64), before[-1])
    below[-1] = before[-1]  # a value on the last edge belongs to the last bin
    below[0] = 0
    return np.diff(below).astype(np.int64)
