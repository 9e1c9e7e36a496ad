"""Groups of few channels, joined: the runtime's integer convolution multiplies one group after the other.

With 4 channels a group it takes longer than in float, and six times as long as with 32. What a group's outputs read of
the others' channels has weights of zero: every sum stays the same. The figures: docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from int8cal.graph.layers import Layer
    from int8cal.numerics import Array
    from int8cal.quantization.corrections.correction import Draft

_FEW_TAPS = 9  # of more, half as many channels take 1.4 times as long, and half the bytes


def groups_in_one(draft: Draft, layer: Layer) -> int:
    """Return how many groups of a convolution are one in the int8 model; 1 where it keeps its own.

    Args:
        draft: Its plan has the layer.
        layer: The layer. A depthwise convolution, of one channel to one each, has a kernel of its own. Neighbours that
            meet in one instruction stay the same where a group has an even number of channels, or one.
    """
    width = layer.dims[1] if layer.op_type == "Conv" else 0
    outputs = layer.dims[0] // layer.group
    wider = layer.node in draft.copies or layer.node in draft.fine or layer.node in draft.residual
    if layer.group == 1 or width == outputs == 1 or wider or (width % 2 and width != 1) or not width:
        return 1
    most = draft.plan.ops.rules["Conv"].joined_channels // width
    if math.prod(layer.dims[2:]) > _FEW_TAPS:
        most //= 2
    return max((count for count in range(1, most + 1) if layer.group % count == 0), default=1)


def joined_groups(weight: Array, group: int, count: int) -> Array:
    """Return the weights (outputs, channels, taps...) of a Conv with every `count` of its groups as one."""
    outputs, width, *taps = weight.shape
    place = np.arange(outputs) * group // outputs % count
    wide = np.zeros((outputs, count, width, *taps), weight.dtype)
    wide[np.arange(outputs), place] = weight
    return wide.reshape(outputs, count * width, *taps)
