"""bfloat16 as what it is, the upper half of a float32: numpy has no such type, nor does onnx before 1.19."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from int8cal.numerics import Array, Float32


def from_bits(bits: Array) -> Float32:
    """Return the values of bfloat16 bits: integers of any shape, below 2**16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bits(values: Float32) -> npt.NDArray[np.uint16]:
    """Round float32 values of any shape to bfloat16, half to even, and return the bits; NaN stays NaN."""
    bits = np.asarray(values, np.float32, order="C").view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)
