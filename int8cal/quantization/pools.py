"""Pools that onnxruntime runs slowly on integers: AveragePools of codes, and MaxPools of floats in front of codes.

Its AveragePool of codes takes 1 ns per value that it reads, and more with every tap: ten to forty times as long as an
integer depthwise convolution whose weights are all 1, with 1 / taps as their scale. That is the same sum, rounded once.
Where windows at a border have fewer taps than others, a float pool between DQ and Q is the faster one.

It moves a Q past a MaxPool, to quantize what the pool reads: many times as many values, and where these lie channel by
channel, as float kernels write them, its MaxPool of codes takes three to eleven times as long as that of floats. It
moves none past a Flatten, nor past what has a second reader. The figures: docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from int8cal.graph.edit import instead
from int8cal.graph.index import attribute
from int8cal.graph.ops import is_standard
from int8cal.numerics.affine import U16

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from int8cal.graph.edit import Builder
    from int8cal.graph.index import Index
    from int8cal.graph.plan import Plan
    from int8cal.numerics.affine import Affine

# Through these the runtime hands on that channels come last, as integer layers write them. Its MaxPool of such codes is
# the fastest of all.
_PASSING = frozenset(
    {"Abs", "Add", "Clip", "Div", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mul"}
    | {"Neg", "PRelu", "Pow", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Tanh", "Gelu"}
)

_AXES = 2  # of a depthwise convolution of integers that the runtime has a kernel for


def pools_before_codes(index: Index, plan: Plan) -> frozenset[str]:
    """Name the MaxPools of a float model that must stay in front of the Q behind them.

    Args:
        index: Of the float model.
        plan: Its plan.
    """
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


def averages_of_codes(index: Index, plan: Plan, activations: Mapping[str, Affine]) -> frozenset[str]:
    """Name the AveragePools that a plan has on integers of 8 bits; the runtime has a kernel for no others."""
    pools = (node for node in map(index.nodes.__getitem__, plan.integer_nodes) if node.op_type == "AveragePool")
    return frozenset(node.name for node in pools if activations[node.input[0]].dtype is not U16)


def write_average(built: Builder, index: Index, pool: onnx.NodeProto, node: onnx.NodeProto) -> None:
    """Write an AveragePool of codes as a convolution where it is one, else so that the runtime leaves it in float.

    Args:
        built: Gets the nodes.
        index: Of the float model.
        pool: The pool, which reads what a DQ gives.
        node: The same in the float model.
    """
    attributes = average_as_convolution(index, node)
    if attributes is None:
        built.nodes.append(pool)
        stop_codes(built, index, node)
        return
    taps = attributes["kernel_shape"]
    stem, output = f"{node.output[0]}_ones", built.names.tensor(f"{node.output[0]}_ones_dequantized")
    codes = built.constant(f"{stem}_quantized", np.ones((attributes["group"], 1, *taps), np.int8))
    scale = built.constant(f"{stem}_scale", np.float32(1.0 / math.prod(taps)))
    built.node("DequantizeLinear", [codes, scale, built.constant(f"{stem}_zero_point", np.int8(0))], output)
    built.nodes.append(instead(pool, "Conv", [pool.input[0], output], pool.output[0], **attributes))


def average_as_convolution(index: Index, node: onnx.NodeProto) -> dict[str, Any] | None:
    """Return the attributes of the depthwise convolution that an AveragePool is, times its taps.

    Args:
        index: Of the float model.
        node: An AveragePool.

    Returns:
        None where its channels are not known, or where windows at a border may have fewer taps than others.
    """
    dims, kernel = index.dims(node.input[0]), tuple(attribute(node, "kernel_shape", ()))
    rank = len(kernel)
    if dims is None or len(dims) != rank + 2 or dims[1] is None or rank > _AXES:
        return None
    strides, dilations = (tuple(attribute(node, name, ())) or (1,) * rank for name in ("strides", "dilations"))
    pads = tuple(attribute(node, "pads", ())) or (0,) * 2 * rank
    auto = attribute(node, "auto_pad", b"NOTSET").decode()
    if auto != "NOTSET":
        pads = (0,) * 2 * rank
    elif any(pads) and not attribute(node, "count_include_pad", 0):
        return None
    for axis, size in enumerate(dims[2:]):
        step, wide = strides[axis], (kernel[axis] - 1) * dilations[axis] + 1
        if auto.startswith("SAME"):
            # no pad where the windows fit; where they leave some out, the runtime begins behind the first value
            if size is None or (-(-size // step) - 1) * step + wide != size:
                return None
        elif attribute(node, "ceil_mode", 0) and (
            size is None or (size + pads[axis] + pads[rank + axis] - wide) % step
        ):
            return None
    return {"group": dims[1], "kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}


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
