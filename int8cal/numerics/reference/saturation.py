"""What VPMADDUBSW loses: the part of each pair's sum that s16 cannot hold (NUMERICS 3).

The instruction multiplies two u8 by two s8 and adds the two products into s16 with saturation. Most pairs of weights
cannot leave s16 whatever they are multiplied with, so only the pairs that can are looked at: what the instruction gives
is the exact sum plus `excess`. The loop and its twin count integers and agree exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from int8cal.errors import ModelError
from int8cal.numerics.compiled import compiled
from int8cal.numerics.pairs import SAFE_SUM, one_sign

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

S16_MIN, S16_MAX = -32768, 32767
_BLOCK = 512  # columns that stay in the first-level cache with their sums


@dataclass(frozen=True)
class RiskyPairs:
    """Pairs of weights whose sum of products may leave s16, sorted by row.

    Attributes:
        row: int64 (R,), the row (output channel) of each pair.
        start: int64 (R,), position k of its first weight; the second is at k + 1.
        first, second: int32 (R,), the two weights.
    """

    row: Int64
    start: Int64
    first: Int32
    second: Int32


def check_pairs(pair_starts: npt.ArrayLike, length: int) -> Int64:
    """Sort the starts of pairs, and refuse pairs that overlap or leave the row.

    Args:
        pair_starts: Positions k such that k and k + 1 meet in one instruction, any order.
        length: Length K of a row.

    Returns:
        int64, ascending.

    Raises:
        ModelError: a pair lies outside [0, length), or two pairs share a position.
    """
    starts = np.sort(np.asarray(pair_starts, np.int64).reshape(-1))
    if starts.size and (starts[0] < 0 or starts[-1] + 1 >= length):
        raise ModelError(f"a pair of weights lies outside a row of {length}", do="give positions k with k + 1 < K")
    if (np.diff(starts) < 2).any():
        raise ModelError("two pairs of weights share a position", do="a weight meets one other in an instruction")
    return starts


def risky_pairs(rows: npt.NDArray[np.int8], pair_starts: npt.ArrayLike) -> RiskyPairs:
    """Find the pairs that some u8 input can drive out of s16.

    Args:
        rows: int8 (OC, K).
        pair_starts: As `check_pairs` takes them.

    Returns:
        The pairs with 255 * (sum of the positive weights) > 32767 or 255 * (sum of the negative ones) < -32768.

    Raises:
        ModelError: as `check_pairs`.
    """
    starts = check_pairs(pair_starts, rows.shape[1])
    first, second = rows[:, starts].astype(np.int32), rows[:, starts + 1].astype(np.int32)
    row, index = np.nonzero(one_sign(first, second) > SAFE_SUM)
    return RiskyPairs(row.astype(np.int64), starts[index], first[row, index], second[row, index])


def _excess_loop(columns: Any, at: Any, row: Any, first: Any, second: Any, lost: Any, saturated: Any) -> None:
    width = columns.shape[1]
    # every step is cast back to 32 bits: Python's integers would become 64 bits wide, half as many per instruction
    for begin in range(0, width, 512):
        end = min(begin + 512, width)
        for r in range(row.size):
            a = columns[at[r], begin:end]
            b = columns[at[r] + 1, begin:end]
            into = lost[row[r], begin:end]
            v = np.int32(first[r])
            w = np.int32(second[r])
            hits = np.int32(0)
            for j in range(end - begin):
                total = np.int32(np.int32(np.int32(a[j]) * v) + np.int32(np.int32(b[j]) * w))
                held = np.int32(max(np.int32(-32768), min(np.int32(32767), total)))
                into[j] += np.int32(held - total)
                hits += np.int32(held != total)
            saturated[row[r]] += hits


def excess_twin(
    columns: npt.NDArray[np.uint8], at: Int64, row: Int64, first: Int32, second: Int32, lost: Int32, saturated: Int64
) -> None:
    """Add up what s16 cannot hold; the definition that the compiled loop must match.

    Args:
        columns: uint8 (K, M), C-contiguous: one column per patch.
        at: int64 (R,), the line of `columns` that the first weight of each pair meets; the second meets the next line.
        row: int64 (R,), the line of `lost` that the pair adds to.
        first, second: int32 (R,), the weights.
        lost: int32 (OC, M), added to: saturate(pair sum) - (pair sum), over the pairs of a row. Wraps around as s32.
        saturated: int64 (OC,), added to: how many pair sums left s16.
    """
    for line, target, v, w in zip(at.tolist(), row.tolist(), first.tolist(), second.tolist(), strict=True):
        for begin in range(0, columns.shape[1], _BLOCK):
            pair = columns[line : line + 2, begin : begin + _BLOCK].astype(np.int32)
            total = pair[0] * np.int32(v) + pair[1] * np.int32(w)
            held = np.clip(total, S16_MIN, S16_MAX)
            lost[target, begin : begin + _BLOCK] += held - total
            saturated[target] += np.count_nonzero(held != total)


excess = compiled(_excess_loop, excess_twin)
