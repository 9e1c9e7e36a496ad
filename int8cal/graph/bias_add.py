"""A MatMul with constant weights and the Add behind it that holds its bias: together one product with a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Collection

    from int8cal.graph.index import Index


@dataclass(frozen=True)
class BiasAdd:
    """The Add behind a MatMul.

    Attributes:
        node: The Add.
        bias: Its constant operand, one float32 per output channel.
    """

    node: onnx.NodeProto
    bias: str


def bias_add(index: Index, node: onnx.NodeProto, allowed: Collection[str]) -> BiasAdd | None:
    """Find the Add that only adds a bias to a product.

    Must not find one that the user left out, that adds anything but one finite constant per output channel, or where
    the product itself is read by another node or is a graph output. The rank of its input must be known, because it is
    computed on rows.

    Args:
        index: The graph's index.
        node: A MatMul with constant weights.
        allowed: Names of the nodes that may be quantized.
    """
    weight = index.initializers.get(node.input[1])
    product = str(node.output[0])
    add = index.only_reader(product)
    if node.op_type != "MatMul" or weight is None or len(weight.dims) != 2:
        return None
    if add is None or add.op_type != "Add" or add.domain not in ("", "ai.onnx") or add.name not in allowed:
        return None
    bias = next((str(name) for name in add.input if name != product), "")
    if not index.is_constant(bias) or index.elem_type(bias) != onnx.TensorProto.FLOAT:
        return None
    values = index.constant(bias)
    rank = index.rank(node.input[0])
    if values.shape != (weight.dims[1],) or not np.isfinite(values).all() or not rank:
        return None
    return BiasAdd(add, bias)
