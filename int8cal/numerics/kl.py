"""Entropy (KL) threshold as docs/numerics.md states it, after NVIDIA's "8-bit Inference with TensorRT" (2017)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.numerics.compiled import compiled
from int8cal.numerics.loglinear import linear_histogram

if TYPE_CHECKING:
    from int8cal.numerics import Bools, Float64, Int64
    from int8cal.numerics.loglinear import Histogram


BINS = 2048


# A bound must be above the best divergence by more than what rounding may take from either to rule a candidate out.
MARGIN = 1e-9


def _search_loop(counts: Any, levels: Any, fewest: Any, prune: Any, divergence: Any) -> None:
    # Within a level Q is constant, so the sum of P ln Q needs the level's total and number of non-empty bins, which
    # prefix sums give; the sum of P ln P is a prefix sum too. What a level adds depends on its start and width alone,
    # and candidates share most of theirs, so each is computed once.
    bins = counts.size
    mass = np.zeros(bins + 1)
    filled = np.zeros(bins + 1)
    entropy = np.zeros(bins + 1)
    for j in range(bins):
        c = counts[j]
        mass[j + 1] = mass[j] + c
        filled[j + 1] = filled[j] + (1.0 if c > 0 else 0.0)
        entropy[j + 1] = entropy[j] + (c * math.log(c) if c > 0 else 0.0)
    total = mass[bins]
    widest = bins // levels + 3
    known = np.full((widest, bins + 1), np.nan)
    best = math.inf
    for i in range(bins, levels - 1, -1):
        outliers = total - mass[i]
        last = counts[i - 1]
        if mass[i] <= 0.0 or filled[i] < fewest or (last == 0 and outliers > 0.0):
            continue  # Q is 0 where P is not
        step = i / levels
        with_outliers = last + outliers
        outlier_log = with_outliers * math.log(with_outliers) if with_outliers > 0 else 0.0
        kept_log = math.log(mass[i])
        start = int(np.rint((levels - 1) * step))
        last_level = 0.0
        if filled[i] > filled[start]:
            q = mass[i] - mass[start]
            last_level = (q + outliers) * math.log(q / (filled[i] - filled[start]))
        if prune:
            # merging bins into levels never lowers the divergence: the last level alone bounds it from below
            least = (outlier_log + entropy[i - 1] - entropy[start] - last_level) / total - math.log(total) + kept_log
            if least > best + MARGIN:
                continue
        p_log_q = 0.0
        start = 0
        for level in range(1, levels):
            end = int(np.rint(level * step))
            term = known[end - start, start]
            if math.isnan(term):
                n = filled[end] - filled[start]
                q = mass[end] - mass[start]
                term = q * math.log(q / n) if n > 0 else 0.0
                known[end - start, start] = term
            p_log_q += term
            start = end
        p_log_q += last_level
        value = (entropy[i - 1] + outlier_log - p_log_q) / total - math.log(total) + kept_log
        divergence[i] = value
        best = min(best, value)


def _search_twin(counts: Float64, levels: int, fewest: int, prune: bool, divergence: Float64) -> None:
    """Write the divergence of every candidate, from `levels` bins on, that the others before it do not rule out."""
    bins = counts.size
    mass, filled = _prefix(counts), _prefix((counts > 0).astype(np.float64))
    entropy = _prefix(counts * _log(counts, counts > 0))
    total = mass[bins]
    kept = np.arange(bins, levels - 1, -1)
    last, outliers = counts[kept - 1], total - mass[kept]
    kept = kept[(mass[kept] > 0.0) & (filled[kept] >= fewest) & ((last > 0) | (outliers <= 0.0))]
    if not kept.size:
        return
    # what lies beyond the candidate joins its last bin, and the last level's Q
    last, outliers = counts[kept - 1], total - mass[kept]
    outlier_log = (last + outliers) * _log(last + outliers, last + outliers > 0)
    kept_log, total_log = _log(mass[kept]), math.log(total)
    ends = np.rint(np.arange(levels) * (kept / levels)[:, np.newaxis]).astype(np.int64)
    start = ends[:, -1]
    q, n = mass[kept] - mass[start], filled[kept] - filled[start]
    last_level = np.where(n > 0, (q + outliers) * _log(np.divide(q, n, where=n > 0, out=np.ones_like(q)), n > 0), 0.0)
    # what a level adds depends on its start and width alone: each once
    places = (ends[:, 1:] - ends[:, :-1]) * (bins + 1) + ends[:, :-1]
    met = np.zeros((bins // levels + 3) * (bins + 1), np.bool_)
    met[places.ravel()] = True
    width, begin = np.divmod(np.flatnonzero(met), bins + 1)
    q, n = mass[begin + width] - mass[begin], filled[begin + width] - filled[begin]
    known = np.zeros(met.size)
    known[met] = q * _log(np.divide(q, n, where=n > 0, out=np.ones_like(q)), n > 0)
    p_log_q = np.cumsum(known[places], axis=1)[:, -1] + last_level
    values = (entropy[kept - 1] + outlier_log - p_log_q) / total - total_log + kept_log
    least = (outlier_log + entropy[kept - 1] - entropy[start] - last_level) / total - total_log + kept_log
    best = math.inf
    for i, value, bound in zip(kept.tolist(), values.tolist(), least.tolist(), strict=True):
        if prune and bound > best + MARGIN:
            continue
        divergence[i] = value
        best = min(best, value)


def _prefix(terms: Float64) -> Float64:
    """Return the sums of the first 0, 1, ... terms, added one by one."""
    return np.append(0.0, np.cumsum(terms))


def _log(values: Float64, where: Bools | None = None) -> Float64:
    """Return logarithms of the C library, whose last bits numpy's may lack; 0 where they are not asked for."""
    if where is None:
        return np.array([*map(math.log, values.tolist())])
    result = np.zeros_like(values)
    result[where] = [*map(math.log, values[where].tolist())]
    return result


_search = compiled(_search_loop, _search_twin, value_s=2.5e-6)


def divergences(counts: Int64, levels: int) -> Float64:
    """KL divergence in nats of every candidate.

    Args:
        counts: Histogram of |x| with linear bins from 0, int64 (N,), N >= levels.
        levels: Quantization levels of a half axis: 128 for signed tensors, 256 for tensors that are >= 0.

    Returns:
        float64 (N + 1,); entry i is KL(P, Q) of keeping the first i bins, +inf where undefined or i < levels.
    """
    result = np.full(len(counts) + 1, np.inf)
    if counts.sum() > 0:
        _search(counts.astype(np.float64), levels, 0, False, result)
    return result


def entropy_threshold(counts: Int64, levels: int, bin_width: float) -> tuple[float, int] | None:
    """Choose the threshold whose clipped and quantized distribution is nearest to the observed one.

    Args:
        counts: Histogram of |x|, int64 (2048,) over [0, amax].
        levels: 128 or 256, see `divergences`.
        bin_width: amax / 2048, real units.

    Returns:
        (threshold, i): the centre of the last kept bin, (i - 0.5) * bin_width; None when no candidate is defined or the
        histogram has fewer non-empty bins than levels, where the search has nothing to compare.

    Source: NVIDIA's pseudocode; the first minimum wins. Their (m + 0.5) counts from the first bin left out.
    """
    if np.count_nonzero(counts) < levels:
        return None
    # keeping fewer values apart than there are levels costs nothing by this measure, and says nothing: a tensor in
    # [0.7, 1] would be cut at 0.7, where one bin is left
    result = np.full(len(counts) + 1, np.inf)
    _search(counts.astype(np.float64), levels, levels, True, result)
    best = int(np.argmin(result))
    if not math.isfinite(result[best]):
        return None
    return (best - 0.5) * bin_width, best


def kl_range(histogram: Histogram, *, symmetric: bool) -> tuple[float, float] | None:
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
