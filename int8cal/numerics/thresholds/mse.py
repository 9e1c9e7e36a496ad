"""Mean-squared-error range: the clip range whose quantized values are nearest to the observed ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from int8cal.numerics.affine import Affine, QType, affine_from_range
from int8cal.numerics.compiled import compiled
from int8cal.numerics.loglinear import Spectrum, linear_histogram

Float64 = npt.NDArray[np.float64]

# Points are linear bins in windows around 0, each a quarter as wide as the one before: a tensor with an outlier may be
# clipped to a small part of its range, and the rounding error there needs points finer than that range's steps.
RESOLUTION = 2048  # points per window: 8 per step of a range that fills it
WINDOWS = tuple(4.0**-k for k in range(5))
ROUNDS = 5  # how often the coarse search starts again from where it arrived


def _error_loop(points: Any, weights: Any, scale: Any, zero_point: Any, codes: Any) -> Any:
    total = 0.0
    qmin, qmax = codes
    for i in range(points.size):
        q = np.rint(points[i] / scale) + zero_point
        q = min(max(q, qmin), qmax)
        d = points[i] - (q - zero_point) * scale
        total += weights[i] * d * d
    return total


_error = compiled(_error_loop)


def points_of(spectrum: Spectrum) -> tuple[Float64, Float64]:
    """Resample a spectrum to weighted points: (values, weights), float64 (M,); zeros stay exact zeros."""
    low, high = min(spectrum.observed[0], 0.0), max(spectrum.observed[1], 0.0)
    if high <= low:
        return np.zeros(1), np.array([float(spectrum.total)])
    zero = (spectrum.low == 0.0) & (spectrum.high == 0.0)
    rest = Spectrum(spectrum.low[~zero], spectrum.high[~zero], spectrum.counts[~zero], spectrum.observed)
    edges = np.unique(np.concatenate([np.linspace(low * part, high * part, RESOLUTION + 1) for part in WINDOWS]))
    counts = linear_histogram(rest, edges)
    used = counts > 0
    points = (edges[:-1] + edges[1:])[used] / 2
    weights = counts[used].astype(np.float64)
    return np.append(points, 0.0), np.append(weights, float(spectrum.counts[zero].sum()))


def squared_error(points: Float64, weights: Float64, affine: Affine) -> float:
    """Sum of weight * (x - x_hat)^2, in squared real units, for weighted points (M,) under an affine."""
    codes = (float(affine.dtype.qmin), float(affine.dtype.qmax))
    return float(_error(points, weights, affine.scale, float(affine.zero_point), codes))


def mse_range(spectrum: Spectrum, dtype: QType, *, symmetric: bool) -> tuple[float, float]:
    """Choose the clip range with the least expected squared error.

    Args:
        spectrum: The tensor's values.
        dtype: Target type.
        symmetric: Clip range [-t, t] with zero point 0.

    Returns:
        (low, high) in real units. The search shrinks both ends together and each alone, on a geometric grid of 2 %
        steps until that gains nothing more, then of 0.5 % steps; the widest of equal ranges wins.
    """
    points, weights = points_of(spectrum)
    low, high = min(spectrum.observed[0], 0.0), max(spectrum.observed[1], 0.0)
    if symmetric:
        high = max(-low, high)
        low = -high

    def error(a: float, b: float) -> float:
        return squared_error(points, weights, affine_from_range(a, b, dtype, symmetric=symmetric))

    best = (error(low, high), low, high)
    two_sided = not symmetric and low < 0.0 < high
    for ratio, powers in ((0.98, range(110)), (0.995, range(-8, 9))):
        moves = [(ratio**k, ratio**k) for k in powers]
        if two_sided:
            moves += [(ratio**k, 1.0) for k in powers] + [(1.0, ratio**k) for k in powers]
        for _ in range(ROUNDS):
            before = best
            best = _best(error, best, best[1:], moves, (low, high))
            if best is before:
                break
    return best[1], best[2]


def _best(
    error: Any,
    best: tuple[float, float, float],
    start: tuple[float, float],
    moves: list[tuple[float, float]],
    limits: tuple[float, float],
) -> tuple[float, float, float]:
    for left, right in moves:
        a, b = max(start[0] * left, limits[0]), min(start[1] * right, limits[1])
        value = error(a, b)
        if value < best[0] and not math.isnan(value):
            best = (value, a, b)
    return best
