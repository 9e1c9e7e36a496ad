"""Mean-squared-error range: the clip range whose quantized values are nearest to the observed ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from int8cal.numerics.affine import Affine, QType, affine_from_range
from int8cal.numerics.kernels import njit
from int8cal.numerics.loglinear import Spectrum, linear_histogram

Float64 = npt.NDArray[np.float64]

RESOLUTION = 4096  # linear points per tensor: 16 and more per quantization step


def _error_loop(points: Any, weights: Any, scale: Any, zero_point: Any, qmin: Any, qmax: Any) -> Any:
    total = 0.0
    for i in range(points.size):
        q = np.rint(points[i] / scale) + zero_point
        q = min(max(q, qmin), qmax)
        d = points[i] - (q - zero_point) * scale
        total += weights[i] * d * d
    return total


_error = njit(_error_loop, cache=True, nogil=True, error_model="numpy") if njit is not None else _error_loop


def points_of(spectrum: Spectrum) -> tuple[Float64, Float64]:
    """Resample a spectrum to weighted points: (values, weights), float64 (M,); zeros stay exact zeros."""
    low, high = min(spectrum.observed[0], 0.0), max(spectrum.observed[1], 0.0)
    if high <= low:
        return np.zeros(1), np.array([float(spectrum.total)])
    zero = (spectrum.low == 0.0) & (spectrum.high == 0.0)
    rest = Spectrum(spectrum.low[~zero], spectrum.high[~zero], spectrum.counts[~zero], spectrum.observed)
    edges = np.linspace(low, high, RESOLUTION + 1)
    counts = linear_histogram(rest, edges)
    used = counts > 0
    points = (edges[:-1] + edges[1:])[used] / 2
    weights = counts[used].astype(np.float64)
    return np.append(points, 0.0), np.append(weights, float(spectrum.counts[zero].sum()))


def squared_error(points: Float64, weights: Float64, affine: Affine) -> float:
    """Sum of weight * (x - x_hat)^2, in squared real units, for weighted points (M,) under an affine."""
    return float(
        _error(
            points, weights, affine.scale, float(affine.zero_point), float(affine.dtype.qmin), float(affine.dtype.qmax)
        )
    )


def mse_range(spectrum: Spectrum, dtype: QType, *, symmetric: bool) -> tuple[float, float]:
    """Choose the clip range with the least expected squared error.

    Args:
        spectrum: The tensor's values.
        dtype: Target type.
        symmetric: Clip range [-t, t] with zero point 0.

    Returns:
        (low, high) in real units. The search shrinks both ends together, then each alone, on a geometric grid of 2 % steps,
        then of 0.5 % steps; the widest of equal ranges wins.
    """
    points, weights = points_of(spectrum)
    low, high = min(spectrum.observed[0], 0.0), max(spectrum.observed[1], 0.0)
    if symmetric:
        high = max(-low, high)
        low = -high

    def error(a: float, b: float) -> float:
        return squared_error(points, weights, affine_from_range(a, b, dtype, symmetric=symmetric))

    best = (error(low, high), low, high)
    for ratio, steps in ((0.98, 110), (0.995, 8)):
        _, a, b = best
        powers = range(-steps if ratio > 0.99 else 0, steps + 1)
        moves = [(ratio**k, ratio**k) for k in powers]
        if not symmetric and a < 0.0 < b:
            moves += [(ratio**k, 1.0) for k in powers] + [(1.0, ratio**k) for k in powers]
        best = _best(error, best, (a, b), moves, (low, high))
        if not symmetric and a < 0.0 < b:  # once more from where the first round arrived
            best = _best(error, best, best[1:], moves, (low, high))
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
