"""Seeded activations with the shapes that networks produce: after ReLU, ReLU6, GELU, Softmax; some with outliers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

KINDS = ("normal", "relu", "relu6", "laplace", "outliers", "gelu", "softmax")


def activation(index: int, size: int) -> Float32:
    """Return tensor `index` as float32 (size,); kinds take turns, each with a scale of its own."""
    rng = np.random.Generator(np.random.PCG64([21, index]))
    scale = np.exp(rng.normal())
    normal = rng.standard_normal(size, np.float32) * scale
    match KINDS[index % len(KINDS)]:
        case "relu":
            values = np.maximum(normal, 0)
        case "relu6":
            values = np.clip(normal * 3, 0, 6)
        case "laplace":
            values = rng.laplace(scale=scale, size=size)
        case "outliers":
            values = normal + 40 * scale * (rng.random(size) < 1e-4)
        case "gelu":
            # the tanh form is near enough to the exact one for a shape
            values = 0.5 * normal * (1 + np.tanh(0.79788456 * (normal + 0.044715 * normal**3)))
        case "softmax":
            power = np.exp(2 * normal.reshape(-1, 10))
            values = (power / power.sum(axis=1, keepdims=True)).reshape(-1)
        case _:
            values = normal
    return np.ascontiguousarray(values, np.float32)
