"""Weights that can change no output are zeros: training with weight decay leaves dead channels at 1e-40, or 1e-23.

Such numbers are denormal, or the product of two is, and x86 CPUs take ten times as long for those: one convolution of
PP-OCRv4's English model takes three quarters of its time. And int8 codes of a channel of them need a scale that no
float32 holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import constant
from int8cal.graph.index import walk
from int8cal.graph.layers import GATES
from int8cal.graph.ops import is_standard
from int8cal.protos import graphs_within
from int8cal.stored import values_of

if TYPE_CHECKING:
    import onnx

    from int8cal.numerics import Array, Bools

# Below both: so small that products of two are denormal, and so small beside the largest value of its tensor.
_TINY, _BESIDE = np.float32(2.0**-63), np.float32(2.0**-64)
# where layers have weights and biases
_SLOTS = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (0, 1)} | dict.fromkeys(GATES, (1, 2, 3))


def without_tiny_weights(model: onnx.ModelProto) -> None:
    """Let tiny weights and biases of layers be 0; see `_tiny`. Must not touch what anything else reads or gives out.

    Args:
        model: In float32; its initializers are replaced where they change, in bodies too.
    """
    read = set[str]()
    others = {value.name for graph in graphs_within(model.graph) for value in graph.output}
    for node in walk(model.graph):
        slots = _SLOTS.get(node.op_type, ()) if is_standard(node) else ()
        for slot, name in enumerate(node.input):
            (read if slot in slots else others).add(name)
    read -= others
    for graph in graphs_within(model.graph):
        for tensor in graph.initializer:
            if tensor.name in read and tensor.data_type == tensor.FLOAT:
                values = values_of(tensor)
                tiny = _tiny(values)
                if tiny.any():
                    tensor.CopyFrom(constant(tensor.name, np.where(tiny, np.float32(0.0), values)))


def _tiny(values: Array) -> Bools:
    """Say which values are below 1e-19, and 5e-20 of the largest one: no sum of a layer can tell them from 0."""
    sizes = np.abs(values)
    limit = min(_TINY, np.float32(sizes.max(initial=0.0) * _BESIDE))
    result: Bools = (sizes < limit) & (sizes > 0.0)
    return result
