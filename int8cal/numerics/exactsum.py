"""Sums of float64 values that do not depend on their order: a fixed-point accumulator wide enough for all of them.

Each value is added as an integer multiple of 2**-448 into limbs of 32 bits held in int64 (a Kulisch accumulator).
Integer addition is associative, so shards, batches and retries give the same bits. Values are 0 or have a magnitude in
[2**-395, 2**383); sums over float32 values and their squares lie in [2**-298, 2**320). Others are not added.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.numerics.compiled import part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from int8cal.numerics import Float64, Int64

LIMBS = 28  # 896 bits: from 2**-448 (below the square of the smallest float32, with 53 bits to spare) to 2**447
LOWEST = -448
_MASK = (1 << 32) - 1
_BYTES = 4 * (LIMBS - 1) + 8  # of a sum as one number: its last limb has 64 bits
_WIDTH = 4 * LIMBS  # of the lower halves of limbs, or of the upper ones, to which _HALF is added: they may be negative
_HALF = 1 << 31
_ALL_HALVES = int.from_bytes(_HALF.to_bytes(4, "little") * LIMBS, "little")
_FEW = 32  # sums that are carried one by one, as whole numbers; numpy takes longer to start
_PLACES = 778  # of the lowest bit of a value; from there on too few limbs would be left for carries


def zeros(count: int) -> Int64:
    """Return accumulators of value 0 for `count` sums, int64 (count, LIMBS)."""
    return np.zeros((count, LIMBS), np.int64)


def add(limbs: Int64, values: Float64) -> None:
    """Add a value to each sum.

    Args:
        limbs: int64 (C, LIMBS), added to.
        values: float64 (C,); those that are not finite are left out.
    """
    fraction, exponent = np.frexp(np.abs(values))
    position = exponent.astype(np.int64) - 53 - LOWEST
    # non-finite activations are tallied, and stop the run, elsewhere
    rows = np.flatnonzero((values != 0.0) & np.isfinite(values) & (position >= 0) & (position < _PLACES))
    mantissa = (fraction[rows] * 2.0**53).astype(np.int64)  # exact
    limb, shift = np.divmod(position[rows], 32)
    low, high = (mantissa & _MASK) << shift, (mantissa >> 32) << shift
    sign = np.where(values[rows] > 0.0, 1, -1)
    limbs[rows, limb] += sign * (low & _MASK)
    limbs[rows, limb + 1] += sign * ((low >> 32) + (high & _MASK))
    limbs[rows, limb + 2] += sign * (high >> 32)


def _add_loop(limbs: Any, values: Any) -> None:
    for c in range(values.size):
        value = values[c]
        if value == 0.0 or not math.isfinite(value):
            continue  # non-finite activations are tallied, and stop the run, elsewhere
        fraction, exponent = math.frexp(abs(value))
        mantissa = np.int64(fraction * 9007199254740992.0)  # 2**53, exact
        position = exponent - 53 + 448
        if position < 0 or position >= _PLACES:
            continue
        sign = np.int64(1) if value > 0 else np.int64(-1)
        limb = position >> 5
        shift = position & 31
        low = (mantissa & np.int64(0xFFFFFFFF)) << np.int64(shift)
        high = (mantissa >> np.int64(32)) << np.int64(shift)
        limbs[c, limb] += sign * (low & np.int64(0xFFFFFFFF))
        limbs[c, limb + 1] += sign * (((low >> np.int64(32)) & np.int64(0xFFFFFFFF)) + (high & np.int64(0xFFFFFFFF)))
        limbs[c, limb + 2] += sign * (high >> np.int64(32))


add_part = part(_add_loop)  # `add`, for loops that call it


def canonical(limbs: Int64) -> Int64:
    """Carry, so that equal sums are equal arrays: limbs in [0, 2**32), only the last signed."""
    if len(limbs) <= _FEW:
        return _limbs_of(_integers(limbs))
    result = limbs.copy()
    for index in range(LIMBS - 1):
        result[:, index + 1] += result[:, index] >> 32
        result[:, index] &= _MASK
    return result


def value(limbs: Int64) -> Float64:
    """Return the sums rounded once to float64, (count,)."""
    # int / int rounds correctly in Python, whatever the sizes
    return np.array([total / (1 << -LOWEST) for total in _integers(limbs)], np.float64)


def scaled_sums(limbs: Int64, exponents: Int64) -> Int64:
    """Multiply each sum by its power of two, exactly.

    Args:
        limbs: Sums (count, LIMBS) of float32 values or of their squares.
        exponents: int64 (count,), each at least -90: down to there no bit of such a sum is lost.

    Returns:
        Canonical limbs (count, LIMBS).
    """
    moved = (
        total << exponent if exponent >= 0 else total >> -exponent
        for total, exponent in zip(_integers(limbs), exponents.tolist(), strict=True)
    )
    return _limbs_of(moved)


def _limbs_of(sums: Iterable[int]) -> Int64:
    """Return whole numbers as canonical limbs."""
    data = np.frombuffer(b"".join(each.to_bytes(_BYTES, "little", signed=True) for each in sums), np.uint8)
    low, last = np.split(data.reshape(-1, _BYTES), [_BYTES - 8], axis=1)
    return np.concatenate([np.ascontiguousarray(low).view("<u4"), np.ascontiguousarray(last).view("<i8")], axis=1)


def _integers(limbs: Int64) -> list[int]:
    """Return sums as whole numbers; their limbs may be of any sign, and not carried."""
    low, high = ((half & _MASK).astype("<u4").tobytes() for half in (limbs, (limbs >> 32) + _HALF))
    return [
        int.from_bytes(low[at : at + _WIDTH], "little")
        + (int.from_bytes(high[at : at + _WIDTH], "little") - _ALL_HALVES << 32)
        for at in range(0, len(low), _WIDTH)
    ]
