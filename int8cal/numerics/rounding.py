"""Codes and scales of weights, chosen by the error that they make at the layer's output.

Rounding each weight to the nearest code makes the least squared error per weight, but what counts is the error of their
sum. Inputs of a layer are alike: after a Relu all are positive, and neighbouring positions of a channel hold nearly the
same value. With inputs that vary by 1 each, by SAME_CHANNEL within a channel and by ALL over all of them together, the
squared error at the output is

    J(e) = sum_k e_k^2 + SAME_CHANNEL * sum_c (sum of e over channel c)^2 + ALL * (sum_k e_k)^2

Rounding starts from the nearest codes, brings pairs that could saturate to the nearest safe ones, and then moves single
codes by one as long as J falls: a weight is rounded up instead of down, never further, and zero stays zero. The same J
chooses the scale. No data is needed, so a table's scales alone give the same codes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.numerics.affine import SMALLEST_SCALE, QType
from int8cal.numerics.compiled import compiled, part
from int8cal.numerics.pairs import SAFE_SUM, Links, Rows
from int8cal.threads import require_wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.numerics import Array, Float32, Float64, Int8, Int64

    Floats = npt.NDArray[np.floating[Any]]

# Measured on the output error of eight networks with int8 weights alone: anything between half and twice these is alike
SAME_CHANNEL = 0.6
ALL = 0.3

LEAST_SCALE = 0.8  # of the one that clips nothing, where the scales that are tried begin
# Scales per output channel: so many over the whole span, and so many about the best of these, up to AROUND of a first
# step away. J is smooth from afar and rough near by, so the best lie where the first are good: 96 over the whole span
# leave 0.01 to 0.09 dB more error in the weights of eight networks than these 48. Of rows of less than ROUGH weights J
# is rough everywhere: 96 over the whole span leave up to 1 dB less.
COARSE, FINE, AROUND = 16, 32, 1.5
ROUGH, OF_ROUGH = 32, 96
# Of so many also the moves are tried. Of rows of LONG weights the second half of four would leave 0.01 to 0.03 dB less
# error in the weights, and takes a third of the search's time.
FINALISTS, LONG, OF_LONG = 4, 256, 2
PASSES = 20  # over a row, at most; two to five are usual
_BLOCK = 64  # weights looked at together
_FEW = 16  # terms that are summed one after the other
# of scales that are tried: shares of their span
_TO_ONE, _TO_ONE_OF_ROUGH = (np.linspace(0.0, 1.0, count - 2) for count in (COARSE, OF_ROUGH))
_AROUND = np.linspace(-1.0, 1.0, FINE)
_AT_ONCE = 1 << 21  # weights looked at together: a float64 copy of a large matrix takes more memory than the model


def choose_scales(rows: Rows, dtype: QType, links: Links) -> Float64:
    """Choose the scale of each output channel.

    Args:
        rows: Finite weights, (scales, outputs per scale, K).
        dtype: The range of the codes.
        links: Neighbours that must stay safe, (K - 1,); all False for none.

    Returns:
        float64 values that are exact float32, (scales,). An all-zero channel gets SMALLEST_SCALE.
    """
    parts = [_chosen(rows.values[few], rows.positions, dtype, links) for few in _parts(rows.values)]
    return np.concatenate(parts)


def _parts(values: Array) -> Iterator[slice]:
    step = max(_AT_ONCE // max(values[:1].size, 1), 1)
    for start in range(0, max(len(values), 1), step):
        require_wanted()
        yield slice(start, start + step)


def _chosen(stored: Array, positions: int, dtype: QType, links: Links) -> Float64:
    values = np.ascontiguousarray(stored, np.float64)
    flat = values.reshape(len(values), -1)
    widest = np.maximum(flat.max(axis=1) / dtype.qmax, flat.min(axis=1) / dtype.qmin)
    # a first look in float32, in units of the widest scale, so that nothing leaves float32
    unit = np.where(widest > 0.0, widest, 1.0)
    units = (values / unit[:, None, None]).astype(np.float32)
    qrange = np.array([dtype.qmin, dtype.qmax], np.float32)
    # up to where nothing is clipped and no pair is touched, and a little further; these two points exactly, at which
    # rows of few values have no error
    starts = np.flatnonzero(links)
    # pairs of two signs, which are in the way of no scale, have smaller sums than the widest weight
    pairs = (units[..., :-1] + units[..., 1:]) * links
    sums = np.maximum(pairs.max(axis=(1, 2), initial=0.0), -pairs.min(axis=(1, 2), initial=0.0))
    safe = np.maximum(sums / SAFE_SUM * unit, widest)
    low, high = LEAST_SCALE * widest[:, None], np.maximum(1.25 * widest, 1.05 * safe)[:, None]
    weights = int(np.count_nonzero(values.any(axis=(0, 1))))  # a channel of zeros has no error at any scale
    rough = weights < ROUGH
    finalists = FINALISTS if weights < LONG else OF_LONG
    spaced = low + (_TO_ONE_OF_ROUGH if rough else _TO_ONE) * (high - low)

    def look(candidates: Float64) -> tuple[Float64, Float64]:
        exact = np.maximum(candidates.astype(np.float32).astype(np.float64), SMALLEST_SCALE)
        errors = np.empty(exact.shape)
        leasts = (SAFE_SUM - 2.0) * exact.min(axis=1) / unit
        factors = (unit[:, None] / exact).astype(np.float32)
        _look(units, factors, exact, positions, starts, leasts, qrange, errors)
        return exact, errors

    scales, errors = look(np.concatenate([widest[:, None], safe[:, None], spaced], axis=1))
    if rough:
        return _best_moved(values, scales, errors, FINALISTS, positions, dtype, links)
    best = np.take_along_axis(scales, errors.argmin(axis=1)[:, None], axis=1)
    reach = AROUND * (high - low) / (COARSE - 3)
    finer, theirs = look(np.clip(best + _AROUND * reach, low, high))
    scales, errors = np.concatenate([scales, finer], axis=1), np.concatenate([errors, theirs], axis=1)
    return _best_moved(values, scales, errors, finalists, positions, dtype, links)


def _best_moved(
    values: Float64, candidates: Float64, errors: Float64, finalists: int, positions: int, dtype: QType, links: Links
) -> Float64:
    """Return of each row's finalists, the candidates of least error, the one that moves make the best."""
    starts, every = np.flatnonzero(links), np.arange(len(values))
    best, chosen = np.full(len(values), np.inf), np.empty(len(values))
    no_codes, error = np.empty((0, 0, 0), np.int8), np.empty(len(values))
    for _ in range(min(finalists, errors.shape[1])):
        j = np.argmin(errors, axis=1)
        errors[every, j] = np.inf
        scales = candidates[every, j]
        _round(values, scales, positions, links, starts, float(dtype.qmin), float(dtype.qmax), no_codes, error)
        chosen = np.where(error < best, scales, chosen)
        best = np.minimum(error, best)
    return chosen


def round_codes(rows: Rows, scales: Float64, dtype: QType, links: Links) -> Int8:
    """Round weights to codes.

    Args:
        rows: Weights, (scales, outputs per scale, K).
        scales: (scales,), positive.
        dtype: The range of the codes.
        links: Neighbours that must stay safe, (K - 1,).

    Returns:
        int8 codes shaped as rows.values. No linked pair can saturate: `pairs.unsafe_pairs` is False everywhere.
    """
    codes, starts, no_errors = np.empty(rows.values.shape, np.int8), np.flatnonzero(links), np.empty(0)
    low, high = float(dtype.qmin), float(dtype.qmax)
    for few in _parts(rows.values):
        values = np.ascontiguousarray(rows.values[few], np.float64)
        _round(values, scales[few], rows.positions, links, starts, low, high, codes[few], no_errors)
    return codes


@part
def _nearest(exact: Any, starts: Any, low: Any, high: Any, codes: Any) -> None:
    # exact: weights in units of the scale; codes: the nearest, then pairs brought to the nearest safe ones
    for k in range(exact.size):
        codes[k] = min(max(np.rint(exact[k]), low), high)
    for k in starts:
        if abs(codes[k] + codes[k + 1]) <= SAFE_SUM:
            continue
        sign = 1.0 if codes[k] > 0.0 else -1.0  # of both: codes of different signs are no larger together than apart
        first, second = sign * codes[k], sign * codes[k + 1]
        half = np.rint((sign * (exact[k] - exact[k + 1]) + SAFE_SUM) / 2.0)
        # magnitudes only fall, so a pair that shares one of these two weights stays safe
        first = min(max(half, SAFE_SUM - second), first)
        codes[k] = sign * first
        codes[k + 1] = sign * (SAFE_SUM - first)


@part
def _heavy(weights: Any, linked: Any, least: Any, starts: Any) -> Any:
    # few pairs can be unsafe at any scale: those whose sum is at least `least`, as rounding adds 1 to it at most
    size = 0
    for k in linked:
        starts[size] = k
        size += abs(weights[k] + weights[k + 1]) >= least
    return size


@part
def _folded(values: Any, size: Any) -> Any:
    # the sum of the first ones, halves added to halves: in this order whatever the width of a CPU's vectors; the array
    # is used up
    while size > _FEW:
        half = (size + 1) // 2
        for k in range(size - half):
            values[k] += values[half + k]
        size = half
    total = 0.0
    for k in range(size):
        total += values[k]
    return total


@part
def _errors(exact: Any, codes: Any, positions: Any, sums: Any) -> None:
    # sums: the error of each channel
    channels = sums.size
    sums[:] = 0.0
    for p in range(positions):
        wanted, found = exact[p * channels : (p + 1) * channels], codes[p * channels : (p + 1) * channels]
        for c in range(channels):
            sums[c] += found[c] - wanted[c]


@part
def _score(exact: Any, codes: Any, positions: Any, sums: Any, squares: Any) -> Any:
    # J in units of the scale; the last two arrays, one value per channel, are room to work in
    channels = sums.size
    if positions == 1 and channels > _FEW:
        half = (channels + 1) // 2  # the first halves are added to the second ones at once
        rest = channels - half
        wanted, found = exact[half:], codes[half:]
        for c in range(rest):
            error, other = codes[c] - exact[c], found[c] - wanted[c]
            sums[c] = error + other
            squares[c] = error * error + other * other
        for c in range(rest, half):
            error = codes[c] - exact[c]
            sums[c] = error
            squares[c] = error * error
        square = _folded(squares, half)
        total = _folded(sums, half)
        return square + SAME_CHANNEL * square + ALL * (total * total)
    for c in range(channels):
        error = codes[c] - exact[c]
        sums[c] = error
        squares[c] = error * error
    for p in range(1, positions):
        wanted, found = exact[p * channels : (p + 1) * channels], codes[p * channels : (p + 1) * channels]
        for c in range(channels):
            error = found[c] - wanted[c]
            sums[c] += error
            squares[c] += error * error
    square = within = _folded(squares, channels)
    if positions > 1:
        for c in range(channels):
            squares[c] = sums[c] * sums[c]
        within = _folded(squares, channels)
    total = _folded(sums, channels)
    return square + SAME_CHANNEL * within + ALL * (total * total)


@part
def is_safe(codes: Any, k: Any, code: Any, links: Any) -> Any:
    """Whether a code may stand at place k beside the codes that meet it; for compiled loops."""
    for other in (k - 1, k + 1):
        if other < 0 or other >= codes.size or not links[min(k, other)]:
            continue
        near = codes[other]
        if max(near, 0.0) + max(code, 0.0) > SAFE_SUM or min(near, 0.0) + min(code, 0.0) < -SAFE_SUM:
            return False
    return True


@part
def _move(exact: Any, links: Any, low: Any, high: Any, sums: Any, codes: Any) -> None:
    # sums: the error of each channel, kept up to date
    channels = sums.size
    total = 0.0
    for c in range(channels):
        total += sums[c]
    curve = 1.0 + SAME_CHANNEL + ALL
    for _ in range(PASSES):
        moved = False
        for start in range(0, exact.size, channels):
            for begin in range(0, channels, _BLOCK):
                end = min(begin + _BLOCK, channels)
                some = 0  # in most blocks no code moves, and to see that takes a fraction of the time
                wanted, found = exact[start + begin : start + end], codes[start + begin : start + end]
                near_sums = sums[begin:end]
                for c in range(near_sums.size):
                    slope = 2.0 * (found[c] - wanted[c] + SAME_CHANNEL * near_sums[c] + ALL * total)
                    some += curve - abs(slope) < -1e-9
                if not some:
                    continue
                for c in range(begin, end):
                    k = start + c
                    error = codes[k] - exact[k]
                    slope = 2.0 * (error + SAME_CHANNEL * sums[c] + ALL * total)
                    # what J gains by the step; a hair below zero, so that equal codes do not swap for ever
                    if curve - abs(slope) >= -1e-9 or exact[k] == 0.0:
                        continue
                    step = -1.0 if slope > 0.0 else 1.0
                    code = codes[k] + step
                    near = abs(error + step) < max(1.0, abs(error))
                    if near and low <= code <= high and is_safe(codes, k, code, links):
                        codes[k] = code
                        sums[c] += step
                        total += step
                        moved = True
        if not moved:
            break


def _look_loop(
    units: Any, factors: Any, candidates: Any, positions: Any, starts: Any, leasts: Any, qrange: Any, errors: Any
) -> None:
    # units, factors: values, and what brings them to each candidate (see `_chosen`); qrange: (qmin, qmax); float32
    # starts: the linked places; leasts: sums of pairs, in these units, from which on a candidate may make one unsafe
    size = units.shape[2]
    near, codes = np.empty(size, np.float32), np.empty(size, np.float32)
    room = np.empty((2, size // positions), np.float32)
    heavy = np.empty(starts.size, np.int64)
    for i in range(len(units)):
        for j in range(candidates.shape[1]):
            errors[i, j] = 0.0
        for output in range(units.shape[1]):
            unit = units[i, output]
            few = heavy[: _heavy(unit, starts, leasts[i], heavy)]
            for j in range(candidates.shape[1]):
                for k in range(size):
                    near[k] = unit[k] * factors[i, j]
                _nearest(near, few, qrange[0], qrange[1], codes)
                errors[i, j] += _score(near, codes, positions, room[0], room[1])
        for j in range(candidates.shape[1]):
            errors[i, j] *= candidates[i, j] * candidates[i, j]


def _round_loop(
    values: Any,
    scales: Any,
    positions: Any,
    links: Any,
    starts: Any,
    low: Any,
    high: Any,
    result: Any,
    errors: Any,
) -> None:
    # fills the codes, shaped as values, and the sum of J of each scale; either may be empty, for none
    size = values.shape[2]
    exact, codes = np.empty(size), np.empty(size)
    room = np.empty((2, size // positions))
    heavy = np.empty(starts.size, np.int64)
    for i in range(len(values)):
        scale = scales[i]
        error = 0.0
        for output in range(values.shape[1]):
            for k in range(size):
                exact[k] = values[i, output, k] / scale
            _nearest(exact, heavy[: _heavy(exact, starts, SAFE_SUM - 2.0, heavy)], low, high, codes)
            _errors(exact, codes, positions, room[0])
            _move(exact, links, low, high, room[0], codes)
            if result.size > 0:
                for k in range(size):
                    result[i, output, k] = np.int8(codes[k])
            if errors.size > 0:
                error += _score(exact, codes, positions, room[0], room[1]) * (scale * scale)
        if errors.size > 0:
            errors[i] = error


def _nearest_twin(exact: Floats, starts: Int64, low: Any, high: Any) -> Floats:
    # the same for all rows at once: exact (rows, K)
    codes = np.clip(np.rint(exact), low, high)
    if (np.diff(starts) > 1).all():  # disjoint pairs need no order
        _bring_to_safe(exact, codes, starts)
    else:
        for k in starts:
            _bring_to_safe(exact, codes, np.array([k]))
    return codes


def _bring_to_safe(exact: Floats, codes: Floats, starts: Int64) -> None:
    apart = (exact[:, starts] - exact[:, starts + 1]).astype(np.float64)
    for sign in (1.0, -1.0):
        first, second = sign * codes[:, starts], sign * codes[:, starts + 1]
        unsafe = (first > 0.0) & (second > 0.0) & (first + second > SAFE_SUM)
        half = np.rint((sign * apart + SAFE_SUM) / 2.0)
        lowered = np.minimum(np.maximum(half, SAFE_SUM - second), first)
        codes[:, starts] = np.where(unsafe, sign * lowered, codes[:, starts])
        codes[:, starts + 1] = np.where(unsafe, sign * (SAFE_SUM - lowered), codes[:, starts + 1])


def _in_order(terms: Floats) -> Float64:
    """Sum over axis 1 one after the other, as the loops do; numpy's own sum goes pairwise."""
    result: Float64 = np.cumsum(terms, axis=1, dtype=np.float64)[:, -1]
    return result


def _folded_twin(values: Floats) -> Float64:
    left: Array = values
    while left.shape[1] > _FEW:
        half = (left.shape[1] + 1) // 2
        added = left[:, : left.shape[1] - half] + left[:, half:]
        left = np.concatenate([added, left[:, added.shape[1] : half]], axis=1)
    return _in_order(left)


def _summed(terms: Floats, positions: int) -> Floats:
    """Sum over positions one after the other: (rows, K) -> (rows, channels)."""
    result: Floats = np.cumsum(terms.reshape(len(terms), positions, -1), axis=1)[:, -1]
    return result


def _score_twin(exact: Floats, codes: Floats, positions: int) -> Float64:
    error = codes - exact
    sums = _summed(error, positions)
    within, total = _folded_twin(sums * sums), _folded_twin(sums)
    return _folded_twin(_summed(error * error, positions)) + SAME_CHANNEL * within + ALL * (total * total)


def _move_twin(exact: Floats, links: Links, low: float, high: float, sums: Floats, codes: Floats) -> None:
    channels = sums.shape[1]
    total = _in_order(sums)
    active = np.ones(len(exact), np.bool_)
    for _ in range(PASSES):
        moved = np.zeros(len(exact), np.bool_)
        for k in range(exact.shape[1]):
            c = k % channels
            error = codes[:, k] - exact[:, k]
            slope = 2.0 * (error + SAME_CHANNEL * sums[:, c] + ALL * total)
            step = np.where(slope > 0.0, -1.0, 1.0)
            go = active & (slope * step + (1.0 + SAME_CHANNEL + ALL) < -1e-9) & (exact[:, k] != 0.0)
            code = codes[:, k] + step
            go &= (np.abs(error + step) < np.maximum(1.0, np.abs(error))) & (low <= code) & (code <= high)
            if not go.any():
                continue
            for other in (k - 1, k + 1):
                if 0 <= other < codes.shape[1] and links[min(k, other)]:
                    near = codes[:, other]
                    go &= np.maximum(near, 0.0) + np.maximum(code, 0.0) <= SAFE_SUM
                    go &= np.minimum(near, 0.0) + np.minimum(code, 0.0) >= -SAFE_SUM
            codes[go, k] = code[go]
            sums[go, c] += step[go]
            total[go] += step[go]
            moved |= go
        active &= moved
        if not active.any():
            break


def _look_twin(
    units: Float32,
    factors: Float32,
    candidates: Float64,
    positions: int,
    starts: Int64,
    leasts: Float64,  # noqa: ARG001 - of the loop alone
    qrange: Float32,
    errors: Float64,
) -> None:
    outputs = units.shape[1]
    flat = units.reshape(-1, units.shape[2])
    for column in range(candidates.shape[1]):
        near = flat * np.repeat(factors[:, column], outputs)[:, None]
        score = _score_twin(near, _nearest_twin(near, starts, *qrange), positions)
        errors[:, column] = _in_order(score.reshape(-1, outputs)) * (candidates[:, column] * candidates[:, column])


def _round_twin(
    values: Float64,
    scales: Float64,
    positions: int,
    links: Links,
    starts: Int64,
    low: float,
    high: float,
    result: Int8,
    errors: Float64,
) -> None:
    outputs = values.shape[1]
    spread = np.repeat(scales, outputs)
    exact = values.reshape(-1, values.shape[2]) / spread[:, None]
    codes = _nearest_twin(exact, starts, low, high)
    _move_twin(exact, links, low, high, _summed(codes - exact, positions), codes)
    if result.size:
        result[:] = codes.reshape(values.shape)
    if errors.size:
        errors[:] = _in_order((_score_twin(exact, codes, positions) * (spread * spread)).reshape(-1, outputs))


_look = compiled(_look_loop, _look_twin, value_s=5e-6)
_round = compiled(_round_loop, _round_twin, value_s=0.7e-6)
