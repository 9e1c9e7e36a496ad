"""Quantization by its definition, in float64."""

from __future__ import annotations

import numpy as np


def quantize(x, affine):
    """Return saturate(rint(x / scale) + zero_point) in the affine's integer type, same shape as x."""
    codes = np.rint(np.asarray(x, np.float64) / affine.scale) + affine.zero_point
    return np.clip(codes, affine.dtype.qmin, affine.dtype.qmax).astype(affine.dtype.name)


def dequantize(q, affine):
    """Return scale * (q - zero_point) in float64, same shape as q."""
    return affine.scale * (q.astype(np.float64) - affine.zero_point)


def fake_quantize(operation, x):
    """Return what OpenVINO's FakeQuantize gives, in float64, same shape as x."""
    values = np.asarray(x, np.float64)
    steps = operation.levels - 1
    codes = np.rint((values - operation.input_low) / (operation.input_high - operation.input_low) * steps)
    inner = codes / steps * (operation.output_high - operation.output_low) + operation.output_low
    low, high = sorted((operation.input_low, operation.input_high))
    return np.where(values <= low, operation.output_low, np.where(values > high, operation.output_high, inner))
