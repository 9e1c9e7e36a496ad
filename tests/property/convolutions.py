"""Convolutions that hypothesis draws, and codes for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st


def codes(rng, dtype, shape, *, extreme=False):
    """Codes of a type: all of them alike, or mostly its ends."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if extreme:
        return rng.choice(np.array([low, low, high, high, 0 if low < 0 else 1], dtype), shape)
    return rng.integers(low, high + 1, shape).astype(dtype)


@dataclass(frozen=True)
class Layer:
    """Shapes and attributes of a convolution, and the random numbers for its values."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    group: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    seed: int
    extreme: bool

    def attributes(self):
        return {
            "group": self.group,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
            "kernel_shape": self.weight[2:],
        }


@st.composite
def convolutions(draw, *, transposed=False):
    rank = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 1, 1, 2, 3]))
    each, made = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    dilations = tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(rank))
    pads = tuple(draw(st.integers(0, 2)) for _ in range(2 * rank))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    if transposed:  # pads are cut off: something must be left
        sizes = tuple(max(1, pads[i] + pads[i + rank] + 2 - reach[i]) + draw(st.integers(0, 3)) for i in range(rank))
    else:
        sizes = tuple(max(1, reach[i] - pads[i] - pads[i + rank]) + draw(st.integers(0, 4)) for i in range(rank))
    x = (draw(st.integers(1, 2)), group * each, *sizes)
    weight = (group * each, made, *kernel) if transposed else (group * made, each, *kernel)
    return Layer(x, weight, group, strides, dilations, pads, draw(st.integers(0, 2**32 - 1)), draw(st.booleans()))
