"""Average and maximum pooling of quantized tensors.

The formula (oneDNN) accumulates in s32, divides, rounds half to even, and keeps the input's scale: `average_pool_s32`.
onnxruntime's QLinearAveragePool is no integer kernel: it dequantizes to float32, adds in float32 in the order of the
taps, divides twice and rounds; `average_pool` gives its bits. Its QLinearGlobalAveragePool does sum in s32 and
requantizes with one float32 multiplier; QLinearAveragePool falls back to it where the window is the whole image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.numerics.reference.dot import Byte, check_bytes
from int8cal.numerics.reference.requantize import byte_limits, requantize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.numerics.affine import Affine
    from int8cal.numerics.reference.windows import Window

Int64 = npt.NDArray[np.int64]


def average_pool_s32(
    x: Byte, window: Window, *, zero_point: int = 0, count_include_pad: bool = False, ceil: bool = False
) -> npt.NDArray[Any]:
    """Average in integers: rint(Σ (x - zero_point) / count) + zero_point, half to even.

    Args:
        x: uint8 or int8 (N, C, spatial...).
        window: Kernel, strides, dilations, pads.
        zero_point: Of x and of the result.
        count_include_pad: The pads count as zeros; else the divisor is the number of taps inside x.
        ceil: As in `Window.outputs`.

    Returns:
        (N, C, spatial...), x's type and scale. float64 divides two integers below 2**53, rounded once.

    Raises:
        ModelError: shapes or types do not fit.
    """
    check_bytes(x, "x", window.rank + 2)
    outputs = window.outputs(x.shape[2:], ceil=ceil)
    total = np.zeros((*x.shape[:2], *outputs), np.int64)
    count = np.zeros(outputs, np.int64)
    for inside, landing in _reads(x.shape[2:], outputs, window):
        total[landing] += x[inside].astype(np.int64) - zero_point
        count[landing] += 1
    divisor = np.full(outputs, np.prod(window.kernel)) if count_include_pad else count
    codes = np.rint(total / np.maximum(divisor, 1)) + zero_point
    limits = byte_limits(x.dtype)
    pooled: npt.NDArray[Any] = np.clip(codes, limits.min, limits.max).astype(x.dtype)
    return pooled


def average_pool(
    x: Byte, window: Window, of_x: Affine, of_y: Affine, *, count_include_pad: bool = False, ceil: bool = False
) -> npt.NDArray[Any]:
    """Average with the bits of onnxruntime's QLinearAveragePool.

    Args:
        x, window: As in `average_pool_s32`; dilations are 1, the operator has none.
        of_x, of_y: Scales and zero points.
        count_include_pad, ceil: As in `average_pool_s32`.

    Returns:
        (N, C, spatial...), x's type.

    Raises:
        ModelError: shapes or types do not fit.
    """
    check_bytes(x, "x", window.rank + 2)
    if window.kernel == x.shape[2:] and not any(window.pads):
        return global_average_pool(x, of_x, of_y)
    outputs = window.outputs(x.shape[2:], ceil=ceil)
    real = np.float32(of_x.scale) * (x.astype(np.int32) - of_x.zero_point).astype(np.float32)
    total = np.zeros((*x.shape[:2], *outputs), np.float32)
    count = np.zeros(outputs, np.float32)
    for inside, landing in _reads(x.shape[2:], outputs, window):
        total[landing] += real[inside]
        count[landing] += 1
    divisor = np.float32(np.prod(window.kernel)) if count_include_pad else np.maximum(count, 1)
    codes = np.rint(total / divisor / np.float32(of_y.scale) + np.float32(of_y.zero_point))
    limits = byte_limits(x.dtype)
    pooled: npt.NDArray[Any] = np.clip(codes, limits.min, limits.max).astype(x.dtype)
    return pooled


def global_average_pool(x: Byte, of_x: Affine, of_y: Affine) -> npt.NDArray[Any]:
    """Average over all spatial axes with the bits of onnxruntime's QLinearGlobalAveragePool.

    The sum of x - zero_point is exact in s32; the multiplier is fl32(sx / fl32(sy · size)).

    Args:
        x: uint8 or int8 (N, C, spatial...).
        of_x, of_y: Scales and zero points.

    Returns:
        (N, C, 1...), x's type.

    Raises:
        ModelError: x is not 8 bits wide.
    """
    check_bytes(x, "x")
    axes = tuple(range(2, x.ndim))
    size = int(np.prod(x.shape[2:]))
    total = x.sum(axis=axes, dtype=np.int64, keepdims=True) - of_x.zero_point * size
    multiplier = np.float32(of_x.scale) / (np.float32(of_y.scale) * np.float32(size))
    return requantize(total.astype(np.int32), multiplier, of_y.zero_point, x.dtype)


def max_pool(x: Byte, window: Window, *, ceil: bool = False) -> npt.NDArray[Any]:
    """Take the maximum over the taps inside x; the pads never win.

    Args:
        x: uint8 or int8 (N, C, spatial...).
        window: Kernel, strides, dilations, pads.
        ceil: As in `Window.outputs`.

    Returns:
        (N, C, spatial...), x's type, scale and zero point; the smallest code where a window sees nothing but pads.

    Raises:
        ModelError: shapes or types do not fit.
    """
    check_bytes(x, "x", window.rank + 2)
    outputs = window.outputs(x.shape[2:], ceil=ceil)
    found = np.full((*x.shape[:2], *outputs), byte_limits(x.dtype).min, x.dtype)
    for inside, landing in _reads(x.shape[2:], outputs, window):
        target = found[landing]
        np.maximum(target, x[inside], out=target)
    return found


def _reads(sizes: tuple[int, ...], outputs: tuple[int, ...], window: Window) -> Iterator[tuple[Any, Any]]:
    """Yield for each tap, in order, the index of the inputs it reads and of the outputs that read them."""
    for tap in window.taps():
        inside, landing = [], []
        for axis, size in enumerate(sizes):
            stride, offset = window.strides[axis], tap[axis] * window.dilations[axis] - window.pads[axis]
            first = max(0, -(offset // stride))
            last = max(first, min(outputs[axis], (size - 1 - offset) // stride + 1))
            landing.append(slice(first, last))
            begin = first * stride + offset
            inside.append(slice(begin, begin + (last - first - 1) * stride + 1, stride) if last > first else slice(0))
        yield (..., *inside), (..., *landing)
