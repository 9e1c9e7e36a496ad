"""Per-channel log-linear histograms whose channels are multiplied by factors: shifted by octaves, or spread anew."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from int8cal.numerics.kernels import COARSE_BINS, COARSE_SHIFT
from int8cal.numerics.loglinear import SHIFT, bin_edges

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Counts = tuple[Int64, Int64]

_HALF = COARSE_BINS // 2  # of one sign
_OCTAVE = 1 << (23 - COARSE_SHIFT)
_LAST = (0x7F800000 >> COARSE_SHIFT) - 1  # the last bin of finite magnitudes
_RATIO = 1 << (COARSE_SHIFT - SHIFT)  # fine bins in a coarse one
_FINE_HALF = 1 << (31 - SHIFT)
_STEPS = 16


def add_counts(first: Counts, second: Counts) -> Counts:
    """Add two sparse histograms (bins, counts), int64 (N,) each; bins ascend in the sum."""
    bins, index = np.unique(np.concatenate([first[0], second[0]]), return_inverse=True)
    counts = np.zeros(len(bins), np.int64)
    np.add.at(counts, index, np.concatenate([first[1], second[1]]))
    return bins, counts


def moved(bins: Int64, counts: Int64, exponents: Float64) -> tuple[Counts, Counts]:
    """Multiply each channel of a per-channel histogram by 2**exponent.

    Args:
        bins, counts: Sparse, int64 (N,); the flat index is channel * 8192 + bin, 16 bins per octave.
        exponents: Per channel, (C,), multiples of 1 / 16.

    Returns:
        The histogram of all channels together in fine bins (1024 per octave), and the per-channel one in bins as it
        came; both sparse, bins ascending. Values of a coarse bin are taken as spread evenly.
    """
    channel, within = np.divmod(bins, COARSE_BINS)
    sixteenths = np.rint(exponents * _STEPS).astype(np.int64)[channel]
    octaves, steps = np.divmod(sixteenths, _STEPS)
    sign, magnitude = np.divmod(within, _HALF)
    # what leaves the range of float32 stays in its outermost bin, and never changes its sign
    magnitude = np.clip(magnitude + octaves * _OCTAVE, 0, _LAST)
    fine, coarse = [], []
    for step in np.unique(steps):
        few = steps == step
        shifted = sign[few] * _HALF + magnitude[few]
        fine.append(_spread(*_summed(shifted, counts[few]), 2.0 ** (step / _STEPS)))
        places = shifted if step == 0 else _nearest(shifted, 2.0 ** (step / _STEPS))
        coarse.append(_summed(channel[few] * COARSE_BINS + places, counts[few]))
    return _joined(fine), _joined(coarse)


def _spread(bins: Int64, counts: Int64, factor: float) -> Counts:
    """Share each coarse bin's count among its 64 parts, and put these into the fine bins where they come to lie."""
    below = np.rint(counts[:, None] * (np.arange(_RATIO + 1) / _RATIO)).astype(np.int64)
    parts = np.diff(below, axis=1).reshape(-1)
    fine = (bins[:, None] * _RATIO + np.arange(_RATIO)).reshape(-1)[parts > 0]
    parts = parts[parts > 0]
    return (fine, parts) if factor == 1 else _summed(_placed(fine, factor, SHIFT, _FINE_HALF), parts)


def _nearest(bins: Int64, factor: float) -> Int64:
    return _placed(bins, factor, COARSE_SHIFT, _HALF)


def _placed(bins: Int64, factor: float, shift: int, half: int) -> Int64:
    """Return the bin that holds factor times the centre of each bin."""
    sign, magnitude = np.divmod(bins, half)
    inner, outer = bin_edges(magnitude, shift)
    largest = float(np.finfo(np.float32).max)
    centre = np.minimum((inner + outer) / 2 * factor, largest).astype(np.float32)
    result: Int64 = sign * half + (centre.view(np.uint32) >> np.uint32(shift)).astype(np.int64)
    return result


def _summed(bins: Int64, counts: Int64) -> Counts:
    nothing = np.zeros(0, np.int64)
    return add_counts((bins, counts), (nothing, nothing))


def _joined(parts: list[Counts]) -> Counts:
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return _summed(np.concatenate([bins for bins, _ in parts]), np.concatenate([counts for _, counts in parts]))
