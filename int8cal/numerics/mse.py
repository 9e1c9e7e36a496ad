"""Mean-squared-error range: the clip range whose quantized values are nearest to the observed ones.

A candidate's error is a sum over ten thousand points, and there are a thousand candidates. It is taken from tail sums
instead: with x_hat = k * scale and, per side of zero, N(k) and S(k) the sums of w and w * |x| beyond (k - 1/2) * scale,

    sum w (x - x_hat)^2 = sum w x^2 - 2 scale sum_k S(k) + scale^2 sum_k (2k - 1) N(k)

That costs one look-up per code. Cancellation leaves it an error of at most `slack`; where that is too much to tell
which of two ranges is better, the sum over the points decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.numerics import Float64, Int32, Int64
from int8cal.numerics.affine import SMALLEST_SCALE
from int8cal.numerics.compiled import compiled, part
from int8cal.numerics.loglinear import linear_histogram

if TYPE_CHECKING:
    from int8cal.numerics.affine import Affine, QType
    from int8cal.numerics.loglinear import Histogram

Points = tuple[Float64, Float64]  # values and weights
TailSums = tuple[Float64, Float64, Int32, int]  # of zero; see `_tails`

# Points are linear bins in windows around 0, each a quarter as wide as the one before: a tensor with an outlier may be
# clipped to a small part of its range, and the rounding error there needs points finer than that range's steps.
RESOLUTION = 2048  # points per window: 8 per step of a range that fills it
WINDOWS = 4.0 ** -np.arange(5)
_STEPS = np.arange(RESOLUTION + 1.0)

STAGES = ((0.98, range(110)), (0.995, range(-8, 9)))  # the ratio of neighbouring candidates, and its powers
ROUNDS = 5  # how often a stage starts again from where it arrived

# Look-up of a boundary: float64 bit patterns without the last 43 bits, 512 keys per octave, for the octaves below the
# largest value where points can be apart: the finest lie 2**-19 of the range from each other.
KEY_SHIFT = 43
KEYS = 21 << (52 - KEY_SHIFT)


def points_of(histogram: Histogram) -> Points:
    """Resample a histogram to weighted points: (values, weights), float64 (M,); zeros stay exact zeros, at the end."""
    low, high = min(histogram.observed[0], 0.0), max(histogram.observed[1], 0.0)
    if high <= low:
        return np.zeros(1), np.array([float(histogram.total)])
    edges = _edges(low, high)
    counts = linear_histogram(histogram.nonzero, edges)
    used = np.flatnonzero(counts)
    points = (edges[used] + edges[used + 1]) / 2
    zeros = histogram.total - histogram.nonzero.total
    return np.append(points, 0.0), np.append(counts[used].astype(np.float64), float(zeros))


def _edges(low: float, high: float) -> Float64:
    """Return the edges of linspace(low, high, RESOLUTION + 1) and of all smaller windows, ascending, each once."""
    # linspace to the bit, at a third of its time
    lows, widths = low * WINDOWS, high * WINDOWS - low * WINDOWS
    steps = widths / RESOLUTION
    edges = _STEPS * steps[:, np.newaxis] if steps.all() else _STEPS / RESOLUTION * widths[:, np.newaxis]
    edges += lows[:, np.newaxis]
    edges[:, -1] = high * WINDOWS
    edges = edges.ravel()
    edges.sort(kind="stable")  # which merges runs that are sorted already
    once: Float64 = edges[np.append(True, edges[1:] != edges[:-1])]
    return once


def _error_loop(points: Any, weights: Any, scale: Any, zero_point: Any, qmin: Any, qmax: Any) -> Any:
    total = 0.0
    for i in range(points.size):
        q = np.rint(points[i] / scale) + zero_point
        q = min(max(q, qmin), qmax)
        d = points[i] - (q - zero_point) * scale
        total += weights[i] * d * d
    return total


def _tails(points: Float64, weights: Float64, sign: float) -> TailSums:
    """Sum up one side of zero from every point to the last; in numpy, since a loop of it takes long to compile.

    Returns:
        Magnitudes, ascending and closed by infinity; sums of w, w x and w x^2 from each to the last, (3, magnitudes);
        the first magnitude of each key, int32 (KEYS,); the key that these start from.
    """
    there = points * sign > 0.0
    order = slice(None, None, 1 if sign > 0.0 else -1)
    values, own = (points[there] * sign)[order], weights[there][order]
    sums = np.zeros((3, values.size + 1))
    for row, terms in zip(sums, (own, own * values, own * values * values), strict=True):
        row[-2::-1] = np.cumsum(terms[::-1])
    first, base = np.zeros(KEYS, np.int32), 0
    if values.size:
        keys = values.view(np.int64) >> KEY_SHIFT
        base = int(keys[-1]) - KEYS + 1
        below = np.bincount(np.maximum(keys - base + 1, 0), minlength=KEYS + 1)
        first = np.cumsum(below[:KEYS], dtype=np.int32)
    return np.append(values, np.inf), sums, first, base


@part
def _first(side: Any, boundary: Any, key: Any) -> Any:
    # index of the first magnitude that is not below the boundary, whose key is given
    values, _, first, base = side
    if key - base >= KEYS:
        return values.size - 1
    index = first[max(key - base, 0)]
    while values[index] < boundary:
        index += 1
    return index


@part
def _clipped(side: Any, scale: Any, codes: Any, boundaries: Any, keys: Any) -> Any:
    # error of what lies beyond the last of the codes 1..codes: no more than the whole, so a bound
    sums = side[1]
    end = codes * scale
    boundaries[0] = end
    index = _first(side, end, keys[0] >> KEY_SHIFT)
    return sums[2, index] - 2.0 * end * sums[1, index] + end * end * sums[0, index]


@part
def _side(side: Any, scale: Any, codes: Any, boundaries: Any, keys: Any) -> Any:
    # error of one side of zero with codes 1..codes
    values, sums, first, base = side
    linear = 0.0
    square = 0.0
    for k in range(codes):
        boundaries[k] = (k + 0.5) * scale
    for k in range(codes):
        key = (keys[k] >> KEY_SHIFT) - base
        if key >= KEYS:
            break
        index = first[max(key, 0)]
        index += np.int64(values[index] < boundaries[k])  # a step without a branch; more are rare
        while values[index] < boundaries[k]:
            index += 1
        linear += sums[1, index]
        square += (2 * k + 1) * sums[0, index]
    return sums[2, 0] - 2.0 * scale * linear + scale * scale * square


@part
def _affine(low: Any, high: Any, qmin: Any, qmax: Any, symmetric: Any) -> Any:
    # affine_from_range for low <= 0 <= high that are not both 0
    if symmetric:
        return max(np.float64(np.float32(max(-low, high) / qmax)), SMALLEST_SCALE), 0.0
    scale = max(np.float64(np.float32((high - low) / (qmax - qmin))), SMALLEST_SCALE)
    return scale, min(max(np.rint(qmin - low / scale), qmin), qmax)


_exact = part(_error_loop)


def _search_loop(
    points: Any,
    weights: Any,
    sides: Any,
    low: Any,
    high: Any,
    qmin: Any,
    qmax: Any,
    symmetric: Any,
    stages: Any,
    rounds: Any,
) -> Any:
    positive, negative = sides
    # n additions of positive numbers, twice the signal's energy at most in each of the three sums
    slack = 4.0 * (points.size + 512) * 2.220446049250313e-16 * (positive[1][2, 0] + negative[1][2, 0])
    two_sided = not symmetric and low < 0.0 < high
    best_low = low
    best_high = high
    best_scale, best_zero = _affine(low, high, qmin, qmax, symmetric)
    boundaries = np.empty(int(qmax - qmin))
    keys = boundaries.view(np.int64)  # the same memory, read as bit patterns
    best = _side(positive, best_scale, int(qmax - best_zero), boundaries, keys)
    best += _side(negative, best_scale, int(best_zero - qmin), boundaries, keys)
    for factors in stages:
        for _ in range(rounds):
            start_low = best_low
            start_high = best_high
            improved = False
            for move in range(3 * factors.size if two_sided else factors.size):
                factor = factors[move % factors.size]
                which = move // factors.size  # both ends, the low one, the high one
                a = max(start_low * (factor if which < 2 else 1.0), low)
                b = min(start_high * (factor if which != 1 else 1.0), high)
                scale, zero = _affine(a, b, qmin, qmax, symmetric)
                if scale == best_scale and zero == best_zero:
                    continue
                above = int(qmax - zero)
                below = int(zero - qmin)
                clipped = _clipped(positive, scale, above, boundaries, keys)
                if clipped + _clipped(negative, scale, below, boundaries, keys) > best + 2.0 * slack:
                    continue
                value = _side(positive, scale, above, boundaries, keys)
                value += _side(negative, scale, below, boundaries, keys)
                if value > best + 2.0 * slack:
                    continue
                if value >= best - 2.0 * slack:
                    exact = _exact(points, weights, scale, zero, qmin, qmax)
                    if not exact < _exact(points, weights, best_scale, best_zero, qmin, qmax):
                        continue
                best = value
                best_low = a
                best_high = b
                best_scale = scale
                best_zero = zero
                improved = True
            if not improved:
                break
    return best_low, best_high


def _error_twin(points: Float64, weights: Float64, scale: float, zero_point: float, qmin: float, qmax: float) -> float:
    codes = np.clip(np.rint(points / scale) + zero_point, qmin, qmax)
    distances = points - (codes - zero_point) * scale
    return float(np.cumsum(weights * distances * distances)[-1])


def _sides_twin(sides: tuple[TailSums, TailSums], scales: Float64, codes: tuple[Int64, Int64]) -> Float64:
    """Return the errors of both sides under several ranges, (R,); codes: of each side and range, (R,)."""
    total = np.zeros(scales.size)
    for (values, sums, _, _), count in zip(sides, codes, strict=True):
        steps = np.arange(max(int(count.max()), 1))
        index = np.searchsorted(values, (steps + 0.5) * scales[:, np.newaxis])
        rows, last = np.arange(scales.size), np.maximum(count - 1, 0)
        linear = np.where(count, np.cumsum(sums[1][index], axis=1)[rows, last], 0.0)
        square = np.where(count, np.cumsum((2 * steps + 1) * sums[0][index], axis=1)[rows, last], 0.0)
        total += sums[2, 0] - 2.0 * scales * linear + scales * scales * square
    return total


def _clipped_twin(sides: tuple[TailSums, TailSums], scales: Float64, codes: tuple[Int64, Int64]) -> Float64:
    """Return the errors of what lies beyond several ranges, on both sides; see `_sides_twin`."""
    total = np.zeros(scales.size)
    for (values, sums, _, _), count in zip(sides, codes, strict=True):
        end = count * scales
        index = np.searchsorted(values, end)
        total += sums[2, index] - 2.0 * end * sums[1, index] + end * end * sums[0, index]
    return total


def _search_twin(
    points: Float64,
    weights: Float64,
    sides: tuple[TailSums, TailSums],
    low: float,
    high: float,
    qmin: float,
    qmax: float,
    symmetric: bool,
    stages: tuple[Float64, ...],
    rounds: int,
) -> tuple[float, float]:
    """Search as the loop does; the ranges that one round may come to are known, and their errors found, at once."""
    slack = 4.0 * (points.size + 512) * 2.220446049250313e-16 * (sides[0][1][2, 0] + sides[1][1][2, 0])

    def affines(lows: Float64, highs: Float64) -> tuple[Float64, Float64, tuple[Int64, Int64]]:
        # scales, zero points, and the codes above and below zero
        spread = np.maximum(-lows, highs) / qmax if symmetric else (highs - lows) / (qmax - qmin)
        scales = np.maximum(spread.astype(np.float32).astype(np.float64), SMALLEST_SCALE)
        zeros = np.zeros_like(scales) if symmetric else np.clip(np.rint(qmin - lows / scales), qmin, qmax)
        return scales, zeros, ((qmax - zeros).astype(np.int64), (zeros - qmin).astype(np.int64))

    scales, zeros, codes = affines(np.array([low]), np.array([high]))
    best, best_low, best_high = float(_sides_twin(sides, scales, codes)[0]), low, high
    best_scale, best_zero = float(scales[0]), float(zeros[0])
    for factors in stages:
        one = np.ones_like(factors)
        moved = ((factors, factors), (factors, one), (one, factors))
        first, second = (
            np.concatenate(part) for part in zip(*moved[: 3 if not symmetric and low < 0.0 < high else 1], strict=True)
        )
        for _ in range(rounds):
            lows, highs = np.maximum(best_low * first, low), np.minimum(best_high * second, high)
            scales, zeros, codes = affines(lows, highs)
            clipped = _clipped_twin(sides, scales, codes)
            errors = np.full(scales.size, np.nan)
            likely = np.flatnonzero(clipped <= best + 2.0 * slack)
            if likely.size:
                errors[likely] = _sides_twin(sides, scales[likely], (codes[0][likely], codes[1][likely]))
            improved = False
            for move, (scale, zero) in enumerate(zip(scales.tolist(), zeros.tolist(), strict=True)):
                if (scale == best_scale and zero == best_zero) or clipped[move] > best + 2.0 * slack:
                    continue
                if np.isnan(errors[move]):  # the best became worse by less than the slack
                    at = slice(move, move + 1)
                    errors[at] = _sides_twin(sides, scales[at], (codes[0][at], codes[1][at]))
                value = float(errors[move])
                if value > best + 2.0 * slack:
                    continue
                if value >= best - 2.0 * slack:
                    exact = _error_twin(points, weights, scale, zero, qmin, qmax)
                    if not exact < _error_twin(points, weights, best_scale, best_zero, qmin, qmax):
                        continue
                best, best_low, best_high = value, float(lows[move]), float(highs[move])
                best_scale, best_zero = scale, zero
                improved = True
            if not improved:
                break
    return best_low, best_high


_error = compiled(_error_loop, _error_twin, value_s=20e-9)
_search = compiled(_search_loop, _search_twin, value_s=0.3e-6)


def squared_error(points: Float64, weights: Float64, affine: Affine) -> float:
    """Sum of weight * (x - x_hat)^2, in squared real units, for weighted points (M,) under an affine."""
    qmin, qmax = float(affine.dtype.qmin), float(affine.dtype.qmax)
    return float(_error(points, weights, affine.scale, float(affine.zero_point), qmin, qmax))


def mse_range(
    histogram: Histogram, dtype: QType, *, symmetric: bool, points: Points | None = None
) -> tuple[float, float]:
    """Choose the clip range with the least expected squared error.

    Args:
        histogram: The tensor's values.
        dtype: Target type.
        symmetric: Clip range [-t, t] with zero point 0.
        points: What `points_of` gives, where it is known already.

    Returns:
        (low, high) in real units. The search shrinks both ends together and each alone, on a geometric grid of 2 %
        steps until that gains nothing more, then of 0.5 % steps; the widest of equal ranges wins.
    """
    values, weights = points or points_of(histogram)
    low, high = min(histogram.observed[0], 0.0), max(histogram.observed[1], 0.0)
    if symmetric:
        high = max(-low, high)
        low = -high
    qmin, qmax = float(dtype.qmin), float(dtype.qmax)
    stages = tuple(np.array([ratio**power for power in powers]) for ratio, powers in STAGES)
    sides = _tails(values, weights, 1.0), _tails(values, weights, -1.0)
    low, high = _search(values, weights, sides, low, high, qmin, qmax, symmetric, stages, ROUNDS)
    return float(low), float(high)
