"""From s32 sums back to u8 or s8, with the bits of onnxruntime and with the formula of oneDNN.

Both compute in float32. onnxruntime (MlasRequantizeOutput): the sum, bias included, is cast to float32, multiplied by
one float32 multiplier, clamped to [qmin - zero_point, qmax - zero_point], rounded half to even, and only then does the
zero point come on top. The formula of affine quantization in float64 (`numerics.affine`) gives another code where the
float32 product falls on the other side of a half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from int8cal.errors import ModelError

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


def multipliers(
    input_scale: float, weight_scales: npt.ArrayLike, output_scale: float, *, alpha: float = 1.0
) -> Float32:
    """Return onnxruntime's float32 multiplier(s): ((alpha · x) · w) / y, rounded to float32 after every step.

    Args:
        input_scale, output_scale: float32 values.
        weight_scales: One, or one per output channel.
        alpha: Gemm's factor.

    Returns:
        float32, the shape of weight_scales.
    """
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.float32(alpha) * np.float32(input_scale)
        found: Float32 = np.asarray(scaled * np.asarray(weight_scales, np.float32) / np.float32(output_scale))
    return found


def requantize(
    acc: Int32, multiplier: npt.ArrayLike, zero_point: int, dtype: npt.DTypeLike, axis: int = 1
) -> npt.NDArray[Any]:
    """Return saturate(rint(acc · multiplier) + zero_point) with onnxruntime's bits.

    Args:
        acc: s32 sums, bias included.
        multiplier: float32: one, or one per channel along `axis`.
        zero_point: Of the result.
        dtype: uint8 or int8; the whole range of the type is used, -128 too.
        axis: Channel axis of acc: 1 after a convolution, -1 after MatMul and Gemm.

    Returns:
        acc's shape, of the asked type.

    Raises:
        ModelError: dtype is not uint8 or int8.
    """
    limits = byte_limits(dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled = acc.astype(np.float32) * along(multiplier, acc.ndim, axis)
    low, high = np.float32(limits.min - zero_point), np.float32(limits.max - zero_point)
    # fmax, as MAXPS does, takes the bound where the product is NaN (a sum of 0 under an infinite multiplier)
    codes = np.rint(np.fmin(np.fmax(scaled, low), high)).astype(np.int32) + zero_point
    result: npt.NDArray[Any] = codes.astype(limits.dtype)
    return result


def requantize_onednn(
    acc: Int32,
    scales: npt.ArrayLike,
    output_scale: float,
    zero_point: int,
    dtype: npt.DTypeLike,
    *,
    axis: int = 1,
    added: npt.ArrayLike | None = None,
    relu: bool = False,
) -> npt.NDArray[Any]:
    """Return saturate(rint(postops(acc · scales) / output_scale + zero_point)), as the oneDNN guide has it, in float32.

    Args:
        acc: s32 sums, bias included; doubled where the weights were halved.
        scales: float32 input scale times weight scale: one, or one per channel along `axis`.
        output_scale, zero_point: Of the result. The zero point is added before rounding.
        dtype: uint8 or int8.
        axis: Channel axis of acc.
        added: The sum post-op: float32 values, dequantized, that broadcast against acc.
        relu: Negative values become 0, after the sum.

    Returns:
        acc's shape, of the asked type.

    Raises:
        ModelError: dtype is not uint8 or int8.
    """
    limits = byte_limits(dtype)
    real = acc.astype(np.float32) * along(scales, acc.ndim, axis)
    if added is not None:
        real = real + np.asarray(added, np.float32)
    if relu:
        real = np.maximum(real, np.float32(0))
    codes = np.rint(real / np.float32(output_scale) + np.float32(zero_point))
    result: npt.NDArray[Any] = np.clip(codes, limits.min, limits.max).astype(limits.dtype)
    return result


def along(values: npt.ArrayLike, rank: int, axis: int) -> Float32:
    """Give float32 values per channel the shape that broadcasts along `axis` of an array of that rank."""
    found = np.asarray(values, np.float32).reshape(-1)
    shape = [1] * rank
    if rank:
        shape[axis] = -1
    return found.reshape(shape) if found.size > 1 or rank else found[0]


def byte_limits(dtype: npt.DTypeLike) -> np.iinfo[Any]:
    """Return the limits of uint8 or int8.

    Raises:
        ModelError: another type.
    """
    found = np.dtype(dtype)
    if found not in (np.dtype(np.uint8), np.dtype(np.int8)):
        raise ModelError(f"the result must be uint8 or int8, not {found}", do="choose one of them")
    return np.iinfo(found)


def quantize_dynamically(values: Float32) -> tuple[npt.NDArray[np.uint8], np.float32, int]:
    """Quantize to u8 by the values' own range, in float32, as DynamicQuantizeLinear does.

    Args:
        values: float32, finite.

    Returns:
        Codes, their scale (1 where all values are 0) and their zero point.
    """
    low, high = np.float32(min(values.min(initial=0), 0)), np.float32(max(values.max(initial=0), 0))
    scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
    zero_point = int(np.rint(np.clip(-low / scale, 0, 255)))
    return np.clip(np.rint(values / scale) + zero_point, 0, 255).astype(np.uint8), scale, zero_point
