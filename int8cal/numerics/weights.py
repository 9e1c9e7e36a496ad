"""What an int8 layer holds, and the s32 bias that goes with its weights (docs/numerics.md); weights of recurrent cells.

A recurrent gate adds W x + R h. W is (directions, gates * hidden, inputs), R (directions, gates * hidden, hidden): a
row is one output of one gate, and has one symmetric scale, as oneDNN recommends for RNNs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.errors import NonFiniteError
from int8cal.numerics.affine import S7, S8, SMALLEST_SCALE, QType

if TYPE_CHECKING:
    from int8cal.numerics import Bools, Float64, Int8, Int32

BIAS_LIMIT = float(2**31 - 1)
ZERO_PRODUCT = 2.0**-64  # least scale of what a channel of zeros adds up, in which a runtime counts the output's range
WEIGHT_TYPES: dict[str, QType] = {"s8": S8, "s7": S7, "paired": S8}


def guard_products(scales: Float64, input_scale: float, zero: Bools) -> tuple[Float64, Bools]:
    """Raise weight scales until their products with the input's scale are normal float32.

    Args:
        scales: Weight scales (channels,), as for `guard_bias`.
        input_scale: Scale of the layer's input.
        zero: Channels whose weights are all zero: raising their scales changes no code.

    Returns:
        (scales, ended): new scales, and channels whose weights have fewer bits for it since float32 ends.

    Numerics: The product is the scale of the accumulator and of the bias. Below, it would be denormal: rounded, its
    inverse infinite, and zero where a runtime flushes denormals. A raised scale costs bits of the weights alone. For
    zeros it is larger, at no cost: OpenVINO divides the range of the output by it, which near float32's end gives
    infinity, and then the upper end for every output of the channel.
    """
    need = np.where(zero, ZERO_PRODUCT, SMALLEST_SCALE) / min(input_scale, 1.0)
    least, _ = _raised(np.zeros(scales.shape), need)
    # a scale at the limit was raised to it, now or when the table that it comes from was made
    return np.maximum(scales, least), (scales <= least) & ~zero


def guard_bias(scales: Float64, bias: Float64, input_scale: float, *, reserve: int = 0) -> tuple[Float64, Bools]:
    """Raise weight scales until each bias fits s32.

    Args:
        scales: Weight scales (channels,), (1,), or (M / group,) of a grouped ConvTranspose.
        bias: (M,) output channels, or (1,), real units.
        input_scale: Scale of the layer's input.
        reserve: What the accumulator must hold besides the bias, in codes: 255 * 127 * (weights per channel) covers any
            input. onnxruntime adds the bias to the s32 sum and wraps around, so a bias near the limit flips its sign.

    Returns:
        (scales, raised): new scales and which of them changed. |bias| / (input_scale * scale) <= 2^31 - 1 - reserve
        holds after, with the smallest float32 scale that does it.

    Raises:
        NonFiniteError: a bias is NaN or infinite, or too large for any float32 scale.
    """
    need = np.abs(bias) / (input_scale * max(BIAS_LIMIT - reserve, 1.0))
    if need.size % scales.size:
        need = np.full(scales.shape, need.max(initial=0.0))  # one bias for all channels
    need = need.reshape(-1, scales.size).max(axis=0)  # channels of several groups that share a scale
    if not (need <= np.finfo(np.float32).max).all():
        raise NonFiniteError("a bias is NaN, infinite or too large", do="repair the FP32 model")
    return _raised(scales, need)


def _raised(scales: Float64, need: Float64) -> tuple[Float64, Bools]:
    """Raise scales to the smallest float32 that is not below the need; returns them and which changed."""
    raised = need > scales
    lifted = need.astype(np.float32)  # the cast may round down
    lifted = np.where(lifted.astype(np.float64) < need, np.nextafter(lifted, np.float32(np.inf)), lifted)
    return np.where(raised, lifted.astype(np.float64), scales), raised


def quantize_bias(bias: Float64, input_scale: float, scales: Float64) -> Int32:
    """Round a bias (M,) to s32 with scale input_scale * scales, (M,) or (1,).

    The runtime multiplies both in float32.
    """
    product = (np.float32(input_scale) * scales.astype(np.float32)).astype(np.float64)
    return np.clip(np.rint(bias / product), -BIAS_LIMIT, BIAS_LIMIT).astype(np.int32)


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer's integers.

    Attributes:
        weight: Codes, shaped as stored.
        scales: (channels,); (M / group,) under a grouped ConvTranspose.
        bias: s32 codes, None where the layer has no bias.
        raised: Number of scales that the bias guard raised, of channels that have weights: zeros lose nothing by it.
        range: "s8", "s7" or "paired".
        ended: Number of scales that are larger than the weights want them, since float32 ends.
        mark: Of all that the codes were rounded from: equal marks, equal codes; "" where it was not taken.
    """

    weight: Int8
    scales: Float64
    bias: Int32 | None
    raised: int
    range: str = "s8"
    ended: int = 0
    mark: str = ""


@dataclass(frozen=True)
class GateCodes:
    """The integers of W or of R.

    Attributes:
        codes: int8, shaped as the weight: (directions, gates * hidden, inputs).
        scales: float64 values that are exact float32, (directions, gates * hidden).
    """

    codes: Int8
    scales: Float64


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
