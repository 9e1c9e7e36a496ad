"""Transposes of pairs, which onnxruntime must compute in float: on codes they take up to 100 times as long.

The runtime moves Q and DQ past nodes that only move values, so that these handle codes. A Transpose that moves one axis
and keeps pairs of values together copies eight bytes at a time in float. Pairs of codes are two bytes, for which its
kernel starts the other threads once per row of the axes in front: about 0.6 µs each. Q and DQ do not pass a Flatten,
which copies nothing. The figures: docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from int8cal.graph.index import attribute
from int8cal.quantization.moves import MOVES

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.index import Dims, Index
    from int8cal.graph.plan import Plan

_PAIR = 2
_ROWS = 16  # of so few the copies take no longer than starting threads


def kept_from_codes(index: Index, plan: Plan) -> frozenset[str]:
    """Name the Reshapes that need a Flatten in front, so that a float Transpose of pairs beside them stays in float.

    Must name none whose shape copies a size of its input, nor any beside Transposes that codes cannot reach.
    """
    pairs = [
        node
        for node in index.graph.node
        if node.op_type == "Transpose" and node.name not in plan.integer_nodes and moves_pairs(index, node)
    ]
    if not pairs:
        return frozenset()
    floats = [node for node in index.graph.node if node.op_type in MOVES and node.name not in plan.integer_nodes]
    dequantized = {each.tensor for each in plan.tensors if each.exclusive}
    for node in floats:
        if node.input[0] in dequantized:
            dequantized.add(node.output[0])
    quantized = {each.tensor for each in plan.tensors}
    for node in reversed(floats):
        if node.output[0] in quantized:
            quantized.add(node.input[0])
    found = set()
    for node in pairs:
        before, behind = index.producer.get(node.input[0]), index.only_reader(node.output[0])
        if node.input[0] in dequantized and before is not None and _flattens(index, before):
            found.add(before.name)
        if node.output[0] in quantized and behind is not None and _flattens(index, behind):
            found.add(behind.name)
    return frozenset(found)


def moves_pairs(index: Index, node: onnx.NodeProto) -> bool:
    """Whether a Transpose moves one axis past others and keeps pairs of values together, in many rows."""
    dims = index.dims(node.input[0])
    order = attribute(node, "perm", None)
    if dims is None or order is None:
        return False
    order = [axis for axis in order if dims[axis] != 1]
    axes = sorted(order)
    first = next((at for at, axis in enumerate(axes) if order[at] != axis), len(axes))
    last = next((at for at in reversed(range(len(axes))) if order[at] != axes[at]), -1) + 1
    middle, moved = axes[first:last], order[first:last]
    if moved not in (middle[1:] + middle[:1], middle[-1:] + middle[:-1]) or _size(dims, axes[last:]) != _PAIR:
        return False
    return _size(dims, axes[:first]) >= _ROWS


def _size(dims: Dims, axes: list[int]) -> float:
    """Return the product of dimensions, infinity where only the feed decides one."""
    return math.prod(math.inf if dims[axis] is None else dims[axis] for axis in axes)  # type: ignore[misc]


def _flattens(index: Index, node: onnx.NodeProto) -> bool:
    """Whether a Reshape gives the same behind a Flatten."""
    if node.op_type != "Reshape" or not index.is_constant(node.input[1]):
        return False
    return 0 not in index.constant(node.input[1]) and not attribute(node, "allowzero", 0)
