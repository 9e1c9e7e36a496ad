"""Affine quantization x = scale * (q - zero_point): choosing the parameters, and applying them to arrays.

All of it computes in float64, rounds half to even and casts once at the end (docs/numerics.md; oneDNN int8 guide).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import NonFiniteError

if TYPE_CHECKING:
    from int8cal.numerics import Array, Float32

# The smallest scale that a model or table may hold, and the smallest product of an input's and a weight's scale, which
# is the scale of a bias: the last normal float32. Its inverse is finite, and no runtime takes it for zero.
SMALLEST_SCALE = 2.0**-126
# The scale of an activation that is all zero, which says nothing of its unit: far enough from both ends of float32 for
# products with any scale of weights.
ZERO_SCALE = 2.0**-63


@dataclass(frozen=True)
class QType:
    """An integer type with the codes that may be used: `qmin`..`qmax`, numpy name `name`."""

    name: str
    qmin: int
    qmax: int

    @property
    def levels(self) -> int:
        """Number of codes."""
        return self.qmax - self.qmin + 1


U8 = QType("uint8", 0, 255)
S8 = QType("int8", -127, 127)  # symmetric activations and weights; -128 is never used, so that -x is always a code
U16 = QType("uint16", 0, 65535)
S7 = QType("int8", -64, 63)  # never saturates VPMADDUBSW


@dataclass(frozen=True)
class Affine:
    """Scale (float32 value > 0, held as a Python float), zero point inside [qmin, qmax], and the type."""

    scale: float
    zero_point: int
    dtype: QType

    @property
    def low(self) -> float:
        """The smallest real value that a code stands for."""
        return self.scale * (self.dtype.qmin - self.zero_point)

    @property
    def high(self) -> float:
        """The largest real value that a code stands for."""
        return self.scale * (self.dtype.qmax - self.zero_point)


def positive_scale(scale: float) -> float:
    """Round a scale to float32; zero becomes ZERO_SCALE, and what is too small for a normal float32 SMALLEST_SCALE.

    Raises:
        NonFiniteError: scale is NaN or infinite, or does not fit float32.
    """
    with np.errstate(over="ignore"):
        rounded = float(np.float32(scale))
    if not math.isfinite(rounded):
        raise NonFiniteError(f"scale {scale!r} is not a finite float32", do="check the range it was computed from")
    return max(rounded, SMALLEST_SCALE) if scale > 0.0 else ZERO_SCALE


def affine_from_range(low: float, high: float, dtype: QType, *, symmetric: bool = False) -> Affine:
    """Choose scale and zero point so that [low, high] and 0 are covered.

    Args:
        low, high: Clip range in real units, low <= high, finite.
        dtype: Target integer type; its qmin and qmax bound the codes.
        symmetric: Zero point 0 and scale = max(|low|, |high|) / qmax.

    Returns:
        Affine with float32 scale > 0 and an integer zero point inside [qmin, qmax]; 0.0 maps to it exactly.
        An all-zero range has ZERO_SCALE, one where float32 ends SMALLEST_SCALE; the caller warns, naming the tensor.

    Raises:
        NonFiniteError: low or high is NaN or infinite, or low > high; carries both.

    Numerics: float64 inside, half-even, one cast at the end (oneDNN int8 guide).
    """
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise NonFiniteError(f"range [{low!r}, {high!r}] is not finite and ordered", low=low, high=high)
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        return Affine(positive_scale(max(-low, high) / dtype.qmax), 0, dtype)
    scale = positive_scale((high - low) / (dtype.qmax - dtype.qmin))
    zero_point = int(np.clip(np.rint(dtype.qmin - low / scale), dtype.qmin, dtype.qmax))
    return Affine(scale, zero_point, dtype)


def affine_of_values(values: Array) -> Affine:
    """Choose the uint8 affine of a tensor's own range, as DynamicQuantizeLinear does.

    Args:
        values: Finite float32, any shape; an empty array counts as zeros.
    """
    return affine_from_range(float(values.min(initial=0.0)), float(values.max(initial=0.0)), U8)


def fake_quantized(values: Array, affine: Affine) -> Float32:
    """Quantize and dequantize: return scale * (q - zero_point) as the runtime does in float32.

    Args:
        values: float32, any shape; what leaves float32 when divided by the scale is clipped like any other value.
        affine: Of the codes.

    Returns:
        float32 of the same shape.
    """
    scale = np.float32(affine.scale)
    with np.errstate(over="ignore"):
        codes: Float32 = np.rint(values / scale)
    np.clip(codes, affine.dtype.qmin - affine.zero_point, affine.dtype.qmax - affine.zero_point, out=codes)
    codes *= scale
    return codes
