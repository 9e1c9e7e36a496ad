"""Convolutions that are faster in float, with Q, DQ and the activation behind them counted; from the graph alone.

Why, and the figures: docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from int8cal.graph.index import Index
    from int8cal.graph.layers import Layer
    from int8cal.graph.ops import OpRule

# The integer kernel copies a patch of one channel byte by byte, in 3 to 7 ns each, as long as 200 products in float. Of
# kernels as wide as the input there are few patches, and many bytes of weights.
_FEW_OUTPUTS, _FEW_TAPS = 128, 512
_GATES = frozenset({"Sigmoid", "HardSigmoid"})  # a swish is a tensor times one of these of it


def convolutions_faster_in_float(
    index: Index,
    rule: OpRule,
    layers: Iterable[Layer],
    integer: Collection[str],
    written: Collection[str],
    *,
    pixels: bool,
) -> frozenset[str]:
    """Name the convolutions of a first plan that are faster in float.

    1. Of an image: in front of a swish.
    2. With narrow groups (of one channel to one alone, too), with few products per value, or of one channel to few:
       between float ops.
    3. With few products per value, behind which is a swish, behind which is nothing but one with narrow groups, behind
       which is a swish or a float op: these two. The first one may be of an image.

    Args:
        index: Of the graph.
        rule: Of the target's Conv.
        layers: The plan's, in graph order.
        integer: Names of its nodes on integers.
        written: Tensors that these write.
        pixels: The model takes raw pixels: what reads an image stays int8.
    """
    found: set[str] = set()
    small: dict[str, str] = {}  # what a swish makes of a convolution with few products -> its name
    for layer in layers:
        swished = _swished(index, layer.output)
        readers = {use.node.name for use in index.uses.get(layer.output, ())}
        floats = bool(readers) and layer.output not in index.outputs and readers.isdisjoint(integer)
        if layer.op_type != "Conv" or not (floats or swished):
            continue
        taps = math.prod(layer.dims[2:])
        between = floats and layer.input in index.producer and layer.input not in written
        if layer.group == 1 and not layer.channels == layer.dims[0] == 1:
            few = layer.channels * taps <= rule.float_products
            narrow = layer.channels <= rule.float_image and taps <= rule.float_taps
            image = bool(swished) and narrow and layer.input not in written and not pixels
            few_outputs = layer.dims[0] <= _FEW_OUTPUTS and taps <= _FEW_TAPS
            of_one = layer.channels == 1 and few_outputs and rule.float_products > 0
            if image or (between and (few or of_one)):
                found.add(layer.node)
            if swished and (image or few):
                small[swished] = layer.node
        elif layer.dims[1] <= rule.float_groups:
            if layer.input in small and index.only_reader(layer.input) is not None:
                found |= {small[layer.input], layer.node}
            elif between:
                found.add(layer.node)
    return frozenset(found)


def _swished(index: Index, tensor: str) -> str:
    """Name the product of a tensor and its Sigmoid or HardSigmoid, "" where anything else reads either."""
    readers = [use.node for use in index.uses.get(tensor, ())]
    gate = next((node for node in readers if node.op_type in _GATES), None)
    product = None if gate is None else index.only_reader(gate.output[0])
    if gate is None or product is None or product.op_type != "Mul" or tensor in index.outputs:
        return ""
    alone = len(readers) == 2 and set(product.input) == {tensor, gate.output[0]} and product in readers
    return str(product.output[0]) if alone else ""
