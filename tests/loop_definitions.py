"""What compiled loops compute, in numpy: they must give the same bits."""

from __future__ import annotations

import math

import numpy as np

from int8cal.numerics import exactsum

MASK = (1 << 32) - 1


def add_exactly(limbs, values):
    """Add values (count,) into limbs (count, LIMBS)."""
    for row, value in zip(limbs, values.tolist(), strict=True):
        if value == 0.0 or not math.isfinite(value):
            continue
        fraction, exponent = math.frexp(abs(value))
        position = exponent - 53 - exactsum.LOWEST
        if position < 0 or position >= 778:
            continue
        shifted = int(fraction * 2.0**53) << (position & 31)
        for offset in range(3):
            part = (shifted >> (32 * offset)) & MASK
            row[(position >> 5) + offset] += part if value > 0 else -part


def gather(table, bins, span):
    first, last = span
    rows = np.concatenate([np.arange(sign + first, sign + last + 1) for sign in (0, bins // 2)])
    chosen = np.ascontiguousarray(table.transpose(0, 2, 1)[:, :, rows]).reshape(-1, max(len(rows), 1))
    channel, row = np.nonzero(chosen)
    return channel * bins + rows[row], chosen[channel, row].astype(np.int64)


def resample(low, high, counts, edges, result):
    before = np.concatenate([[0], np.cumsum(counts)])
    index = np.searchsorted(high, edges, side="left")
    cut = np.minimum(index, len(counts) - 1)
    width = high[cut] - low[cut]
    share = np.clip((edges - low[cut]) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    share = np.where(width > 0, share, 0.0)
    below = np.where(index < len(counts), before[cut] + np.rint(share * counts[cut]).astype(np.int64), before[-1])
    below[-1] = before[-1]
    below[0] = 0
    result[:] = np.diff(below)
