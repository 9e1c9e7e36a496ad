"""A fourth channel of zeros for convolutions of images: the runtime gathers their patches faster.

Its integer convolution copies what a window reads pixel by pixel, and four bytes are one copy where three are three.
The channel holds the zero point, and its weights are zero: every sum stays the same. Not where channels come last in
the model's input: the runtime moves the Pad in front of the Transpose, where it copies every pixel by itself, which
takes longer than the patches gain. The figures: docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.index import attribute
from int8cal.numerics.affine import U16

if TYPE_CHECKING:
    from int8cal.graph.index import Index
    from int8cal.graph.layers import Layer
    from int8cal.numerics import Array
    from int8cal.quantization.corrections.correction import Draft

_COLORS = 3


def is_padded(draft: Draft, layer: Layer) -> bool:
    """Whether a layer reads its input with a channel of zeros behind it.

    Args:
        draft: Its plan has the layer. Raw pixels are the model's input, which stays as it is.
        layer: The layer. Where its input comes in two planes, each gets a channel of zeros.
    """
    entry = draft.table.tensors.get(layer.input)
    return (
        layer.op_type == "Conv"
        and layer.form is None
        and layer.group == 1
        and layer.channels == _COLORS
        and len(layer.dims) == 4
        and math.prod(layer.dims[2:]) <= draft.plan.ops.rules["Conv"].padded_taps
        and layer.node not in draft.pixel_nodes
        and (entry is None or entry.affine.dtype is not U16)
        and not _channels_came_last(draft.index, layer.input)
    )


def _channels_came_last(index: Index, tensor: str) -> bool:
    """Whether a Transpose put the channels in front, which lay side by side."""
    node = index.producer.get(tensor)
    if node is None or node.op_type != "Transpose":
        return False
    order = list(attribute(node, "perm", None) or ())
    return order[1:2] == [len(order) - 1]


def with_zeros(weight: Array) -> Array:
    """Return the weights of a Conv, (outputs, channels, taps...), for an input with a channel of zeros behind it."""
    return np.concatenate([weight, np.zeros_like(weight[:, :1])], axis=1)
