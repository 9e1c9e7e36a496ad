"""Codes of weights chosen by the error that they make on given inputs: e^T G e, with G the inputs' second moments.

Per output channel, q minimizes (q - w)^T H (q - w) over integers, w = weight / scale. With H = L L^T, L lower
triangular, this is the distance of a point from a lattice. Columns are rounded from the last to the first, each to the
integer nearest to what makes up for the errors of the columns behind it (GPTQ, which is Babai's nearest plane). Then
single codes go one step as long as the sum falls. H is G per position, mixed with the moments that `rounding` assumes
without data, so that few samples do not decide alone.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.numerics.compiled import compiled
from int8cal.numerics.pairs import SAFE_SUM, Links, Rows
from int8cal.numerics.rounding import ALL, SAME_CHANNEL, is_safe
from int8cal.threads import in_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.numerics import Array, Float64, Int8
    from int8cal.numerics.affine import QType


# How much of H comes from the model without data: LEAST, and more the fewer positions there are for K inputs. Measured
# on held-out samples: with 10 positions per input 0.02 to 0.2 are alike, with half a one 0.6 is best
LEAST_SHARE, SHARE_PER_INPUT, MOST_SHARE = 0.05, 0.25, 0.6
PASSES = 20  # of single steps over a row, at most
_ROUGH = 1e-4  # far above the error of sums in float32
# Weights that are rounded together at least, and rows: products of few rows take as long to lay out the moments.
_PART, _PART_ROWS = 1 << 16, 192
_COLUMNS = 64  # whose errors reach the columns before them in one product
_STRIP = 512  # columns, or rows, of a product of triangular matrices that are taken together


def share_without_data(size: int, count: int) -> float:
    """Say how much of H to take from the model without data, for K inputs seen at so many positions."""
    return min(LEAST_SHARE + SHARE_PER_INPUT * size / max(count, 1), MOST_SHARE)


def mixed(gram: Float64, count: int, channels: int, *, overwrite: bool = False) -> Float64:
    """Mix moments with those assumed without data, whose diagonal is the data's: the scale of each input stays.

    Args:
        gram: (groups, K, K), sum over positions; not changed unless `overwrite`.
        count: Number of positions.
        channels: Input channels per group: the channel of column k is k % channels.
        overwrite: The result takes the place of `gram`: wide layers have 170 MB of it.

    Returns:
        (groups, K, K), positive definite.
    """
    result = np.divide(gram, max(count, 1), out=gram if overwrite else None)
    size = gram.shape[-1]
    share = share_without_data(size, count)
    for group in range(len(result)):
        moments = result[group]
        diagonal = np.diagonal(moments).copy()
        # an input that was always 0 still gets a part, so that its code stays near its weight
        diagonal = np.maximum(diagonal, max(diagonal.mean(), 1.0) * 1e-3)
        spread = np.sqrt(diagonal)
        moments *= 1.0 - share
        for channel in range(channels):
            own = spread[channel::channels] * np.sqrt(share * SAME_CHANNEL / (1.0 + SAME_CHANNEL + ALL))
            moments[channel::channels, channel::channels] += own[:, None] * own
        outer = spread * np.sqrt(share * ALL / (1.0 + SAME_CHANNEL + ALL))
        for first in range(0, size, _STRIP):
            moments[first : first + _STRIP] += outer[first : first + _STRIP, None] * outer
        moments[np.arange(size), np.arange(size)] += share * diagonal / (1.0 + SAME_CHANNEL + ALL)
    return result


def error_power(rows: Rows, scales: Float64, codes: Int8, gram: Float64) -> float:
    """Return e^T G e summed over output channels.

    Args:
        rows: Weights, (scales, outputs per scale, K).
        scales: (scales,).
        codes: Shaped as rows.values.
        gram: (groups, K, K).

    Returns:
        In units of the weights squared times those of gram.
    """
    errors = grouped(codes * scales[:, None, None] - rows.values.astype(np.float64), len(gram)).astype(np.float32)
    total = 0.0
    for own, sums in zip(errors, gram, strict=True):
        # sum of e^T G e = sum of G * sum of e e^T: a symmetric product, of which seven digits are enough
        for first in range(0, len(sums), _STRIP):
            product = own[:, first : first + _STRIP].T @ own[:, first:]
            part = sums[first : first + _STRIP, first:]
            width = product.shape[0]
            total += 2.0 * float(np.einsum("kl,kl->", product, part)) - float(
                np.einsum("kl,kl->", product[:, :width], part[:, :width])
            )
    return total


def grouped(values: Array, groups: int) -> Array:
    """Sort rows (scales, outputs per scale, K) by the group of inputs that they read: (groups, rows, K).

    One output per scale: consecutive outputs belong to one group, as in a Conv. Several: each belongs to another group,
    as in a ConvTranspose.
    """
    if groups == 1:
        return values.reshape(1, -1, values.shape[-1])
    if values.shape[1] == 1:
        return values.reshape(groups, -1, values.shape[-1])
    return np.ascontiguousarray(values.transpose(1, 0, 2))


def ungrouped(values: Array, shape: tuple[int, ...]) -> Array:
    """Undo `grouped`; shape is that of the rows, whose last axis may have another length."""
    length = values.shape[-1]
    if len(values) == 1 or shape[1] == 1:
        return values.reshape(*shape[:2], length)
    return np.ascontiguousarray(values.transpose(1, 0, 2))


def round_second_order(
    rows: Rows,
    scales: Float64,
    dtype: QType,
    links: Links,
    moments: Float64,
    start: Int8,
    lower: Float64 | None = None,
    threads: int = 1,
) -> Int8:
    """Round weights to codes with a small error on given inputs.

    Args:
        rows: Weights, (scales, outputs per scale, K).
        scales: (scales,), positive.
        dtype: The range of the codes.
        links: Neighbours that must stay safe, (K - 1,).
        moments: (groups, K, K), positive definite; see `mixed`.
        start: Codes in range and safe, shaped as rows.values.
        lower: The Cholesky factor of the moments, where it is at hand.
        threads: Each takes some rows at a time; see `products.one_thread_each`.

    Returns:
        int8 codes, in range and safe. Where a weight is 0, so is its code. (q - w)^T moments (q - w) is for no row
        above that of `start`.
    """
    groups = len(moments)
    # rows in one piece: the weights of a MatMul come by columns, which the loops would read from all over the memory
    exact = np.ascontiguousarray(grouped(rows.values / scales[:, None, None], groups), np.float64)
    first = np.ascontiguousarray(grouped(start, groups), np.float64)
    low, high = float(dtype.qmin), float(dtype.qmax)
    lower = factor(moments, threads) if lower is None else lower
    rough = lower.astype(np.float32)
    codes = np.empty(exact.shape, np.int8)

    def round_part(part: tuple[slice, slice]) -> None:
        own, before, of = exact[part], first[part], lower[part[0]]
        codes[part], weighed = columnwise(own, of, links, low, high)
        slopes = _times_transposed(weighed, of)
        found, sums = _descend(own, codes[part], slopes, moments[part[0]], links, low, high)
        # to seven digits at first, which nearly always tell
        worse = sums >= (1.0 - _ROUGH) * _sums(own, before, rough[part[0]])
        if worse.any():
            worse &= sums >= _sums(own, before, of)
        if worse.any():
            slopes = (before - own) @ moments[part[0]]
            other, _ = _descend(own, before, slopes, moments[part[0]], links, low, high)
            found = np.where(worse[:, :, None], other, found)
        codes[part] = found

    for _ in in_parts(round_part, _parts(exact.shape), threads):
        pass
    return ungrouped(codes, rows.values.shape)


def factor(moments: Float64, threads: int = 1) -> Float64:
    """Return the Cholesky factors L of moments, (groups, K, K): lower triangular, moments = L L^T.

    A strip of columns at a time, of which nearly all is products of matrices. numpy's function takes twice as long
    where K is 2,000 and more, and one thread.

    Raises:
        numpy.linalg.LinAlgError: Moments are not positive definite.
    """
    if moments.shape[-1] <= _COLUMNS:
        return np.asarray(np.linalg.cholesky(moments), np.float64)
    result = np.zeros_like(moments)
    for sums, lower in zip(moments, result, strict=True):
        for begin in range(0, len(sums), _COLUMNS):
            end = min(begin + _COLUMNS, len(sums))
            known = lower[begin:end, :begin]
            square = sums[begin:end, begin:end] - known @ known.T
            lower[begin:end, begin:end] = np.linalg.cholesky(square)
            inverse = np.linalg.inv(lower[begin:end, begin:end])
            below = partial(_solve, sums, lower, slice(begin, end), inverse)
            for _ in in_parts(below, list(_strips(end, len(sums))), threads):
                pass
    return result


def _solve(sums: Float64, lower: Float64, own: slice, inverse: Float64, rows: slice) -> None:
    """Find some rows of a strip of a factor, below what is the factor of its own square, whose inverse is given."""
    rest = sums[rows, own] - lower[rows, : own.start] @ lower[own, : own.start].T
    lower[rows, own] = rest @ inverse.T


def _strips(begin: int, end: int) -> Iterator[slice]:
    return (slice(first, min(first + _STRIP, end)) for first in range(begin, end, _STRIP))


def _sums(exact: Float64, codes: Float64, lower: Array) -> Float64:
    """Return e^T L L^T e of codes (groups, rows, K), to the digits that L has: (groups, rows)."""
    errors = (codes - exact).astype(lower.dtype)
    sums = np.zeros(exact.shape[:2])
    for part in _strips(0, exact.shape[2]):
        weighed = errors[:, :, part.start :] @ lower[:, part.start :, part]
        sums += np.einsum("gok,gok->go", weighed, weighed)
    return sums


def _times_transposed(values: Float64, lower: Float64) -> Float64:
    """Return values (groups, rows, K) times L^T."""
    result = np.empty(values.shape)
    for part in _strips(0, values.shape[2]):
        result[:, :, part] = values[:, :, : part.stop] @ lower[:, part, : part.stop].transpose(0, 2, 1)
    return result


def columnwise(exact: Float64, lower: Float64, links: Links, low: float, high: float) -> tuple[Float64, Float64]:
    """Round column by column from the last, each making up for those behind it; safe and in range.

    Args:
        exact: (groups, rows, K), weights in units of their scales.
        lower: (groups, K, K), the Cholesky factor L of the moments: its column k holds how the errors behind k weigh
            against its own.
        links: (K - 1,).
        low, high: Range of the codes.

    Returns:
        Codes, shaped as the weights; and their errors times the factor, whose squares add up to e^T H e.
    """
    size = exact.shape[2]
    codes, errors, weighed = (np.zeros(exact.shape) for _ in range(3))
    for stop in range(size, 0, -_COLUMNS):
        begin = max(stop - _COLUMNS, 0)
        carried = errors[:, :, stop:] @ lower[:, stop:, begin:stop]
        _round_block(exact, lower, links, low, high, begin, carried, codes, errors)
        weighed[:, :, begin:stop] = carried
    return codes, weighed


def _round_block_loop(
    exact: Any, lower: Any, links: Any, low: Any, high: Any, begin: Any, carried: Any, codes: Any, errors: Any
) -> None:
    # carried: what the errors behind each column of the block ask of it, (groups, rows, columns of the block); with the
    # column's own error in the end
    size = exact.shape[2]
    for group in range(len(exact)):
        for row in range(exact.shape[1]):
            weights, own, asked = exact[group, row], codes[group, row], carried[group, row]
            for place in range(carried.shape[2] - 1, -1, -1):
                k = begin + place
                weight, own_factor, factors = weights[k], lower[group, k, k], lower[group, k, begin:k]
                wanted = weight - asked[place] / own_factor
                code = min(max(np.rint(wanted), low), high)
                if k > 0 and links[k - 1]:
                    # the partner is not fixed yet: both give way alike, as `rounding` does
                    other = weights[k - 1]
                    sign = -1.0 if code < 0.0 else 1.0
                    mine, theirs = sign * code, sign * min(max(np.rint(other), low), high)
                    if theirs > 0.0 and mine + theirs > SAFE_SUM:
                        half = np.rint((sign * (wanted - other) + SAFE_SUM) / 2.0)
                        code = sign * min(max(half, SAFE_SUM - theirs), mine)
                if k + 1 < size and links[k]:
                    fixed = own[k + 1]
                    lowest = -SAFE_SUM - fixed if fixed < 0.0 else -SAFE_SUM
                    highest = SAFE_SUM - fixed if fixed > 0.0 else SAFE_SUM
                    code = min(max(code, lowest), highest)
                if weight == 0.0:
                    code = 0.0
                own[k] = code
                error = code - weight
                errors[group, row, k] = error
                for j in range(len(factors)):  # in arrays of their own: only so is it compiled to vectors
                    asked[j] += error * factors[j]
                asked[place] += error * own_factor


def _round_block_twin(
    exact: Float64,
    lower: Float64,
    links: Links,
    low: float,
    high: float,
    begin: int,
    carried: Float64,
    codes: Float64,
    errors: Float64,
) -> None:
    for k in range(begin + carried.shape[2] - 1, begin - 1, -1):
        wanted = exact[:, :, k] - carried[:, :, k - begin] / lower[:, None, k, k]
        code = np.clip(np.rint(wanted), low, high)
        if k > 0 and links[k - 1]:
            near = np.clip(np.rint(exact[:, :, k - 1]), low, high)
            code = _lowered(code, near, wanted, exact[:, :, k - 1])
        if k + 1 < exact.shape[2] and links[k]:
            code = _beside(code, codes[:, :, k + 1])
        code[exact[:, :, k] == 0.0] = 0.0
        codes[:, :, k] = code
        errors[:, :, k] = code - exact[:, :, k]
        carried[:, :, : k - begin] += errors[:, :, k, None] * lower[:, None, k, begin:k]
        carried[:, :, k - begin] += errors[:, :, k] * lower[:, None, k, k]


def _lowered(code: Float64, near: Float64, wanted: Float64, other: Float64) -> Float64:
    sign = np.where(code < 0.0, -1.0, 1.0)
    mine, theirs = sign * code, sign * near
    unsafe = (theirs > 0.0) & (mine + theirs > SAFE_SUM)
    half = np.rint((sign * (wanted - other) + SAFE_SUM) / 2.0)
    return np.where(unsafe, sign * np.minimum(np.maximum(half, SAFE_SUM - theirs), mine), code)


def _beside(code: Float64, fixed: Float64) -> Float64:
    """Bring codes to where they are safe beside fixed ones."""
    lowest = np.where(fixed < 0.0, -SAFE_SUM - fixed, -SAFE_SUM)
    highest = np.where(fixed > 0.0, SAFE_SUM - fixed, SAFE_SUM)
    return np.clip(code, lowest, highest)


def _descend(
    exact: Float64, start: Array, slopes: Float64, moments: Float64, links: Links, low: float, high: float
) -> tuple[Float64, Float64]:
    """Step down from codes (groups, rows, K) with half the gradient there, which is overwritten.

    Returns:
        The codes and their sums, (groups, rows).
    """
    codes = start.astype(np.float64)
    _step(exact, moments, links, low, high, slopes, codes)
    return codes, np.einsum("gok,gok->go", slopes, codes - exact)


def _parts(shape: tuple[int, ...]) -> list[tuple[slice, slice]]:
    """Cut (groups, rows, K), for any number of threads alike: another cut may give other last bits of products."""
    groups, rows, _ = shape
    whole, long = slice(None), rows if groups == 1 else groups
    count = min(max(math.prod(shape) // _PART, 1), max(long * (1 if groups == 1 else rows) // _PART_ROWS, 1), long)
    ends = [long * number // count for number in range(count + 1)]
    cuts = [slice(*each) for each in itertools.pairwise(ends)]
    return [(whole, each) if groups == 1 else (each, whole) for each in cuts]


def _step_loop(exact: Any, moments: Any, links: Any, low: Any, high: Any, slopes: Any, codes: Any) -> None:
    # slopes: half the gradient, moments @ error, kept up to date
    size = exact.shape[2]
    curves = np.empty(size)  # the diagonal, side by side: in the moments its values are a row apart
    for group in range(len(exact)):
        for k in range(size):
            curves[k] = moments[group, k, k]
        for row in range(exact.shape[1]):
            own, found = slopes[group, row], codes[group, row]
            for _ in range(PASSES):
                moved = False
                for begin in range(0, size, _COLUMNS):
                    some = 0  # in most blocks no code moves, and to see that takes a fraction of the time
                    near, bends = own[begin : begin + _COLUMNS], curves[begin : begin + _COLUMNS]
                    for j in range(near.size):
                        some += bends[j] - 2.0 * abs(near[j]) < -1e-9 * bends[j]
                    if not some:
                        continue
                    for k in range(begin, begin + near.size):
                        slope, curve = own[k], curves[k]
                        step = -1.0 if slope > 0.0 else 1.0
                        # a hair below zero, so that equal codes do not swap for ever
                        if curve - 2.0 * abs(slope) >= -1e-9 * curve or exact[group, row, k] == 0.0:
                            continue
                        code = found[k] + step
                        if code < low or code > high or not is_safe(found, k, code, links):
                            continue
                        found[k] = code
                        sums = moments[group, k]
                        for j in range(size):
                            own[j] += step * sums[j]
                        moved = True
                if not moved:
                    break


def _step_twin(
    exact: Float64, moments: Float64, links: Links, low: float, high: float, slopes: Float64, codes: Float64
) -> None:
    active = np.ones(exact.shape[:2], np.bool_)
    for _ in range(PASSES):
        moved = np.zeros(exact.shape[:2], np.bool_)
        for k in range(exact.shape[2]):
            slope, curve = slopes[:, :, k], moments[:, None, k, k]
            step = np.where(slope > 0.0, -1.0, 1.0)
            code = codes[:, :, k] + step
            go = active & (2.0 * slope * step + curve < -1e-9 * curve) & (exact[:, :, k] != 0.0)
            go &= (low <= code) & (code <= high)
            for other in (k - 1, k + 1):
                if 0 <= other < exact.shape[2] and links[min(k, other)]:
                    go &= code == _beside(code, codes[:, :, other])
            group, row = np.nonzero(go)
            codes[group, row, k] = code[group, row]
            slopes[group, row] += step[group, row, None] * moments[group, k]
            moved |= go
        active &= moved
        if not active.any():
            break


_round_block = compiled(_round_block_loop, _round_block_twin, value_s=1e-8)
_step = compiled(_step_loop, _step_twin)
