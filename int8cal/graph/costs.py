"""What nodes cost, as data: estimates that are the same on every machine, so that what is decided by them is too.

Measured with onnxruntime 1.31 on two cores with VNNI. Only ratios matter: a choice is held against the whole model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from int8cal.graph.dims import named_dims
from int8cal.graph.index import attribute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan
    from int8cal.numerics import Array

NODE_US = 3.5  # one kernel, however small
LEAST_US = 0.01  # of a choice: gains are divided by it
INT8_MAC_US = 2.5e-6
FLOAT_MAC_US = 10e-6
# Times as much per product of a depthwise convolution, each used once: on integers, in float. (One core with
# AVX2: 3x3 taps take 0.75 to 1.1 ns per value on integers, 0.4 to 1.0 in float; dense products 12 and 24 ps.)
DEPTHWISE, FLOAT_DEPTHWISE = 8.0, 3.0
ELEMENT_US = 0.15e-3  # one pass over a tensor
STEP_US = 1.0  # one step of a recurrent node, beside its products
SEQUENCE = 16  # steps, where only the feed decides
PLANES_US, PLANES_ELEMENT_US = 5.0, 1.2e-3  # a second plane of codes: DQ, Sub, Q, Concat
COPIES_ELEMENT_US, COPY_US = 0.2e-3, 2.7e-3  # copies of channels: a value that Mul and Concat pass on, and a copied one

# Microseconds per element that an op takes longer in float than on integers, its Q and DQ included.
FLOAT_EXTRA_US: dict[str, float] = {
    "Add": 0.3e-3,
    "Mul": 0.3e-3,
    "Concat": 0.3e-3,
    "Sigmoid": 1.0e-3,
    "HardSigmoid": 0.4e-3,
    "LeakyRelu": 0.4e-3,
    "Softmax": 1.0e-3,
    "AveragePool": 0.3e-3,
    "GlobalAveragePool": 0.2e-3,
    "BatchNormalization": 0.4e-3,
}
# Microseconds per value that a node writes which is in float whatever is chosen; a pass over it where not named here.
# Norms and GELUs of many nodes become one kernel, so each node of theirs counts for less than it would take by itself.
FLOAT_VALUE_US: dict[str, float] = {
    "Softmax": 0.4e-3,
    "LogSoftmax": 0.4e-3,
    "LayerNormalization": 0.3e-3,
    "RMSNormalization": 0.3e-3,
    "InstanceNormalization": 0.3e-3,
    "GroupNormalization": 0.3e-3,
    "Gelu": 0.5e-3,
    "Erf": 0.4e-3,
    "Tanh": 0.4e-3,
    "Sigmoid": 0.4e-3,
    "Transpose": 0.3e-3,
    "Split": 0.3e-3,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Constant"), 0.0),  # nothing is moved
}
PASSED_EXTRA_US = 0.3e-3  # ops that only move values move four times as many bytes


def products(layer: Layer, elements: float) -> float:
    """Return the number of multiplications of one inference of a layer.

    Args:
        layer: The layer.
        elements: Values of its input per inference.
    """
    positions = elements / max(layer.channels, 1)
    if layer.op_type == "Conv":
        for stride in layer.strides:
            positions /= stride
    return float(positions * math.prod(layer.dims))


def inference_us(model: onnx.ModelProto, plan: Plan, elements: Mapping[str, float], *, integer: bool = True) -> float:
    """Estimate the microseconds of one inference.

    Args:
        model: The prepared model.
        plan: Its plan.
        elements: Values per inference of every planned tensor.
        integer: Of the int8 model; else of the float model.
    """
    total = NODE_US * len(model.graph.node) + ELEMENT_US * sum(elements.values())
    for each in plan.recurrent:
        total += (each.steps or SEQUENCE) * (STEP_US + each.size * FLOAT_MAC_US)
    for layer in plan.layers:
        total += products(layer, elements[layer.input]) * _product_us(layer, integer=integer)
    for layer in plan.unranged:
        made = products(layer, elements.get(layer.input, 0.0))
        total += made * (INT8_MAC_US if integer and layer.form == "dynamic" else FLOAT_MAC_US)
    return total


def _product_us(layer: Layer, *, integer: bool) -> float:
    """Return the microseconds of one multiplication of a layer."""
    if integer:
        return INT8_MAC_US * (DEPTHWISE if layer.depthwise else 1.0)
    return FLOAT_MAC_US * (FLOAT_DEPTHWISE if layer.depthwise else 1.0)


def other_nodes_us(model: onnx.ModelProto, plan: Plan, feed: Mapping[str, Array]) -> float:
    """Estimate the microseconds of what `inference_us` leaves out: nodes that a plan leaves in float, one by one.

    Args:
        model: The prepared model.
        plan: Its plan.
        feed: Of one inference. Dimensions that do not follow from its shapes count as 1: they are mostly the batch's.
    """
    dims = named_dims(model, {name: value.shape for name, value in feed.items()})
    layers = {layer.node for layer in plan.weighted} | {each.node for each in plan.recurrent}
    sizes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    sizes |= {name: tuple(size if isinstance(size, int) else 1 for size in each) for name, each in dims.items()}
    total = 0.0
    for node in model.graph.node:
        if node.name in layers or node.name in plan.integer_nodes:
            continue
        written = sum(math.prod(sizes[name]) for name in node.output if name in sizes)
        total += FLOAT_VALUE_US.get(node.op_type, ELEMENT_US) * written
        if node.op_type in ("MatMul", "Gemm", "Conv") and node.input[0] in sizes and node.input[1] in sizes:
            total += FLOAT_MAC_US * written * _summed(node, sizes[node.input[0]], sizes[node.input[1]])
    return total


def _summed(node: onnx.NodeProto, first: Sequence[int], second: Sequence[int]) -> float:
    """Return how many products each value that a MatMul, Gemm or Conv writes is the sum of."""
    if node.op_type == "Conv":
        return math.prod(second[1:]) * (FLOAT_DEPTHWISE if second[1] == 1 else 1.0)
    turned = node.op_type == "Gemm" and bool(attribute(node, "transA", 0))
    return float(first[0 if turned else -1]) if first else 0.0


def residual_codes_us(layer: Layer, elements: float) -> float:
    """Estimate the microseconds that a second plane of codes adds in front of a layer and in it."""
    return PLANES_US + PLANES_ELEMENT_US * elements + products(layer, elements) * INT8_MAC_US


def fine_channels_us(layer: Layer, elements: float, share: float) -> float:
    """Estimate the microseconds that residual codes of a share of the channels add, with two Gathers and a Concat."""
    return 2 * NODE_US + ELEMENT_US * elements + residual_codes_us(layer, share * elements)


def copies_us(layers: Sequence[Layer], elements: float, share: float) -> float:
    """Estimate the microseconds that copies of channels add: a Mul, a Gather, a Concat, and wider products.

    Args:
        layers: All that read the tensor.
        elements: Values of it per inference.
        share: Copies in shares of its channels.
    """
    wider = share * sum(products(layer, elements) for layer in layers) * INT8_MAC_US
    return 3 * NODE_US + (COPIES_ELEMENT_US + share * COPY_US) * elements + wider


def gains_from_turning(outputs_each: int, inputs_each: int, *, outputs: bool = True) -> bool:
    """Tell whether a product on integers gains more than the Transposes cost that its integer kernel needs.

    Args:
        outputs_each, inputs_each: Values that it writes and reads per position: rows and columns of its weight.
        outputs: Its output has to be transposed too.
    """
    moved = inputs_each + (outputs_each if outputs else 0)
    return outputs_each * inputs_each * (FLOAT_MAC_US - INT8_MAC_US) > ELEMENT_US * moved


def layer_outputs(layer: Layer, elements: float) -> float:
    """Estimate the number of values that a layer writes per inference; elements: those of its input."""
    channels = layer.dims[-1 if layer.axis is None else layer.axis]
    per_output = math.prod(layer.dims) / max(channels, 1)
    return products(layer, elements) / float(max(per_output, 1.0))


def layer_float_us(layer: Layer, elements: float, *, codes_before: bool = True, codes_behind: bool = True) -> float:
    """Estimate the microseconds that a layer takes longer in float than on integers.

    Args:
        layer: The layer.
        elements: Values of its input per inference.
        codes_before: A node on integers writes what it reads, so that DQ is needed.
        codes_behind: One reads what it writes, so that Q is needed. At other ends only int8 needs them.
    """
    slower = _product_us(layer, integer=False) - _product_us(layer, integer=True)
    moved = (elements if codes_before else 0.0) + (layer_outputs(layer, elements) if codes_behind else 0.0)
    us = NODE_US * (codes_before + codes_behind) + products(layer, elements) * slower + PASSED_EXTRA_US * moved
    return max(us, LEAST_US)


def float_us(node: onnx.NodeProto, elements: Mapping[str, float]) -> float:
    """Estimate the microseconds that a node which is no layer takes longer in float than on integers.

    Args:
        node: The node; its largest tensor counts.
        elements: Values per inference of every planned tensor.
    """
    size = max((elements.get(name, 0.0) for name in (*node.input, *node.output)), default=0.0)
    return NODE_US + FLOAT_EXTRA_US.get(node.op_type, PASSED_EXTRA_US) * size
