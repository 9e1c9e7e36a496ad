"""Integer Conv: s32 sums of (x - zero point) · (w - zero point), exact or as VPMADDUBSW saturates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.errors import ModelError
from int8cal.numerics.reference.dot import Byte, Collected, Products, Sums, block, check_bytes, grouped
from int8cal.numerics.reference.windows import Window, columns, pad

if TYPE_CHECKING:
    from collections.abc import Sequence

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def weight_rows(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Lay out a Conv's weights (OC, IC / group, k...) as rows (OC, taps * IC / group) in the order of `patches`."""
    return np.ascontiguousarray(np.moveaxis(weight, 1, -1)).reshape(weight.shape[0], -1)


def check_groups(channels: int, group: int) -> None:
    """Refuse channels that do not divide into groups.

    Raises:
        ModelError: as said.
    """
    if group < 1 or channels % group:
        raise ModelError(f"{channels} channels are not divisible into {group} groups", do="check the node's group")


def per_channel(values: npt.ArrayLike, channels: int) -> Int64:
    """Spread one value, or one per channel, to int64 (channels,).

    Raises:
        ModelError: another number of values.
    """
    found = np.asarray(values, np.int64).reshape(-1)
    if found.size not in (1, channels):
        raise ModelError(f"{found.size} values do not fit {channels} channels", do="give one, or one per channel")
    return np.broadcast_to(found, (channels,))


def convolve(
    x: Byte,
    weight: Byte,
    window: Window,
    *,
    group: int = 1,
    zero_point: int = 0,
    weight_zero_point: npt.ArrayLike = 0,
    bias: npt.ArrayLike | None = None,
    padding: int | None = None,
    pair_starts: npt.ArrayLike | None = None,
) -> Sums:
    """Convolve in integers: Σ over the taps inside x of (x - zero_point) · (w - weight_zero_point), plus the bias.

    Args:
        x: uint8 or int8 (N, C, spatial...), 1 to 3 spatial axes or more.
        weight: int8 or uint8 (OC, C / group, k...).
        window: Kernel, strides, dilations, pads.
        group: Number of groups.
        zero_point: Of x.
        weight_zero_point: One, or (OC,).
        bias: s32 (OC,).
        padding: The code that the pads hold while products are formed. It adds nothing to the exact sums, but pairs may
            saturate on it. None: the zero point (onnxruntime); oneDNN reads zeros.
        pair_starts: As in `dot`, over the row of `weight_rows`, the same in every group.

    Returns:
        Sums with arrays (N, OC, spatial...).

    Raises:
        ModelError: shapes or types do not fit.
    """
    check_bytes(x, "x", window.rank + 2)
    check_bytes(weight, "weight", window.rank + 2)
    check_groups(weight.shape[0], group)
    if weight.shape[1] * group != x.shape[1] or weight.shape[2:] != window.kernel:
        raise ModelError(f"weight {weight.shape} does not fit input {x.shape}, group {group} and {window}", do="check")
    rows = weight_rows(weight).reshape(group, weight.shape[0] // group, -1)
    zeros = per_channel(weight_zero_point, weight.shape[0]).reshape(group, -1, 1)
    filled = zero_point if padding is None else padding
    outputs = window.outputs(x.shape[2:])
    positions = int(np.prod(outputs))
    step = block(rows.shape[2], rows.shape[1], group)
    added = per_channel(0 if bias is None else bias, weight.shape[0])[:, None]
    collected = Collected.empty(len(x), weight.shape[0], positions, paired=pair_starts is not None)
    for n, image in enumerate(x):
        padded = pad(image, window, filled)
        for start in range(0, positions, step):
            span = (start, min(start + step, positions))
            part = columns(padded, x.shape[2:], window, group, span)
            found = grouped(part, rows, pair_starts)
            centred = center(found, part, rows, zero_point, zeros)
            if filled != zero_point:
                centred += (zero_point - filled) * _pad_sums(x.shape[2:], window, rows, zeros, span)
            collected.put(n, start, centred.reshape(len(weight), -1) + added, found)
    return collected.shaped(lambda sums: sums.reshape(*sums.shape[:2], *outputs))


def center(found: Products, part: Byte, rows: Byte, zero_point: int, zeros: Int64) -> Int64:
    """Take the zero points out of raw sums (compensation): Σxw - zx·Σ(w - zw) - zw·Σx, int64 (G, OC / G, M).

    Args:
        found: Raw sums of part and rows.
        part: (G, K, M).
        rows: (G, OC / G, K).
        zero_point: zx.
        zeros: zw, int64 (G, OC / G, 1).
    """
    weights = rows.sum(axis=2, dtype=np.int64, keepdims=True) - rows.shape[2] * zeros
    centred: Int64 = found.wide - zero_point * weights
    if zeros.any():
        centred -= zeros * part.sum(axis=1, dtype=np.int64, keepdims=True)
    return centred


def _pad_sums(sizes: Sequence[int], window: Window, rows: Byte, zeros: Int64, span: tuple[int, int]) -> Int64:
    """Sum the centred weights that meet pads, int64 (G, OC / G, M)."""
    outside = pad(np.zeros((1, *sizes), np.uint8), window, 1)
    met = columns(outside, sizes, window, 1, span)[0].astype(np.int64)
    by_tap = (rows.astype(np.int64) - zeros).reshape(*rows.shape[:2], len(met), -1).sum(axis=3)
    sums: Int64 = by_tap @ met
    return sums
