"""What nodes cost, as data: estimates that are the same on every machine, so that what is decided by them is too.

Measured with onnxruntime 1.31 on two cores with VNNI. Only ratios matter: a choice is held against the whole model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from int8cal.graph.layers import Layer
    from int8cal.graph.plan import Plan

NODE_US = 3.5  # one kernel, however small
LEAST_US = 0.01  # of a choice: gains are divided by it
INT8_MAC_US = 2.5e-6
FLOAT_MAC_US = 10e-6
DEPTHWISE = 8.0  # times as much per product: each is used once
ELEMENT_US = 0.15e-3  # one pass over a tensor
STEP_US = 1.0  # one step of a recurrent node, beside its products
SEQUENCE = 16  # steps, where only the feed decides
PLANES_US, PLANES_ELEMENT_US = 5.0, 1.2e-3  # a second plane of codes: DQ, Sub, Q, Concat

# Microseconds per element that an op takes longer in float than on integers, its Q and DQ included.
FLOAT_EXTRA_US: dict[str, float] = {
    "Add": 0.3e-3,
    "Mul": 0.3e-3,
    "Concat": 0.3e-3,
    "Sigmoid": 1.0e-3,
    "LeakyRelu": 0.4e-3,
    "Softmax": 1.0e-3,
    "AveragePool": 0.3e-3,
    "GlobalAveragePool": 0.2e-3,
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
        per_product = INT8_MAC_US * (DEPTHWISE if layer.depthwise else 1.0) if integer else FLOAT_MAC_US
        total += products(layer, elements[layer.input]) * per_product
    for layer in plan.unranged:
        made = products(layer, elements.get(layer.input, 0.0))
        total += made * (INT8_MAC_US if integer and layer.form == "dynamic" else FLOAT_MAC_US)
    return total


def residual_codes_us(layer: Layer, elements: float) -> float:
    """Estimate the microseconds that a second plane of codes adds in front of a layer and in it."""
    return PLANES_US + PLANES_ELEMENT_US * elements + products(layer, elements) * INT8_MAC_US


def fine_channels_us(layer: Layer, elements: float, share: float) -> float:
    """Estimate the microseconds that residual codes of a share of the channels add, with two Gathers and a Concat."""
    return 2 * NODE_US + ELEMENT_US * elements + residual_codes_us(layer, share * elements)


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
    slower = (FLOAT_MAC_US - INT8_MAC_US) * (DEPTHWISE if layer.depthwise else 1.0)
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
