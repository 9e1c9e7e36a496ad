"""Which weights meet in one VPMADDUBSW instruction, and when a pair of them can saturate (docs/saturation.md).

The instruction multiplies two neighbouring u8 by two neighbouring s8 and adds both products into s16. Weights are seen
here as rows in the order of reduction: kernel positions, and within each the input channels of the group. Kernels of
all x86 runtimes pair neighbours in that order, so one flag per neighbourhood, a link, says all there is to know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from int8cal.numerics import Array, Bools, Int8, Int64

Order = Literal["flat", "channels"]
Links = npt.NDArray[np.bool_]

# 255 * 128 = 32640 fits into s16, 255 * 129 = 32895 and -255 * 129 do not
SAFE_SUM = 128


@dataclass(frozen=True)
class Rows:
    """Weights in the order of reduction.

    Attributes:
        values: (scales, outputs per scale, positions * channels), the weight's own type.
        channels: Input channels that one output sees.
        kernel: Sizes of the kernel, () for a matrix product.
    """

    values: Array
    channels: int
    kernel: tuple[int, ...] = ()

    @property
    def positions(self) -> int:
        """Number of kernel positions."""
        return math.prod(self.kernel)


@dataclass(frozen=True)
class Reduction:
    """How a weight tensor is stored.

    Attributes:
        output_axis: Its output channels; None for one scale over everything (a stack of matrices under MatMul).
        input_axis: Its input channels.
        group: Groups whose input channels lie one after the other on input_axis (ConvTranspose); 1 otherwise: a grouped
            Conv stores the input channels of one group only.
    """

    output_axis: int | None
    input_axis: int
    group: int = 1

    def rows(self, weight: Array) -> Rows:
        """View or copy a weight, any rank of 2 or more, as rows in the order of reduction."""
        if self.output_axis is None:
            matrix = np.moveaxis(weight, self.input_axis, -1)
            return Rows(matrix.reshape(1, -1, matrix.shape[-1]), matrix.shape[-1])
        moved = np.moveaxis(weight, (self.output_axis, self.input_axis), (0, -1))
        outputs, channels = moved.shape[0], moved.shape[-1] // self.group
        split = moved.reshape(outputs, -1, self.group, channels)
        return Rows(np.moveaxis(split, 2, 1).reshape(outputs, self.group, -1), channels, moved.shape[1:-1])

    def restore(self, values: Array, shape: tuple[int, ...]) -> Array:
        """Turn rows (scales, outputs per scale, K) back into a weight of the given shape."""
        if self.output_axis is None:
            moved = list(shape)
            moved.append(moved.pop(self.input_axis))
            return np.ascontiguousarray(np.moveaxis(values.reshape(moved), -1, self.input_axis))
        axes = (self.output_axis, self.input_axis)
        kernel = tuple(size for axis, size in enumerate(shape) if axis not in (axes[0] % len(shape), axes[1]))
        outputs, inputs = shape[axes[0]], shape[axes[1]]
        split = values.reshape(outputs, self.group, -1, inputs // self.group)
        moved_back = np.moveaxis(split, 1, 2).reshape(outputs, *kernel, inputs)
        return np.ascontiguousarray(np.moveaxis(moved_back, (0, -1), axes))


def pair_starts(order: Order, positions: int, channels: int) -> Int64:
    """Name the first weight of every pair of one kernel's order.

    Args:
        order: "flat" pairs (0, 1), (2, 3), ... through the whole row, so that with an odd number of channels pairs run
            across kernel positions (onnxruntime's MLAS). "channels" pairs (0, 1), (2, 3), ... within each position,
            and an odd last channel stands alone (oneDNN).
        positions, channels: Of the row.

    Returns:
        int64 positions k in the row: k and k + 1 meet. Pairs of one order are disjoint.
    """
    if order == "flat":
        return np.arange(0, positions * channels - 1, 2, dtype=np.int64)
    first = np.arange(positions, dtype=np.int64)[:, None] * channels
    return (first + np.arange(0, channels - 1, 2, dtype=np.int64)).reshape(-1)


def link(orders: Iterable[Order], positions: int, channels: int) -> Links:
    """Flag the neighbours that meet in any of the orders: (positions * channels - 1,), entry k for k and k + 1."""
    links = np.zeros(max(positions * channels - 1, 0), np.bool_)
    for order in orders:
        links[pair_starts(order, positions, channels)] = True
    return links


def one_sign(first: Array, second: Array) -> Array:
    """Return the largest magnitude that weights which meet can put before 255.

    An input is 0 or 255 at worst, so only weights of one sign add up: max(sum of positive parts, - sum of negative
    parts). A pair is safe for every input iff this is at most SAFE_SUM.

    Args:
        first, second: Any signed type; int8 gives int16, which holds the sums, and others their own type.
    """
    wide = np.result_type(first, second, np.int16)
    zero = first.dtype.type(0)
    above = np.add(np.maximum(first, zero), np.maximum(second, zero), dtype=wide)
    below = np.add(np.minimum(first, zero), np.minimum(second, zero), dtype=wide)
    worst: Array = np.maximum(above, -below)
    return worst


def worst_sums(weights: Array) -> Array:
    """Return `one_sign` of all neighbours: (..., K) codes or real weights -> (..., K - 1)."""
    return one_sign(weights[..., :-1], weights[..., 1:])


def unsafe_pairs(codes: npt.NDArray[np.integer[Any]], links: Links) -> Bools:
    """Flag the linked neighbours that can saturate: (..., K) codes, (K - 1,) links -> (..., K - 1)."""
    return (worst_sums(codes) > SAFE_SUM) & links


def worst_linked(codes: Int8, links: Links) -> tuple[int, Bools]:
    """Look at linked neighbours only, fast: what an audit of a whole model asks.

    Args:
        codes: int8 (..., K).
        links: (K - 1,).

    Returns:
        The largest of `worst_sums` among them (0 without links), and `unsafe_pairs` of the linked ones, (..., links).
    """
    starts = np.flatnonzero(links)
    size = codes.shape[-1]
    if np.array_equal(starts, np.arange(0, size - 1, 2)):  # the usual case needs no gathering
        worst = one_sign(codes[..., 0 : size - 1 : 2], codes[..., 1:size:2])
    else:
        worst = one_sign(codes[..., starts], codes[..., starts + 1])
    return int(worst.max(initial=0)), worst > SAFE_SUM


def worst_anywhere(codes: Int8) -> tuple[int, Int64]:
    """Look at rows of which any two weights may meet.

    Args:
        codes: int8 (..., K).

    Returns:
        The largest magnitude before 255 that two of a row give (0 where K < 2), and how many of its pairs can saturate,
        int64 (...,).
    """
    worst, counts = 0, np.zeros(codes.shape[:-1], np.int64)
    if codes.shape[-1] < 2 or not codes.size:
        return worst, counts
    wide = codes.astype(np.int16).reshape(-1, codes.shape[-1])
    for sign in (1, -1):  # weights of one sign add up; alone, none passes SAFE_SUM
        sizes = np.maximum(sign * wide, 0)
        worst = max(worst, int(np.sort(sizes, axis=-1)[:, -2:].sum(axis=-1).max()))
        flat = sizes + (SAFE_SUM + 1) * np.arange(len(sizes))[:, None]
        found = np.bincount(flat.ravel(), minlength=(SAFE_SUM + 1) * len(sizes)).reshape(len(sizes), -1)
        found[:, 0] = 0
        # of each size: how many are so large that both together saturate, itself among them where twice it does
        at_least = np.cumsum(found[:, ::-1], axis=-1)[:, ::-1]
        beyond = np.zeros_like(found)
        beyond[:, 1:] = at_least[:, :0:-1]
        themselves = found[:, SAFE_SUM // 2 + 1 :].sum(axis=-1)
        counts += (((found * beyond).sum(axis=-1) - themselves) // 2).reshape(counts.shape)
    return worst, counts
