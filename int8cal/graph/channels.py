"""Which ops commute with a positive factor per channel, and where they leave the channels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from int8cal.graph.index import attribute

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.index import Index

# f(s x) = s f(x) for s > 0, and channels stay where they are. A Clip is not among them: its bounds do not scale.
HOMOGENEOUS = frozenset(
    {
        "Relu",
        "LeakyRelu",
        "PRelu",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "Dropout",
        "Identity",
    }
)
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def axis_behind(index: Index, node: onnx.NodeProto, slot: int, axis: int, channels: int) -> int | None:
    """Return where the channels of a node's input are in its output.

    Args:
        index: The graph's index.
        node: Reads the tensor in its input `slot`.
        slot: Position of the tensor.
        axis: Of the channels, -1 for the last.
        channels: How many there are.

    Returns:
        The axis, -1 for the last; None where the op does not commute with a factor per channel, or where the channels
        are lost among other values.
    """
    if slot != 0:
        return None
    if node.op_type in HOMOGENEOUS:
        return axis if node.op_type not in _POOLS or axis == 1 else None
    if node.op_type == "Transpose":
        return _transposed(index, node, axis)
    if node.op_type in _RESHAPES:
        return _reshaped(index, node, axis, channels)
    return None


def constant_operand(index: Index, node: onnx.NodeProto) -> str | None:
    """Return the constant of an Add, Mul or Sub whose other operand is computed; None for Sub(constant, x)."""
    constants = [str(name) for name in node.input if index.is_constant(name)]
    if len(constants) != 1 or len(node.input) != 2 or (node.op_type == "Sub" and constants[0] == node.input[0]):
        return None
    return constants[0]


def _transposed(index: Index, node: onnx.NodeProto, axis: int) -> int | None:
    rank = index.rank(node.input[0])
    if rank is None:
        return None
    order = list(attribute(node, "perm", list(range(rank))[::-1]))
    behind = order.index(axis % rank)
    return -1 if behind == rank - 1 else behind


def _reshaped(index: Index, node: onnx.NodeProto, axis: int, channels: int) -> int | None:
    """Find the axis of the same length with as many values behind each of its entries: the same channels."""
    before, after = index.dims(node.input[0]), index.dims(node.output[0])
    if not before or not after or before[axis] != channels:
        return None
    inner = _count(before[axis % len(before) + 1 :])
    for behind, size in enumerate(after):
        if inner is not None and size == channels and _count(after[behind + 1 :]) == inner:
            return -1 if behind == len(after) - 1 else behind
    return None


def _count(dims: tuple[int | None, ...]) -> int | None:
    known = [size for size in dims if size is not None]
    return math.prod(known) if len(known) == len(dims) else None
