"""Add and Mul of quantized tensors: the formula, and the float32 arithmetic with which onnxruntime replaces it.

The formula works in float64: saturate(rint((sa·(a - za) + sb·(b - zb)) / sc) + zc). onnxruntime's kernels for x86 are
not integer kernels: they round in float32, Add with fused multiply-adds and all zero points in one constant, so a code
can differ by 1 where the exact value lies close to a half. `add` and `multiply` give the kernels' bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.numerics.reference.dot import Byte, check_bytes
from int8cal.numerics.reference.requantize import byte_limits

if TYPE_CHECKING:
    from int8cal.numerics.affine import Affine

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
_S32_MIN = -(2**31)


def add_exact(a: Byte, b: Byte, of_a: Affine, of_b: Affine, of_result: Affine) -> npt.NDArray[Any]:
    """Add as the formula says.

    Args:
        a, b: uint8 or int8 that broadcast against each other.
        of_a, of_b, of_result: Scales and zero points. The result has the type of `of_result`, its whole range used.

    Returns:
        The broadcast shape.

    Raises:
        ModelError: types that are not 8 bits wide.
    """
    real = _real(a, of_a) + _real(b, of_b)
    return _exact_codes(real / of_result.scale, of_result)


def multiply_exact(a: Byte, b: Byte, of_a: Affine, of_b: Affine, of_result: Affine) -> npt.NDArray[Any]:
    """Multiply as the formula says; arguments as in `add_exact`.

    Raises:
        ModelError: types that are not 8 bits wide.
    """
    product = _centred(a, of_a) * _centred(b, of_b)  # an integer, exact
    return _exact_codes(product * (of_a.scale * of_b.scale / of_result.scale), of_result)


def add(a: Byte, b: Byte, of_a: Affine, of_b: Affine, of_result: Affine) -> npt.NDArray[Any]:
    """Add with the bits of onnxruntime's QLinearAdd on x86 with AVX2 or later.

    ra = sa / sc and rb = sb / sc are float32; fixed = zc - (ra·za + rb·zb); the code is
    rint(fma(a, ra, fma(b, rb, fixed))). Where the inner run of elements of one input is a single value v, v·r is added
    to `fixed` first.

    Args:
        a, b, of_a, of_b, of_result: As in `add_exact`; all of one type.

    Returns:
        The broadcast shape.

    Raises:
        ModelError: types that are not 8 bits wide.
    """
    check_bytes(a, "a")
    check_bytes(b, "b")
    lone = _lone_side(a.shape, b.shape)
    first, second = (b, a) if lone == "a" else (a, b)
    one, other = (of_b, of_a) if lone == "a" else (of_a, of_b)
    scale = np.float32(of_result.scale)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        ra, rb = np.float32(one.scale) / scale, np.float32(other.scale) / scale
        zeros = _fma(ra, np.float32(one.zero_point), rb * np.float32(other.zero_point))
        fixed = np.float32(of_result.zero_point) - zeros
        inner = _fma(second.astype(np.float32), rb, fixed)
        return _kernel_codes(_fma(first.astype(np.float32), ra, inner), of_result)


def multiply(a: Byte, b: Byte, of_a: Affine, of_b: Affine, of_result: Affine) -> npt.NDArray[Any]:
    """Multiply with the bits of onnxruntime's QLinearMul on x86: rint(fl32(fl32(p · fl32(sa·sb/sc)) + zc)).

    Args:
        a, b, of_a, of_b, of_result: As in `add_exact`; all of one type.

    Returns:
        The broadcast shape.

    Raises:
        ModelError: types that are not 8 bits wide.
    """
    product = (_centred(a, of_a) * _centred(b, of_b)).astype(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        ratio = np.float32(of_a.scale) * np.float32(of_b.scale) / np.float32(of_result.scale)
        return _kernel_codes(product * ratio + np.float32(of_result.zero_point), of_result)


def _centred(x: Byte, affine: Affine) -> Float64:
    check_bytes(x, "an input")
    return x.astype(np.float64) - affine.zero_point


def _real(x: Byte, affine: Affine) -> Float64:
    return affine.scale * _centred(x, affine)


def _exact_codes(codes: Float64, affine: Affine) -> npt.NDArray[Any]:
    limits = byte_limits(affine.dtype.name)
    result: npt.NDArray[Any] = np.clip(np.rint(codes) + affine.zero_point, limits.min, limits.max).astype(limits.dtype)
    return result


def _kernel_codes(codes: Float32, affine: Affine) -> npt.NDArray[Any]:
    """Round to s32 and saturate; what s32 cannot hold becomes its smallest value, as CVTPS2DQ has it."""
    limits = byte_limits(affine.dtype.name)
    whole = np.rint(codes.astype(np.float64))
    whole = np.where(np.abs(whole) < -_S32_MIN, whole, _S32_MIN)
    result: npt.NDArray[Any] = np.clip(whole, limits.min, limits.max).astype(limits.dtype)
    return result


def _fma(x: Any, y: Any, z: Any) -> Float32:
    """Return x · y + z of float32 values, rounded once.

    The product is exact in float64. The float64 sum is rounded to odd, which keeps the rounding to float32 right.
    """
    product = np.asarray(np.asarray(x, np.float64) * np.asarray(y, np.float64))  # numpy 1 keeps float32 otherwise
    addend = np.asarray(z, np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = (total.view(np.int64) & 1) == 0
    nudged = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    rounded = np.where(np.isfinite(total) & (error != 0) & even, nudged, total)
    result: Float32 = rounded.astype(np.float32)
    return result


def _lone_side(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Return which input is a single value along the innermost axes: "a", "b", or "" for neither."""
    rank = max(len(a), len(b))
    sizes = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    for one, other in reversed(list(sizes)):
        if one != other:
            return "a" if one == 1 else "b"
        if one > 1:
            return ""
    return ""
