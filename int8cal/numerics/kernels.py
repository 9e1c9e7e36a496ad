"""The compiled loops over activations, and the numpy twins that define what they compute, bit for bit.

`observe` is the only place that reads an activation. The numba loops and the twins agree exactly: counts are integers,
extremes are exact, and each sum has one fixed order (stated beside it), so that either may stand in for the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from int8cal.numerics.compiled import compiled

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]

LANES = 8  # a row's sum keeps eight partial sums, value i goes to lane i % 8; lanes are added in order at the end
COARSE_SHIFT = 19  # 16 bins per octave, for per-channel histograms
COARSE_BINS = 1 << (32 - COARSE_SHIFT)
# positions in the tally: what is counted apart from the bins
ZEROS, NANS, POS_INF, NEG_INF, TALLY = 0, 1, 2, 3, 4


def count_twin(bits: UInt32, table: Int64, tally: Int64) -> None:
    """Count float32 bit patterns (N,) into table (2**19,) and tally (4,): zeros, NaN, +inf, -inf."""
    magnitude = bits & np.uint32(0x7FFFFFFF)
    finite = (magnitude < 0x7F800000) & (magnitude != 0)
    np.add(table, np.bincount(bits[finite] >> np.uint32(13), minlength=len(table)), out=table)
    tally[ZEROS] += np.count_nonzero(magnitude == 0)
    tally[NANS] += np.count_nonzero(magnitude > 0x7F800000)
    tally[POS_INF] += np.count_nonzero(bits == 0x7F800000)
    tally[NEG_INF] += np.count_nonzero(bits == 0xFF800000)


def rows_twin(values: Float32, low: Float32, high: Float32, total: Float64, square: Float64) -> None:
    """Per-channel extremes and sums of values (outer, channels, inner), written to (channels,) arrays.

    Values are finite: count_values ran before and found no NaN or infinity.
    low, high are lowered and raised; total and square are overwritten with the sums of x and x*x in float64.
    The sum of channel c runs over outer in order; within one row of inner values it runs in LANES partial sums.
    An extreme that is zero is +0.0, whichever zero came first: merging must not depend on the order.
    """
    outer, channels, inner = values.shape
    np.minimum(low, values.min(axis=(0, 2)), out=low)
    np.maximum(high, values.max(axis=(0, 2)), out=high)
    low += np.float32(0.0)  # -0.0 + 0.0 is +0.0
    high += np.float32(0.0)
    total[:] = 0.0
    square[:] = 0.0
    padded = np.zeros((outer, channels, -(-inner // LANES) * LANES))
    padded[:, :, :inner] = values
    lanes = padded.reshape(outer, channels, -1, LANES)
    for target, terms in ((total, lanes), (square, lanes * lanes)):
        partial = np.zeros((outer, channels, LANES))
        for step in range(terms.shape[2]):
            partial += terms[:, :, step]
        row = np.zeros((outer, channels))
        for lane in range(LANES):
            row += partial[:, :, lane]
        for index in range(outer):
            np.add(target, row[index], out=target)


def coarse_twin(bits: UInt32, table: npt.NDArray[np.uint32]) -> None:
    """Count finite non-zero bit patterns (outer, channels, inner) per channel into table (channels, COARSE_BINS)."""
    magnitude = bits & np.uint32(0x7FFFFFFF)
    finite = (magnitude < 0x7F800000) & (magnitude != 0)
    for channel in range(bits.shape[1]):
        chosen = bits[:, channel][finite[:, channel]] >> np.uint32(COARSE_SHIFT)
        table[channel] += np.bincount(chosen, minlength=COARSE_BINS).astype(np.uint32)


def _count_loop(bits: Any, table: Any, tally: Any) -> None:
    for i in range(bits.size):
        b = bits[i]
        m = b & np.uint32(0x7FFFFFFF)
        if m == 0:
            tally[0] += 1
        elif m < np.uint32(0x7F800000):
            table[b >> np.uint32(13)] += 1
        elif m > np.uint32(0x7F800000):
            tally[1] += 1
        elif b == m:
            tally[2] += 1
        else:
            tally[3] += 1


def _rows_loop(values: Any, low: Any, high: Any, total: Any, square: Any) -> None:
    outer, channels, inner = values.shape
    for c in range(channels):
        total[c] = 0.0
        square[c] = 0.0
    if inner == 1:  # channels last: every row is one value, so its lanes hold one non-zero term
        for o in range(outer):
            for c in range(channels):
                x = values[o, c, 0]
                low[c] = min(low[c], x)
                high[c] = max(high[c], x)
                d = np.float64(x)
                total[c] += d
                square[c] += d * d
        for c in range(channels):
            low[c] += np.float32(0.0)
            high[c] += np.float32(0.0)
        return
    s = np.zeros(8)
    q = np.zeros(8)
    for o in range(outer):
        for c in range(channels):
            row = values[o, c]
            lo = low[c]
            hi = high[c]
            s[:] = 0.0
            q[:] = 0.0
            whole = inner - inner % 8
            for i in range(0, whole, 8):
                for lane in range(8):
                    x = row[i + lane]
                    lo = min(lo, x)
                    hi = max(hi, x)
                    d = np.float64(x)
                    s[lane] += d
                    q[lane] += d * d
            for i in range(whole, inner):
                x = row[i]
                lo = min(lo, x)
                hi = max(hi, x)
                d = np.float64(x)
                s[i - whole] += d
                q[i - whole] += d * d
            low[c] = lo + np.float32(0.0)
            high[c] = hi + np.float32(0.0)
            row_total = 0.0
            row_square = 0.0
            for lane in range(8):
                row_total += s[lane]
                row_square += q[lane]
            total[c] += row_total
            square[c] += row_square


def _coarse_loop(bits: Any, table: Any) -> None:
    outer, channels, inner = bits.shape
    for o in range(outer):
        for c in range(channels):
            for i in range(inner):
                b = bits[o, c, i]
                m = b & np.uint32(0x7FFFFFFF)
                if m != 0 and m < np.uint32(0x7F800000):
                    table[c, b >> np.uint32(19)] += np.uint32(1)


count_values = compiled(_count_loop, count_twin)
channel_rows = compiled(_rows_loop, rows_twin)
count_channels = compiled(_coarse_loop, coarse_twin)
