"""Integer MatMul and Gemm: s32 sums of (a - zero point) · (b - zero point), exact or as VPMADDUBSW saturates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from int8cal.errors import ModelError
from int8cal.numerics.reference.convolution import center, per_channel
from int8cal.numerics.reference.dot import Byte, Collected, Products, Sums, block, check_bytes, grouped


def matmul(
    a: Byte,
    b: Byte,
    *,
    zero_point: int = 0,
    weight_zero_point: npt.ArrayLike = 0,
    bias: npt.ArrayLike | None = None,
    pair_starts: npt.ArrayLike | None = None,
) -> Sums:
    """Multiply matrices in integers.

    Args:
        a: uint8 or int8 (..., M, K).
        b: int8 or uint8 (K, N), the weights of a layer; or (..., K, N), another activation, whose leading dimensions
            broadcast against those of a.
        zero_point: Of a.
        weight_zero_point: Of b: one, or (N,).
        bias: s32 that broadcasts against (M, N).
        pair_starts: As in `dot`, over K.

    Returns:
        Sums with arrays (..., M, N); output channels are the N columns, counted over all leading dimensions.

    Raises:
        ModelError: shapes or types do not fit.
    """
    check_bytes(a, "a")
    check_bytes(b, "b")
    if min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[-2]:
        raise ModelError(f"{a.shape} cannot be multiplied by {b.shape}", do="the inner sizes are equal")
    if b.ndim == 2 and a.ndim > 2:  # one long matrix instead of many
        shape = (*a.shape[:-1], b.shape[1])
        made = matmul(
            a.reshape(-1, a.shape[-1]),
            b,
            zero_point=zero_point,
            weight_zero_point=weight_zero_point,
            bias=None if bias is None else _spread(bias, shape).reshape(-1, b.shape[1]),
            pair_starts=pair_starts,
        )
        wide = made.wide.reshape(shape)
        sums = wide if made.sums is made.wide else made.sums.reshape(shape)
        return Sums(sums, wide, made.saturated, made.peak)
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count, length, outputs = a.shape[-2], a.shape[-1], b.shape[-1]
    left = np.broadcast_to(a, (*leading, count, length)).reshape(-1, count, length)
    right = np.broadcast_to(b, (*leading, length, outputs)).reshape(-1, length, outputs)
    zeros = per_channel(weight_zero_point, outputs).reshape(1, -1, 1)
    added = _spread(0 if bias is None else bias, (count, outputs)).T
    collected = Collected.empty(len(left), outputs, count, paired=pair_starts is not None)
    step = block(length, outputs)
    for index in range(len(left)):
        rows = np.ascontiguousarray(right[index].T)[None]
        for start in range(0, max(count, 1), step):
            part = left[index, start : start + step].T[None]
            found: Products = grouped(part, rows, pair_starts)
            centred = center(found, part, rows, zero_point, zeros)[0]
            collected.put(index, start, centred + added[:, start : start + step], found)
    return collected.shaped(lambda sums: np.ascontiguousarray(sums.swapaxes(1, 2)).reshape(*leading, count, outputs))


def _spread(bias: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Broadcast a bias.

    Raises:
        ModelError: it does not broadcast.
    """
    values = np.asarray(bias, np.int64)
    try:
        return np.broadcast_to(values, shape)
    except ValueError as error:
        what = f"a bias of shape {values.shape} does not fit a product of shape {shape}"
        raise ModelError(what, do="check the bias") from error


def gemm(
    a: Byte,
    b: Byte,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    zero_point: int = 0,
    weight_zero_point: npt.ArrayLike = 0,
    bias: npt.ArrayLike | None = None,
    pair_starts: npt.ArrayLike | None = None,
) -> Sums:
    """Multiply two matrices in integers, each transposed first where asked.

    Args:
        a: uint8 or int8 (M, K), or (K, M) with transpose_a.
        b: int8 or uint8 (K, N), or (N, K) with transpose_b.
        transpose_a, transpose_b: ONNX's transA and transB.
        zero_point, weight_zero_point: As in `matmul`.
        bias: s32 that broadcasts against (M, N).
        pair_starts: As in `dot`, over K.

    Returns:
        Sums with arrays (M, N). Gemm's alpha belongs to the multiplier of `requantize`; beta is 1.

    Raises:
        ModelError: shapes or types do not fit.
    """
    check_bytes(a, "a", 2)
    check_bytes(b, "b", 2)
    return matmul(
        a.T if transpose_a else a,
        b.T if transpose_b else b,
        zero_point=zero_point,
        weight_zero_point=weight_zero_point,
        bias=bias,
        pair_starts=pair_starts,
    )
