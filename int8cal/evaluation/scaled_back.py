"""Values of channels that int8cal rescaled, as they were before: the int8 model's metadata tell the factors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from int8cal.errors import ModelError
from int8cal.numerics.channels import along
from int8cal.protos import metadata_of
from int8cal.quantization.corrections.equalization import EQUALIZATION_KEY

if TYPE_CHECKING:
    import onnx

    from int8cal.numerics import Array, Float64


def equalization_of(int8: onnx.ModelProto) -> dict[str, tuple[int, Float64]]:
    """Read what the channels of the int8 model's tensors were multiplied by: the axis, and a factor 2**e of each."""
    text = metadata_of(int8, EQUALIZATION_KEY)
    if text is None:
        return {}
    try:
        return {
            name: (int(entry["axis"]), np.exp2(np.asarray(entry["exponents"], np.float64)))
            for name, entry in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ModelError(
            f'its metadata "{EQUALIZATION_KEY}" is not a JSON object of tensor name to axis and exponents',
            do="quantize the model again",
        ) from error


def scaled_back(tensor: str, value: Array, axis: int, factors: Float64) -> Array:
    """Divide by the factor of each channel."""
    if factors.ndim != 1 or not -value.ndim <= axis < value.ndim or value.shape[axis] != factors.size:
        raise ModelError(
            f'its metadata "{EQUALIZATION_KEY}" has {factors.shape} exponents on axis {axis} for tensor "{tensor}" '
            f"of shape {value.shape}",
            do="quantize the model again",
        )
    result: Array = value / factors.reshape(along(axis, value.ndim))
    return result
