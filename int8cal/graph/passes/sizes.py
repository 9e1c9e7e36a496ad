"""Sizes and ranks that are known before anything runs, as constants: a branch on them is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.graph.edit import constant, refill
from int8cal.graph.index import Index, attribute

if TYPE_CHECKING:
    import onnx

    from int8cal.numerics import Int64


def fold_sizes(model: onnx.ModelProto) -> bool:
    """Replace what is gathered from the shape of a tensor, and the size of a shape, by the number that it must be.

    Scripted models ask for the rank of an input, or whether a state was given, and branch on it. Where the condition is
    constant, the runtime's folding puts the branch in the place of its If.

    Args:
        model: Shapes inferred; changed in place where it has an If, and left alone elsewhere.

    Returns:
        Whether anything was replaced.
    """
    if all(node.op_type != "If" for node in model.graph.node):
        return False
    index = Index(model)
    known: dict[str, Int64] = {}
    for node in model.graph.node:
        value = None if node.output[0] in index.outputs else _value(index, node)
        if value is not None:
            known[node.output[0]] = value
    refill(model.graph.node, [node for node in model.graph.node if node.output[0] not in known])
    model.graph.initializer.extend(constant(name, value) for name, value in known.items())
    return bool(known)


def _value(index: Index, node: onnx.NodeProto) -> Int64 | None:
    shape = index.producer.get(node.input[0]) if node.op_type in ("Gather", "Size") else None
    if shape is None or shape.op_type != "Shape" or attribute(shape, "start", 0) or attribute(shape, "end", None):
        return None
    dims = index.dims(shape.input[0])
    if dims is None:
        return None
    if node.op_type == "Size":
        return np.array(len(dims), np.int64)
    if not index.is_constant(node.input[1]):
        return None
    places = index.constant(node.input[1])
    if places.size != 1 or not -len(dims) <= int(places.reshape(-1)[0]) < len(dims):
        return None
    size = dims[int(places.reshape(-1)[0])]
    return None if size is None else np.full(places.shape, size, np.int64)
