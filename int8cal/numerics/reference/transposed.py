"""Integer ConvTranspose: each input spreads (x - zero point) · (w - zero point) over the outputs, tap by tap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.errors import ModelError
from int8cal.numerics.reference.convolution import center, check_groups, per_channel
from int8cal.numerics.reference.dot import Byte, Collected, Products, Sums, block, check_bytes, grouped
from int8cal.numerics.reference.saturation import check_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from int8cal.numerics.reference.windows import Window

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def transposed_rows(weight: npt.NDArray[Any], group: int = 1) -> npt.NDArray[Any]:
    """Lay out a ConvTranspose's weights (C, M / group, k...) as rows (M, taps * C / group).

    Output channel g * (M / group) + k is row k of group g; a row's order is [k1, k2, ..., input channel].
    """
    check_groups(weight.shape[0], group)
    split = weight.reshape(group, weight.shape[0] // group, weight.shape[1], -1)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1)).reshape(group * weight.shape[1], -1)


def convolve_transposed(
    x: Byte,
    weight: Byte,
    window: Window,
    *,
    group: int = 1,
    output_padding: Sequence[int] | None = None,
    zero_point: int = 0,
    weight_zero_point: npt.ArrayLike = 0,
    bias: npt.ArrayLike | None = None,
    pair_starts: npt.ArrayLike | None = None,
) -> Sums:
    """Convolve backwards in integers: each x spreads (x - zero_point) · (w - weight_zero_point) over the outputs.

    Args:
        x: uint8 or int8 (N, C, spatial...).
        weight: int8 or uint8 (C, M / group, k...).
        window: Kernel, strides, dilations, and the pads that are cut off the output.
        group: Number of groups.
        output_padding: Added behind each spatial axis of the output.
        zero_point, bias: Of x; s32 (M,).
        weight_zero_point: One, (M / group,) as ONNX stores it, or (M,).
        pair_starts: As in `dot`, over the row of `transposed_rows`. Both weights of a pair belong to one tap: products
            are formed tap by tap, and only where they land in the output (oneDNN; onnxruntime has no such kernel).

    Returns:
        Sums with arrays (N, M, spatial...).

    Raises:
        ModelError: shapes or types do not fit, or a pair crosses from one tap to the next.
    """
    check_bytes(x, "x", window.rank + 2)
    check_bytes(weight, "weight", window.rank + 2)
    check_groups(x.shape[1], group)
    if weight.shape[0] != x.shape[1] or weight.shape[2:] != window.kernel:
        raise ModelError(f"weight {weight.shape} does not fit input {x.shape} and {window}", do="check the shapes")
    each, made = x.shape[1] // group, weight.shape[1] * group
    rows = transposed_rows(weight, group).reshape(group, weight.shape[1], -1, each)
    stored = np.asarray(weight_zero_point, np.int64).reshape(-1)
    zeros = per_channel(np.tile(stored, group) if stored.size == weight.shape[1] else stored, made)
    zeros = zeros.reshape(group, -1, 1)
    added = per_channel(0 if bias is None else bias, made)[:, None]
    starts = [_tap_pairs(pair_starts, rows.shape[2], each, tap) for tap in range(rows.shape[2])]
    outputs = _transposed_outputs(x.shape[2:], window, output_padding)
    collected = Collected.empty(len(x), made, int(np.prod(outputs)), paired=pair_starts is not None)
    taps = [(_landing(x.shape[2:], outputs, window, tap), rows[:, :, index]) for index, tap in enumerate(window.taps())]
    for n, image in enumerate(x):
        wide = np.zeros((made, *outputs), np.int64)
        lost = np.zeros(wide.shape, np.int32)
        saturated = np.zeros(made, np.int64)
        for (landing, weights), pairs in zip(taps, starts, strict=True):
            for inside, target in _pieces(landing, block(each, weights.shape[1], group)):
                cut = image[(slice(None), *inside)]
                size = cut.shape[1:]
                part = np.ascontiguousarray(cut).reshape(group, each, -1)
                found = grouped(part, weights, pairs)
                wide[(slice(None), *target)] += center(found, part, weights, zero_point, zeros).reshape(made, *size)
                if found.lost is not None:
                    lost[(slice(None), *target)] += found.lost.reshape(made, *size)
                saturated += found.saturated
        sums = wide.reshape(1, made, -1)
        collected.put(n, 0, sums[0] + added, Products(sums, lost.reshape(made, -1), saturated))
    return collected.shaped(lambda sums: sums.reshape(*sums.shape[:2], *outputs))


def _tap_pairs(pair_starts: npt.ArrayLike | None, taps: int, each: int, tap: int) -> Int64 | None:
    """Return the pairs of one tap, counted from its first channel."""
    if pair_starts is None:
        return None
    starts = check_pairs(pair_starts, taps * each)
    if (starts % each == each - 1).any():
        raise ModelError("a pair of weights crosses from one tap to the next", do="pair channels of one tap")
    own: Int64 = starts[starts // each == tap] - tap * each
    return own


def _transposed_outputs(sizes: Sequence[int], window: Window, output_padding: Sequence[int] | None) -> tuple[int, ...]:
    added = output_padding or (0,) * window.rank
    reach = [d * (k - 1) + 1 for d, k in zip(window.dilations, window.kernel, strict=True)]
    cut = [a + b for a, b in zip(window.before(), window.behind(), strict=True)]
    found = tuple(
        s * (n - 1) + r - c + p for s, n, r, c, p in zip(window.strides, sizes, reach, cut, added, strict=True)
    )
    if min(found) < 1:
        raise ModelError(f"{window} leaves an output of {found} from {tuple(sizes)}", do="check pads")
    return found


Slices = tuple[tuple[slice, ...], tuple[slice, ...]]


def _landing(sizes: Sequence[int], outputs: Sequence[int], window: Window, tap: Sequence[int]) -> Slices:
    """Return which inputs a tap carries into the output, and where they land."""
    inside, landing = [], []
    for axis, size in enumerate(sizes):
        stride, offset = window.strides[axis], tap[axis] * window.dilations[axis] - window.pads[axis]
        first = max(0, -(offset // stride))
        last = max(first, min(size, (outputs[axis] - 1 - offset) // stride + 1))
        inside.append(slice(first, last))
        landing.append(slice(first * stride + offset, (last - 1) * stride + offset + 1, stride))
    return tuple(inside), tuple(landing)


def _pieces(whole: Slices, limit: int) -> list[Slices]:
    """Cut both sides along the first axis, so that no piece has more than `limit` positions (or one line)."""
    inside, landing = whole
    sizes = [each.stop - each.start for each in inside]
    if min(sizes) == 0:
        return []
    lines = max(1, limit // int(np.prod(sizes[1:])))
    first, target, stride = inside[0], landing[0], landing[0].step
    found = []
    for line in range(0, sizes[0], lines):
        count = min(lines, sizes[0] - line)
        begin = target.start + line * stride
        here = slice(first.start + line, first.start + line + count)
        there = slice(begin, begin + (count - 1) * stride + 1, stride)
        found.append(((here, *inside[1:]), (there, *landing[1:])))
    return found
