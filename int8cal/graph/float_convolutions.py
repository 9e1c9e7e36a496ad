"""Convolutions that are faster in float, with Q, DQ and the activation behind them counted; from the graph alone.

Why, and the figures: docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from int8cal.graph.layers import BESIDE_FLOATS, OF_FEW_CHANNELS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from int8cal.graph.index import Index
    from int8cal.graph.layers import Layer
    from int8cal.graph.ops import OpRule

_GATES = frozenset({"Sigmoid", "HardSigmoid"})  # a swish is a tensor times one of these of it


def convolutions_faster_in_float(
    index: Index,
    rule: OpRule,
    layers: Iterable[Layer],
    integer: Collection[str],
    written: Collection[str],
    *,
    pixels: bool,
) -> dict[str, str]:
    """Name the convolutions of a first plan that are faster in float, each with the reason.

    1. Of an image: in front of a swish, or of float ops alone. Of one channel to few: whatever is behind it.
    2. With narrow groups (of one channel to one alone, too), with few products per value, or of one channel to few:
       between float ops.
    3. With few products per value, behind which is a swish, behind which is nothing but one with narrow groups, behind
       which is a swish or a float op: these two. The first one may be of an image.
    4. One with narrow groups and one with few products per value, in either order, with nothing but each other between
       float ops: these two.
    5. In three dimensions, of few channels: whatever is around it.

    Args:
        index: Of the graph.
        rule: Of the target's Conv.
        layers: The plan's, in graph order.
        integer: Names of its nodes on integers.
        written: Tensors that these write.
        pixels: The model takes raw pixels: what reads an image stays int8.
    """
    limits = rule.in_float
    if limits is None:
        return {}
    found: set[str] = set()
    in_space: set[str] = set()
    small: dict[str, str] = {}  # what a swish makes of a convolution with few products -> its name
    before: dict[str, Layer] = {}  # what is behind a convolution of floats -> it, where it may be one of a pair
    for layer in layers:
        if layer.op_type != "Conv":
            continue
        swished = _swished(index, layer.output)
        readers = {use.node.name for use in index.uses.get(layer.output, ())}
        to_floats = bool(readers) and layer.output not in index.outputs and readers.isdisjoint(integer)
        of_floats = layer.input in index.producer and layer.input not in written
        between = of_floats and to_floats
        alone = index.only_reader(layer.input) is not None
        taps = math.prod(layer.dims[2:])
        products = layer.dims[1] * taps
        few = products <= limits.products
        narrow = layer.dims[1] == 1 or (layer.dims[1] <= limits.groups and (taps == 1 or layer.dims[1] % 2 == 1))
        if layer.group == 1 and not layer.channels == layer.dims[0] == 1:
            small_image = layer.channels <= limits.image[0] and taps <= limits.image[1]
            one = layer.channels == 1 and taps <= limits.single[1]
            gray = one and layer.dims[0] <= min(limits.gray[0], limits.gray[1] * taps)
            before_floats = to_floats or bool(swished)
            image = layer.input not in written and not pixels and (gray or (small_image and before_floats))
            # its kernel copies a patch byte by byte, in 3 to 7 ns each, as long as 200 products in float take
            single = one and layer.dims[0] <= limits.single[0]
            if image or (between and (few or single)):
                found.add(layer.node)
            # likewise for each tap, in 8 ns; floats take 0.25 ns more for each of its channels, 0.017 ns for a product
            space = layer.channels * (layer.dims[0] + limits.space[1]) <= limits.space[0] and taps > 1
            if space and len(layer.dims) == 5 and not (pixels and layer.input not in written):
                in_space.add(layer.node)
            if swished and (image or few):
                small[swished] = layer.node
        elif narrow and layer.input in small and alone and (to_floats or swished):
            found |= {small[layer.input], layer.node}
        elif narrow and between:
            found.add(layer.node)
        if narrow if layer.group > 1 else products <= limits.pair:
            other = before.get(layer.input)
            if other is not None and alone and to_floats and (other.group > 1) != (layer.group > 1):
                found |= {other.node, layer.node}
            if of_floats:
                before[layer.output] = layer
    return dict.fromkeys(found, BESIDE_FLOATS) | dict.fromkeys(in_space, OF_FEW_CHANNELS)


def _swished(index: Index, tensor: str) -> str:
    """Name the product of a tensor and its Sigmoid or HardSigmoid, "" where anything else reads either."""
    readers = [use.node for use in index.uses.get(tensor, ())]
    gate = next((node for node in readers if node.op_type in _GATES), None)
    product = None if gate is None else index.only_reader(gate.output[0])
    if gate is None or product is None or product.op_type != "Mul" or tensor in index.outputs:
        return ""
    alone = len(readers) == 2 and set(product.input) == {tensor, gate.output[0]} and product in readers
    return str(product.output[0]) if alone else ""
