"""Pools that must stay in float, in front of a Q.

onnxruntime moves a Q past a MaxPool, to quantize what the pool reads: many times as many values, and where these lie
channel by channel, as float kernels write them, its MaxPool of codes takes three to eleven times as long as that of
floats. It moves none past a Flatten, nor past what has a second reader. The figures:
docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.ops import is_standard

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.edit import Builder
    from int8cal.graph.index import Index
    from int8cal.graph.plan import Plan

# Through these the runtime hands on that channels come last, as integer layers write them. Its MaxPool of such codes is
# the fastest of all.
_PASSING = frozenset(
    {"Abs", "Add", "Clip", "Div", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mul"}
    | {"Neg", "PRelu", "Pow", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Tanh", "Gelu"}
)


def pools_before_codes(index: Index, plan: Plan) -> frozenset[str]:
    """Name the MaxPools of a float model that must stay in front of the Q behind them."""
    found = set()
    channels_last: set[str] = set()
    for node in index.graph.node:
        if node.name in plan.integer_nodes or (node.op_type in _PASSING and not channels_last.isdisjoint(node.input)):
            channels_last.update(node.output)
        elif node.op_type == "MaxPool" and is_standard(node) and not any(node.output[1:]):
            readers = {use.node.name for use in index.uses.get(node.output[0], ())}
            alone = node.output[0] not in index.outputs and readers <= plan.integer_nodes
            if alone and plan.tensor(node.output[0]) is not None and node.input[0] not in channels_last:
                found.add(node.name)
    return frozenset(found)


def stop_codes(built: Builder, index: Index, node: onnx.NodeProto) -> None:
    """Write nodes behind the last one, a pool, that move nothing, and that the runtime moves no Q past.

    Args:
        built: Gets the nodes.
        index: Of the float model.
        node: The pool in the float model.
    """
    names, pool = built.names, built.nodes[-1]
    output, pool.output[0] = pool.output[0], names.tensor(f"{node.output[0]}_pooled")
    pooled, dims = pool.output[0], index.dims(node.output[0])
    if dims is not None and None not in dims[1:]:
        flat = names.tensor(f"{output}_flat")
        built.node("Flatten", [pooled], flat, axis=1)
        built.node("Reshape", [flat, built.constant(f"{output}_shape", np.array([-1, *dims[1:]]))], output)
        return
    # a size that only the feed decides: the Shape is the second reader. One that is known would be folded
    shape = names.tensor(f"{output}_shape")
    built.node("Shape", [pooled], shape)
    built.node("Reshape", [pooled, shape], output)
