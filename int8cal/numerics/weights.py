"""What an int8 layer holds, and the s32 bias that goes with its weights (NUMERICS 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from int8cal.errors import NonFiniteError
from int8cal.numerics.affine import S7, S8, SMALLEST_SCALE, QType

Float64 = npt.NDArray[np.float64]

BIAS_LIMIT = float(2**31 - 1)
WEIGHT_TYPES: dict[str, QType] = {"s8": S8, "s7": S7, "paired": S8}


def guard_products(
    scales: Float64, input_scale: float, zero: npt.NDArray[np.bool_]
) -> tuple[Float64, npt.NDArray[np.bool_]]:
    """Raise weight scales until their products with the input's scale are normal float32.

    Args:
        scales: Weight scales (channels,), as for `guard_bias`.
        input_scale: Scale of the layer's input.
        zero: Channels whose weights are all zero: raising their scales changes no code.

    Returns:
        (scales, ended): new scales, and channels whose weights have fewer bits for it since float32 ends.

    Numerics: The product is the scale of the accumulator and of the bias. Below, it would be denormal: rounded, its
    inverse infinite, and zero where a runtime flushes denormals. A raised scale costs bits of the weights alone.
    """
    least, _ = _raised(np.zeros(scales.shape), np.full(scales.shape, SMALLEST_SCALE / min(input_scale, 1.0)))
    # a scale at the limit was raised to it, now or when the table that it comes from was made
    return np.maximum(scales, least), (scales <= least) & ~zero


def guard_bias(
    scales: Float64, bias: Float64, input_scale: float, *, reserve: int = 0
) -> tuple[Float64, npt.NDArray[np.bool_]]:
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


def _raised(scales: Float64, need: Float64) -> tuple[Float64, npt.NDArray[np.bool_]]:
    """Raise scales to the smallest float32 that is not below the need; returns them and which changed."""
    raised = need > scales
    lifted = need.astype(np.float32)  # the cast may round down
    lifted = np.where(lifted.astype(np.float64) < need, np.nextafter(lifted, np.float32(np.inf)), lifted)
    return np.where(raised, lifted.astype(np.float64), scales), raised


def quantize_bias(bias: Float64, input_scale: float, scales: Float64) -> npt.NDArray[np.int32]:
    """Round a bias (M,) to s32 with scale input_scale * scales, as the runtime multiplies them in float32.

    Where there are fewer scales than biases, as under a grouped ConvTranspose, output channel g * len(scales) + k has
    scale k.
    """
    product = (np.float32(input_scale) * scales.astype(np.float32)).astype(np.float64)
    if bias.size > product.size:
        product = np.tile(product, bias.size // product.size)
    return np.clip(np.rint(bias / product), -BIAS_LIMIT, BIAS_LIMIT).astype(np.int32)


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer's integers.

    Attributes:
        weight: Codes, shaped as stored.
        scales: (channels,); (M / group,) under a grouped ConvTranspose.
        bias: s32 codes, None where the layer has no bias.
        raised: Number of scales that the bias guard raised.
        range: "s8", "s7" or "paired".
        ended: Number of scales that are larger than the weights want them, since float32 ends.
    """

    weight: npt.NDArray[np.int8]
    scales: Float64
    bias: npt.NDArray[np.int32] | None
    raised: int
    range: str = "s8"
    ended: int = 0
