"""Shapes of Reshapes that are computed from shapes, and need not be: sizes that are known, or stay as they are."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np
import onnx

from int8cal.graph.dims import named_dims
from int8cal.graph.edit import Names, Rewrite, apply, without_attribute
from int8cal.graph.index import Index, attribute, tensors_read
from int8cal.graph.ops import is_standard
from int8cal.protos import copied

if TYPE_CHECKING:
    from int8cal.graph.dims import NamedDims

Sizes = tuple[int | str | None, ...]  # numbers, names of dimensions, None for what is neither

_MOST = 16  # entries of a tensor of sizes: more than a shape has
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_ARITHMETIC = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.floordiv}


def constant_shapes(model: onnx.ModelProto) -> bool:
    """Give Reshapes constant shapes where the input tells what is free, and drop what computed them.

    Exporters read every size from a Shape, those that are known as well, and join them for each Reshape: a quarter of
    what a small transformer runs. A dimension that the input has at the same place becomes 0, the one that is left -1.

    Must not write -1 beside a dimension of the input, which a feed may make 0, unless it stood there before.

    Args:
        model: Shapes inferred, nodes in order; changed in place.

    Returns:
        Whether anything was replaced.
    """
    index, names = Index(model), Names(model.graph)
    computed = [node for node in model.graph.node if node.op_type == "Reshape" and is_standard(node)]
    computed = [node for node in computed if not index.is_constant(node.input[1])]
    if not computed:
        return False
    dims = named_dims(model)
    sizes = _sizes(index, dims)
    shapes: dict[tuple[int, ...], str] = {}
    rewrite = Rewrite({})
    for node in computed:
        shape = _constant(sizes.get(node.input[1]), dims.get(node.input[0]), attribute(node, "allowzero", 0))
        if shape is None:
            continue
        if shape not in shapes:
            shapes[shape] = names.beside(str(node.output[0]), "shape")
            rewrite.constants[shapes[shape]] = np.array(shape, np.int64)
        reshape = copied(node)
        reshape.input[1] = shapes[shape]
        without_attribute(reshape, "allowzero")
        rewrite.nodes[node.name] = (reshape,)
    if shapes:
        _drop_unread(index, rewrite)
        apply(model, index, [rewrite])
    return bool(shapes)


def _constant(wanted: Sizes | None, given: NamedDims | None, allowzero: int) -> tuple[int, ...] | None:
    """Return what a Reshape can be told in place of a computed shape, None where that has to be computed."""
    if wanted is None or given is None or (allowzero and 0 in wanted):
        return None
    shape = [
        each if isinstance(each, int) else 0 if given[axis : axis + 1] == (each,) else None
        for axis, each in enumerate(wanted)
    ]
    if shape.count(None) > 1 or (None in shape and (0 in shape or -1 in shape)):
        return None
    if allowzero and 0 in shape and -1 in shape:
        return None  # the runtime takes [0, -1] of an empty input as it stands, and refuses it as a copied dimension
    told = tuple(-1 if each is None else each for each in shape)
    return told if _may_fit(told, given) else None


def _may_fit(shape: tuple[int, ...], given: NamedDims) -> bool:
    """Whether a Reshape to a constant shape may be right: of one that is not the runtime refuses the whole model."""
    if min(shape, default=0) < -1 or shape.count(-1) > 1 or 0 in shape[len(given) :]:
        return False
    sizes = [given[axis] if each == 0 else each for axis, each in enumerate(shape)]
    if not all(isinstance(each, int) for each in (*given, *sizes)):
        return True
    whole, told = math.prod(map(int, given)), math.prod(int(each) for each in sizes if each != -1)
    return whole == told if -1 not in sizes else told > 0 and whole % told == 0


def _drop_unread(index: Index, rewrite: Rewrite) -> None:
    """Leave out the nodes that nobody reads any more."""
    read = set(index.outputs)
    for node in reversed(index.graph.node):
        if not read.isdisjoint(node.output) or index.uses.keys().isdisjoint(node.output):
            (stays,) = rewrite.nodes.get(node.name, (node,))
            read.update(tensors_read(stays))
        else:
            rewrite.nodes[node.name] = ()


def _sizes(index: Index, dims: dict[str, NamedDims]) -> dict[str, Sizes]:
    """Return what is known of tensors of one dimension, or with a single number, that hold sizes."""
    known: dict[str, Sizes] = {}
    for name, tensor in index.initializers.items():
        if tensor.data_type in _INTEGERS and len(tensor.dims) <= 1 and np.prod(tensor.dims) <= _MOST:
            known[name] = tuple(int(each) for each in index.constant(name).reshape(-1))
    for node in index.graph.node:
        if not is_standard(node) or len(node.output) != 1:
            continue
        output = node.output[0]
        if node.op_type == "Shape" and node.input[0] in dims:
            known[output] = dims[node.input[0]][attribute(node, "start", 0) : attribute(node, "end", None)]
        elif node.input and all(name in known for name in node.input):
            found = _computed(node, *(known[name] for name in node.input))
            if found is not None and (len(found) == 1 or index.rank(output) == 1) and len(found) <= _MOST:
                known[output] = found
    return known


def _computed(node: onnx.NodeProto, data: Sizes, *rest: Sizes) -> Sizes | None:
    """Return what a node makes of sizes, None where that is not known."""
    if node.op_type == "Concat":
        return tuple(each for sizes in (data, *rest) for each in sizes)
    if node.op_type == "Identity" or (node.op_type == "Cast" and attribute(node, "to", 0) in _INTEGERS):
        return data
    if node.op_type in ("Unsqueeze", "Squeeze", "Reshape") and len(data) == 1:
        return data
    numbers = [each for sizes in rest for each in sizes if isinstance(each, int)]
    if len(numbers) < sum(map(len, rest)):
        return None
    if node.op_type == "Gather" and all(-len(data) <= each < len(data) for each in numbers):
        return tuple(data[each] for each in numbers)
    if node.op_type == "Slice" and numbers[2:] in ([], [0], [0, 1]):
        return data[numbers[0] : numbers[1]]
    if node.op_type in _ARITHMETIC and len(data) == len(numbers) == 1 and numbers[0] > 0:
        (size,) = data
        return (_ARITHMETIC[node.op_type](size, numbers[0]) if isinstance(size, int) and size >= 0 else None,)
    return None
