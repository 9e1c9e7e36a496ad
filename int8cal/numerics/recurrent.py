"""Int8 weights of recurrent cells: one symmetric scale per direction, gate and output, as oneDNN recommends for RNNs.

A gate adds W x + R h. W is (directions, gates * hidden, inputs), R (directions, gates * hidden, hidden): a row is one
output of one gate, and a row has one scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from int8cal.errors import NonFiniteError
from int8cal.numerics.affine import SMALLEST_SCALE, U8, Affine, QType, quantize

Float64 = npt.NDArray[np.float64]

# oneDNN's hidden state: values of tanh and sigmoid products lie in [-1, 1], so the scale needs no data.
HIDDEN = Affine(float(np.float32(1 / 127)), 128, U8)


@dataclass(frozen=True)
class GateCodes:
    """The integers of W or of R.

    Attributes:
        codes: int8, shaped as the weight: (directions, gates * hidden, inputs).
        scales: float64 values that are exact float32, (directions, gates * hidden).
    """

    codes: npt.NDArray[np.int8]
    scales: Float64

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """What the codes stand for, as a runtime computes it: one float32 product each."""
        return self.codes.astype(np.float32) * self.scales.astype(np.float32)[..., np.newaxis]


def gate_scales(weight: npt.NDArray[np.floating[Any]], dtype: QType) -> Float64:
    """Choose the scale of each row: max|row| / qmax, so oneDNN's factor 63 / max|W| in s7 is its inverse.

    Args:
        weight: (directions, gates * hidden, inputs), finite.
        dtype: S7 or S8.

    Returns:
        (directions, gates * hidden), float64 values that are exact float32; SMALLEST_SCALE for an all-zero row.

    Raises:
        NonFiniteError: A weight is NaN or infinite.
    """
    if not np.isfinite(weight).all():
        raise NonFiniteError("a weight is NaN or infinite", do="repair the FP32 model")
    largest = np.abs(weight.astype(np.float64)).max(axis=2)
    scales: Float64 = np.maximum((largest / dtype.qmax).astype(np.float32).astype(np.float64), SMALLEST_SCALE)
    return scales


def quantize_gates(weight: npt.NDArray[np.floating[Any]], scales: Float64, dtype: QType) -> GateCodes:
    """Round weights to codes, half to even, saturating at -qmax and qmax.

    Args:
        weight: (directions, gates * hidden, inputs).
        scales: (directions, gates * hidden).
        dtype: S7 or S8. -64 of S7 is not used, so that a row and its negative have the same codes.
    """
    codes = np.rint(weight.astype(np.float64) / scales[..., np.newaxis])
    return GateCodes(np.clip(codes, -dtype.qmax, dtype.qmax).astype(np.int8), scales)


def hidden_codes(hidden: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Round a hidden state as oneDNN's int8 RNN does: saturate(rint(127 h) + 128), u8."""
    return quantize(hidden, HIDDEN).astype(np.uint8)
