"""Sums of products of 8-bit integers, exact or as VPMADDUBSW saturates them.

The exact sums come from float32 matrix products over at most 512 positions at a time: every partial sum is an integer
of magnitude 2**24 at most, so float32 holds it whatever the order, and the sums of the parts are added as int64.

s32 wraps around: the result is the sum modulo 2**32, in [-2**31, 2**31), as VPDPBUSD and VPADDD leave it. `peak` says
how large the sums were before that, and `headroom` how large they could ever be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.errors import ModelError
from int8cal.numerics.reference.saturation import excess, risky_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

Byte = npt.NDArray[Any]  # uint8 or int8; `check_bytes` refuses others
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

S32_MAX = 2**31 - 1
BUDGET = 48 << 20  # bytes of patches and sums that are worked on at a time
_EXACT = 1 << 24  # integers up to here are exact in float32


@dataclass(frozen=True)
class Sums:
    """The s32 sums of a layer.

    Attributes:
        sums: int32, what the hardware leaves: with pairs the saturated sums, else the exact ones. Wraps around.
        wide: int32, the exact sums; the same array as `sums` where there are no pairs. Wraps around.
        saturated: int64 (OC,), how many pair sums were saturated, over all patches. Zeros where there are no pairs.
        peak: int64 (OC,), the largest magnitude among the exact sums before they wrap around; 0 without data.
    """

    sums: Int32
    wide: Int32
    saturated: Int64
    peak: Int64


def dot(patches: Byte, rows: Byte, pair_starts: npt.ArrayLike | None = None) -> Sums:
    """Multiply patches by rows and add up in s32.

    Args:
        patches: uint8 or int8 (M, K). s8 goes through the compensation X·W = (X + 128)·W - 128·ΣW, so with pairs it is
            the shifted u8 that saturates.
        rows: int8 (OC, K); uint8 without pairs only.
        pair_starts: Positions k such that k and k + 1 meet in one VPMADDUBSW, disjoint; their sum is saturated to s16
            before it is added. Positions in no pair are multiplied alone, which never saturates. None: exact sums.

    Returns:
        Sums with arrays (M, OC).

    Raises:
        ModelError: types or lengths do not fit, or pairs overlap.
    """
    check_bytes(patches, "patches", 2)
    check_bytes(rows, "rows", 2)
    count, (outputs, length) = len(patches), rows.shape
    collected = Collected.empty(1, outputs, count, paired=pair_starts is not None)
    step = block(length, outputs)
    for start in range(0, max(count, 1), step):
        part = grouped(patches.T[None, :, start : start + step], rows[None], pair_starts)
        collected.put(0, start, part.wide[0], part)
    return collected.shaped(lambda sums: np.ascontiguousarray(sums[0].T))


def block(length: int, outputs: int, groups: int = 1) -> int:
    """Return how many patches are multiplied at a time: bytes, their float32 copies, and the sums fit into BUDGET."""
    return max(1, BUDGET // (groups * (5 * length + 20 * outputs)))


@dataclass(frozen=True)
class Products:
    """Exact sums int64 (G, OC / G, M), what pairs lose int32 (OC, M) or None, and how often, int64 (OC,)."""

    wide: Int64
    lost: Int32 | None
    saturated: Int64


def grouped(columns: Byte, rows: Byte, pair_starts: npt.ArrayLike | None = None) -> Products:
    """Multiply each group's columns by its rows; what `dot` and the layers are made of.

    Args:
        columns: uint8 or int8 (G, K, M), one column per patch.
        rows: int8 or uint8 (G, OC / G, K).
        pair_starts: As in `dot`, the same in every group.

    Returns:
        Products; a row's output channel is group * (OC / G) + row.

    Raises:
        ModelError: lengths do not fit, pairs overlap, or pairs with unsigned rows.
    """
    groups, length, count = columns.shape
    if rows.shape[0] != groups or rows.shape[2] != length:
        raise ModelError(f"rows {rows.shape} do not fit columns {columns.shape}", do="both are (groups, ..., K, ...)")
    outputs = rows.shape[1]
    wide = np.zeros((groups, outputs, count), np.int64)
    part = _EXACT // (255 * (255 if rows.dtype == np.uint8 else 128))
    for start in range(0, length, part):
        left = rows[:, :, start : start + part].astype(np.float32)
        wide += np.matmul(left, columns[:, start : start + part].astype(np.float32)).astype(np.int64)
    saturated = np.zeros(groups * outputs, np.int64)
    if pair_starts is None:
        return Products(wide, None, saturated)
    if rows.dtype != np.int8:
        raise ModelError("VPMADDUBSW takes signed weights, these are uint8", do="give no pairs for unsigned weights")
    pairs = risky_pairs(rows.reshape(groups * outputs, length), pair_starts)
    lost = np.zeros((groups * outputs, count), np.int32)
    if pairs.row.size:
        at = pairs.row // outputs * length + pairs.start
        lines = np.ascontiguousarray(columns).reshape(groups * length, count)
        excess(shifted(lines), at, pairs.row, pairs.first, pairs.second, lost, saturated)
    return Products(wide, lost, saturated)


def shifted(values: Byte) -> npt.NDArray[np.uint8]:
    """Return u8 as it is, and s8 plus 128."""
    unsigned = values.view(np.uint8)
    return unsigned if values.dtype == np.uint8 else unsigned ^ np.uint8(128)


def wrap(values: Int64) -> Int32:
    """Return values modulo 2**32 in [-2**31, 2**31), as s32 registers hold them."""
    return values.astype(np.int32)


@dataclass(frozen=True)
class Collected:
    """Sums of a layer while its blocks come in: s32 (N, OC, positions), and counts per output channel."""

    exact: Int32
    cut: Int32 | None
    saturated: Int64
    peak: Int64

    @classmethod
    def empty(cls, images: int, outputs: int, positions: int, *, paired: bool) -> Collected:
        """Make room for the sums; a second array with pairs."""
        shape = (images, outputs, positions)
        counts = np.zeros(outputs, np.int64), np.zeros(outputs, np.int64)
        return cls(np.zeros(shape, np.int32), np.zeros(shape, np.int32) if paired else None, *counts)

    def put(self, image: int, start: int, wide: Int64, found: Products) -> None:
        """Store finished exact sums (OC, M) of the positions from `start` on, and what `found` lost."""
        span = slice(start, start + wide.shape[1])
        self.exact[image, :, span] = wrap(wide)
        np.maximum(self.peak, np.abs(wide).max(axis=1, initial=0), out=self.peak)
        if self.cut is not None and found.lost is not None:
            self.cut[image, :, span] = wrap(wide + found.lost)
        self.saturated[:] += found.saturated

    def shaped(self, arrange: Callable[[Int32], Int32]) -> Sums:
        """Give the arrays the layer's shape."""
        exact = arrange(self.exact)
        return Sums(exact if self.cut is None else arrange(self.cut), exact, self.saturated, self.peak)


def check_bytes(values: npt.NDArray[Any], name: str, rank: int | None = None) -> None:
    """Refuse arrays that are not uint8 or int8, or have another rank.

    Raises:
        ModelError: as said; names the array.
    """
    if values.dtype not in (np.dtype(np.uint8), np.dtype(np.int8)):
        raise ModelError(f"{name} must be uint8 or int8, found {values.dtype}", do="quantize first")
    if rank is not None and values.ndim != rank:
        raise ModelError(f"{name} must have {rank} dimensions, found shape {values.shape}", do="see its layout")


def headroom(
    rows: Byte,
    bias: npt.ArrayLike | None = None,
    *,
    codes: tuple[int, int] = (0, 255),
    zero_point: int = 0,
    weight_zero_point: npt.ArrayLike = 0,
) -> Int64:
    """Tell how far the accumulator stays from wrapping around, whatever the data.

    Args:
        rows: int8 or uint8 (OC, K).
        bias: s32 (OC,); None for zeros.
        codes: Smallest and largest code of the activation.
        zero_point: Of the activation, one of its codes.
        weight_zero_point: One, or (OC,).

    Returns:
        int64 (OC,): 2**31 - 1 - (largest possible |Σ (x - zero_point) (w - weight_zero_point)| + |bias|). Negative
        where a sum could wrap around. For data the same is 2**31 - 1 - `Sums.peak`.
    """
    weights = rows.astype(np.int64) - np.asarray(weight_zero_point, np.int64).reshape(-1, 1)
    ends = np.array(codes, np.int64) - zero_point
    most = np.maximum(weights * ends[0], weights * ends[1]).sum(axis=1)
    least = np.minimum(weights * ends[0], weights * ends[1]).sum(axis=1)
    added = np.zeros(len(rows), np.int64) if bias is None else np.abs(np.asarray(bias, np.int64))
    left: Int64 = S32_MAX - (np.maximum(most, -least) + added)
    return left


def halved_weights(weight: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Halve weights, half to even, same shape: oneDNN's s8·s8 convolution on CPUs without VNNI.

    No pair of them saturates: 255 * (64 + 64) fits s16.
    """
    halved: npt.NDArray[np.int8] = np.rint(weight * np.float32(0.5)).astype(np.int8)
    return halved


def halved_dot(patches: npt.NDArray[np.int8], rows: npt.NDArray[np.int8]) -> Sums:
    """Multiply as `dot` does with halved rows, and double the sums, as oneDNN does for s8·s8 without VNNI.

    Args:
        patches: int8 (M, K).
        rows: int8 (OC, K), not halved yet.

    Returns:
        Sums with arrays (M, OC): `sums` from halved rows, doubled; `wide` exact, from the rows as they are.

    Raises:
        ModelError: types or lengths do not fit.
    """
    exact = dot(patches, rows)
    halved = dot(patches, halved_weights(rows))
    return Sums(wrap(halved.sums.astype(np.int64) * 2), exact.wide, exact.saturated, exact.peak)
