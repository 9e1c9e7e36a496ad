"""The compiled pass over an activation, and the numpy twin that defines what it computes, bit for bit.

`observe` is the only place that reads an activation: one pass, in blocks that stay in the first-level cache, gives the
histogram, the per-channel histogram, the extremes and the sums. The loop and the twin agree exactly: counts are
integers, extremes are exact, and each sum has one fixed order (stated beside it), so either may stand in for the other.

Values come as (outer, groups, inner, block): channel c is group c // block, lane c % block. That is (N, C, H*W, 1) for
an ordinary tensor and (N, C/16, H*W, 16) for one in the runtime's blocked layout; sums do not depend on which it was.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from int8cal.numerics import Array, Float32, Float64, Int32, Int64, UInt32, exactsum
from int8cal.numerics.compiled import compiled, make_prefetch, part
from int8cal.numerics.exactsum import add_part
from int8cal.numerics.loglinear import BINS, COARSE_BINS, COARSE_SHIFT, SHIFT

# Behind the bins stand slots for exact zeros. Behind a ReLU every second value is one, and adding to one counter again
# and again waits for the store before; so they take turns, far enough apart to keep their turns in the coarse table.
ZERO_SLOTS = 16
_FINER = COARSE_SHIFT - SHIFT
FINE_SIZE = BINS + (ZERO_SLOTS << _FINER)
# The coarse table holds 16 channels side by side per bin: the counters that one tensor touches share cache lines.
PACK = 16
COARSE_ROWS = COARSE_BINS + ZERO_SLOTS
LANES = 16  # a row's sum keeps 16 partial sums, value i goes to lane i % 16; lanes are added by halves at the end
_LINE = 16  # values or counters per cache line
_WARM = 16 << 10  # bins fetched ahead: the 16 octaves below the largest magnitude seen
_BLOCK = 1024  # values between two passes: with their bins 8 KiB
NEVER_LOW, NEVER_HIGH = 0x7FFFFFFF, -0x80000000  # keys of a channel that has seen nothing
_LARGEST_KEY, _LOWEST_KEY = 0x7F7FFFFF, -0x7F800000  # of finite values
ALL_ZERO = 0xFFFFFFFF  # the smallest magnitude where there is none


def packs(channels: int) -> int:
    """Return how many packs hold so many channels."""
    return -(-channels // PACK)


def untouched_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return zeros in memory that the operating system backs page by page, when a page is first written.

    numpy.zeros does not do: for 4 MiB and more it asks for huge pages, and one counter then costs 2 MiB.

    Returns:
        A writable array; its memory is given back when the array goes.
    """
    size = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
    # shared memory would back even a page that is only read
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    memory = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, count=math.prod(shape)).reshape(shape)


def key_values(keys: Int32) -> Float32:
    """Turn ordered keys (C,) into their float32 values, -0.0 into 0.0; a channel that saw nothing gives NaN."""
    bits = np.where(keys >= 0, keys, keys ^ np.int32(0x7FFFFFFF))
    return bits.view(np.float32) + np.float32(0.0)


def are_finite(lowest: int, highest: int) -> bool:
    """Tell whether values with these extreme keys, as `observe` returns them, are all finite."""
    return lowest >= _LOWEST_KEY and highest <= _LARGEST_KEY


def observe_twin(
    values: Float32, fine: UInt32, coarse: UInt32, low: Int32, high: Int32, sums: Int64, squares: Int64
) -> tuple[int, int, int]:
    """Count one sample's values of one tensor.

    Args:
        values: float32 (outer, groups, inner, block), C-contiguous; block 1, or any size when inner lanes are channels.
        fine: uint32 (FINE_SIZE,), added to: the log-linear histogram, then zeros in any of the slots behind it.
        coarse: uint32, added to: [packs(C)][COARSE_ROWS: bin or zero slot][PACK channels], flat; empty for none.
        low, high: int32 (C,), lowered and raised: keys that order floats (see `key_values`).
        sums, squares: int64 (C, LIMBS), added to: exact accumulators (see numerics.exactsum) of a sample's float64 sums
            of x and x*x; empty for none (sums, too, where squares is not). A sample's sum of channel c runs over outer
            in order; within one row of inner values it runs in LANES partial sums.

    Returns:
        The least key in low and the greatest in high; NaN and infinity lie outside those of finite values. Then the bit
        pattern of the smallest magnitude of this sample that is not zero, 2**32 - 1 where all are.
    """
    outer, groups, inner, block = values.shape
    rows = np.ascontiguousarray(values.transpose(0, 1, 3, 2)).reshape(outer, groups * block, inner)
    bits = rows.view(np.uint32)
    zero = (bits << np.uint32(1)) == 0
    _count_sparse(fine, np.where(zero, np.uint32(BINS), bits >> np.uint32(SHIFT)))
    keys = rows.view(np.int32)
    keys = np.where(keys >= 0, keys, keys ^ np.int32(0x7FFFFFFF))
    if len(low) == 1:
        keys = keys.reshape(1, 1, -1)
    if keys.size:
        np.minimum(low, keys.min(axis=(0, 2)), out=low)
        np.maximum(high, keys.max(axis=(0, 2)), out=high)
    if coarse.size:
        pack, lane = np.divmod(np.arange(bits.shape[1])[:, None], PACK)
        places = np.where(zero, np.uint32(COARSE_BINS), bits >> np.uint32(COARSE_SHIFT)).astype(np.int64)
        _count_sparse(coarse, (pack * COARSE_ROWS + places) * PACK + lane)
    if sums.size:
        padded = np.zeros((outer, groups * block, -(-inner // LANES) * LANES))
        padded[:, :, :inner] = rows
        lanes = padded.reshape(outer, groups * block, -1, LANES)
        with np.errstate(invalid="ignore"):  # of infinities of both signs the run stops, and nobody reads the sums
            exactsum.add(sums, _sum_by_halves(lanes))
            if squares.size:
                exactsum.add(squares, _sum_by_halves(lanes * lanes))
    magnitudes = bits[~zero] & np.uint32(0x7FFFFFFF)
    return int(low.min()), int(high.max()), int(magnitudes.min()) if magnitudes.size else ALL_ZERO


def _count_sparse(table: UInt32, places: Array) -> None:
    """Add to the counters of so many places; the table is far larger than what is counted."""
    touched, counts = np.unique(places, return_counts=True)
    table[touched] += counts.astype(np.uint32)


def _sum_by_halves(terms: Float64) -> Float64:
    """Add up (outer, C, steps, LANES) to (C,) in the order that `observe` does."""
    # cumsum adds one step after the other; sum may go pairwise
    partial = np.cumsum(terms, axis=2)[:, :, -1] if terms.shape[2] else np.zeros((*terms.shape[:2], LANES))
    width = LANES
    while width > 1:
        width //= 2
        partial = partial[:, :, :width] + partial[:, :, width:]
    total = np.zeros(terms.shape[1])
    for row in partial[:, :, 0]:
        total += row
    return total


prefetch = make_prefetch()


@part
def _ends(low: Any, high: Any) -> Any:
    # the loops have no min() and max() of arrays: numba takes half a second to compile these two
    least, most = low[0], high[0]
    for c in range(1, low.size):
        least = min(least, low[c])
        most = max(most, high[c])
    return least, most


@part
def _bins(bits: Any, zero: Any, bins: Any, smallest: Any) -> Any:
    for j in range(bits.size):
        v = bits[j]
        bins[j] = zero[j] if np.uint32(v << np.uint32(1)) == np.uint32(0) else np.uint32(v >> np.uint32(SHIFT))
        # minus one, so that zero wraps around and is larger than all
        smallest = min(smallest, np.uint32((v & np.uint32(0x7FFFFFFF)) - np.uint32(1)))
    return smallest


@part
def _warm(fine: Any, first: Any, key: Any) -> None:
    # tables of other tensors have used the cache since the sample before
    last: Any = np.int64(key >> SHIFT)
    for i in range(max(0, last - _WARM), last + 1, _LINE):
        prefetch(fine, first + i)


@part
def _count(bins: Any, table: Any, bits: Any, ahead: Any) -> None:
    # adding is bound by the core, reading by memory: the next block comes while this one is counted
    whole = bins.size // _LINE * _LINE
    for start in range(0, whole, _LINE):
        prefetch(bits, ahead + start)
        for j in range(start, start + _LINE):
            table[bins[j]] += np.uint32(1)
    for j in range(whole, bins.size):
        table[bins[j]] += np.uint32(1)


@part
def _count_coarse(bins: Any, table: Any, channel: Any, block: Any) -> None:
    # indices are unsigned: a signed one would be checked for counting from the end
    if block == 1:
        at = table[channel // PACK * (COARSE_ROWS * PACK) + channel % PACK :]
        for j in range(bins.size):
            at[np.uint64(bins[j] >> np.uint32(_FINER)) * np.uint64(PACK)] += np.uint32(1)
    elif block == PACK:
        at = table[channel // PACK * (COARSE_ROWS * PACK) :]
        for j in range(bins.size):
            at[np.uint64(bins[j] >> np.uint32(_FINER)) * np.uint64(PACK) + np.uint64(j % PACK)] += np.uint32(1)
    else:
        for start in range(0, bins.size, block):
            for j in range(block):
                c = channel + j
                row = np.int64(bins[start + j] >> np.uint32(_FINER))
                table[(c // PACK * COARSE_ROWS + row) * PACK + c % PACK] += np.uint32(1)


@part
def _extremes(keys: Any, least: Any, most: Any) -> Any:
    for j in range(keys.size):
        v = keys[j]
        key = np.int32(v ^ ((v >> 31) & 0x7FFFFFFF))
        least = min(least, key)
        most = max(most, key)
    return least, most


@part
def _extremes_by_lane(keys: Any, low: Any, high: Any) -> None:
    width = low.size
    for start in range(0, keys.size, width):
        base = np.uint64(start)
        for j in range(min(width, keys.size - start)):
            v = keys[base + np.uint64(j)]
            key = np.int32(v ^ ((v >> 31) & 0x7FFFFFFF))
            low[np.uint64(j)] = min(low[np.uint64(j)], key)
            high[np.uint64(j)] = max(high[np.uint64(j)], key)


@part
def _sum_by_lane(x: Any, total: Any) -> None:
    width = total.size
    for start in range(0, x.size, width):
        base = np.uint64(start)
        for j in range(min(width, x.size - start)):
            total[np.uint64(j)] += np.float64(x[base + np.uint64(j)])


@part
def _sums_by_lane(x: Any, total: Any, square: Any) -> None:
    width = total.size
    for start in range(0, x.size, width):
        base = np.uint64(start)
        for j in range(min(width, x.size - start)):
            d = np.float64(x[base + np.uint64(j)])
            total[np.uint64(j)] += d
            square[np.uint64(j)] += d * d


@part
def _halve(sums: Any, block: Any) -> None:
    width = sums.size
    while width > block:
        width //= 2
        for j in range(width):
            sums[np.uint64(j)] += sums[np.uint64(width) + np.uint64(j)]


@part
def _spread(low: Any, high: Any, lane_low: Any, lane_high: Any) -> None:
    # lanes run over positions first, so channel l has lanes l, l + block, l + 2 * block, ...
    block = low.size
    for start in range(0, lane_low.size, block):
        for j in range(block):
            low[j] = min(low[j], lane_low[start + j])
            high[j] = max(high[j], lane_high[start + j])


def _observe_loop(values: Any, fine: Any, coarse: Any, low: Any, high: Any, sums: Any, squares: Any) -> Any:
    outer, groups, inner, block = values.shape
    x = values.reshape(values.size)
    bits = x.view(np.uint32)
    keys = x.view(np.int32)
    # channels last, (outer, C, 1, 1): the channels themselves are the lanes, and a row is one value
    last = inner == 1 and block == 1
    width = groups if last else LANES * block
    length = groups * outer if last else inner * block
    rows = 1 if last else outer * groups
    step = width * max(1, _BLOCK // width)
    zero = np.empty(step, np.uint32)
    bins = np.empty(step, np.uint32)
    for j in range(step):
        zero[j] = BINS + (j % ZERO_SLOTS << _FINER)
    lane_low = np.empty(width, np.int32)
    lane_high = np.empty(width, np.int32)
    lane_total = np.empty(width, np.float64)
    lane_square = np.empty(width, np.float64)
    total = np.empty(sums.shape[0])
    square = np.empty(squares.shape[0])
    total[:] = 0.0
    square[:] = 0.0
    whole = low.size == 1 or (not last and block == 1)  # a row has one channel, or the tensor counts as one
    smallest = np.uint32(ALL_ZERO)
    least_before, most_before = _ends(low, high)
    if most_before > 0:
        _warm(fine, np.int64(0), np.int64(most_before))
    if least_before < 0:
        _warm(fine, np.int64(BINS // 2), np.int64(-1 - least_before))
    for row in range(rows):
        begin = row * length
        channel = 0 if last else (row % groups) * block
        least = np.int32(NEVER_LOW)
        most = np.int32(NEVER_HIGH)
        lane_low[:] = least
        lane_high[:] = most
        lane_total[:] = 0.0
        lane_square[:] = 0.0
        for start in range(begin, begin + length, step):
            stop = min(start + step, begin + length)
            smallest = _bins(bits[start:stop], zero, bins, smallest)
            _count(bins[: stop - start], fine, bits, stop)
            if coarse.size > 0:
                _count_coarse(bins[: stop - start], coarse, channel, width if last else block)
            if whole:
                least, most = _extremes(keys[start:stop], least, most)
            else:
                _extremes_by_lane(keys[start:stop], lane_low, lane_high)
            if square.size > 0:
                _sums_by_lane(x[start:stop], lane_total, lane_square)
            elif total.size > 0:
                _sum_by_lane(x[start:stop], lane_total)
        if whole:
            at = 0 if low.size == 1 else channel
            low[at] = min(low[at], least)
            high[at] = max(high[at], most)
        elif last:
            _spread(low, high, lane_low, lane_high)
        else:
            _spread(low[channel : channel + block], high[channel : channel + block], lane_low, lane_high)
        each = width if last else block
        if total.size > 0:
            _halve(lane_total, each)
            for j in range(each):
                total[channel + j] += lane_total[j]
        if square.size > 0:
            _halve(lane_square, each)
            for j in range(each):
                square[channel + j] += lane_square[j]
    if total.size > 0:
        add_part(sums, total)
    if square.size > 0:
        add_part(squares, square)
    least, most = _ends(low, high)
    return least, most, smallest if smallest == np.uint32(ALL_ZERO) else np.uint32(smallest + np.uint32(1))


observe = compiled(_observe_loop, observe_twin, value_s=50e-9)


def _gather_loop(table: Any, bins: Any, span: Any) -> Any:
    packs, _, lanes = table.shape
    first, last = span
    count = 0
    for pack in range(packs):
        for sign in range(2):
            for row in range(sign * (bins // 2) + first, sign * (bins // 2) + last + 1):
                for lane in range(lanes):
                    count += 1 if table[pack, row, lane] != np.uint32(0) else 0
    index = np.empty(count, np.int64)
    counts = np.empty(count, np.int64)
    at = 0
    for pack in range(packs):
        for lane in range(lanes):
            for sign in range(2):
                for row in range(sign * (bins // 2) + first, sign * (bins // 2) + last + 1):
                    value = table[pack, row, lane]
                    if value != np.uint32(0):
                        index[at] = (pack * lanes + lane) * bins + row
                        counts[at] = value
                        at += 1
    return index, counts


def gather_twin(table: UInt32, bins: int, span: tuple[int, int]) -> tuple[Int64, Int64]:
    """Find the counters that are not zero.

    Args:
        table: uint32 (packs, rows, lanes); channel is pack * lanes + lane.
        bins: Rows of the histogram, half of them for each sign; what follows them is left out.
        span: First and last row of a sign that may hold a count.

    Returns:
        channel * bins + row, ascending, and the counts, int64 (N,) each.
    """
    first, last = span
    rows = np.arange(first, last + 1)
    both = np.concatenate([table[:, sign + first : sign + last + 1] for sign in (0, bins // 2)], axis=1)
    counts = both.transpose(0, 2, 1).reshape(both.shape[0] * both.shape[2], 2 * rows.size)  # by channel
    channel, place = np.nonzero(counts)
    return channel * bins + np.append(rows, rows + bins // 2)[place], counts[channel, place].astype(np.int64)


gather = compiled(_gather_loop, gather_twin, value_s=2e-9)
