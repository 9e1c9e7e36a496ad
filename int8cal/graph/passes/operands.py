"""Products whose constant operand is where no integer kernel takes it: vectors, left operands, a transposed input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from int8cal.graph.costs import gains_from_turning
from int8cal.graph.edit import Rewrite, instead, without_attribute
from int8cal.graph.index import attribute
from int8cal.graph.ops import is_standard
from int8cal.protos import copied

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index


def placed_operands(index: Index, names: Names) -> Iterator[Rewrite]:
    """Put constant operands of MatMul and Gemm on the right, as matrices.

    x v = squeeze(x [v])        W x = (xᵀ Wᵀ)ᵀ        Gemm(x, W, transA) = Gemm(xᵀ, W)        x [W] = x W

    Must not touch operands of unknown rank, and products too small to pay for the Transposes (see
    `costs.gains_from_turning`). A vector is always turned: the runtime's float kernel for it takes nine times as long
    as that of a matrix with one column. A stack of one matrix, as slices of a larger stack are, would have one scale
    for all its channels.

    Args:
        index: Of the graph, shapes inferred.
        names: Of the model.
    """
    for node in index.graph.node:
        if node.op_type not in ("MatMul", "Gemm") or not is_standard(node):
            continue
        constant = [index.is_float_constant(name) for name in node.input[:2]]
        if constant.count(True) != 1:
            continue
        dims = tuple(index.initializers[node.input[constant.index(True)]].dims)
        rank = index.rank(node.input[constant.index(False)]) or 0
        if 0 in dims or rank < 2:
            continue
        if node.op_type == "Gemm":
            wide = dims[0] if attribute(node, "transB", 0) else dims[-1]
            if constant[1] and attribute(node, "transA", 0) and gains_from_turning(wide, 1, outputs=False):
                yield _upright(names, node)
        elif constant[1] and len(dims) == 1:
            yield _with_column(index, names, node)
        elif constant[1] and 2 < len(dims) <= rank and set(dims[:-2]) == {1}:
            stack = str(node.input[1])
            matrix = names.beside(stack, "matrix")
            product = instead(node, "MatMul", [node.input[0], matrix], str(node.output[0]))
            yield Rewrite({node.name: (product,)}, {matrix: index.constant(stack).reshape(dims[-2:])})
        elif constant[0] and len(dims) == 2 and gains_from_turning(*dims):
            yield _turned(index, names, node, rank)


def _upright(names: Names, gemm: onnx.NodeProto) -> Rewrite:
    """Put a Transpose in front of a Gemm in place of transA."""
    transpose = _transpose(names, str(gemm.input[0]), names.beside(str(gemm.input[0]), "upright"), 2)
    result = copied(gemm)
    result.input[0] = transpose.output[0]
    without_attribute(result, "transA")
    return Rewrite({gemm.name: (transpose, result)})


def _with_column(index: Index, names: Names, node: onnx.NodeProto) -> Rewrite:
    vector, output = str(node.input[1]), str(node.output[0])
    column, last, product = names.beside(vector, "column"), names.beside(vector, "axis"), names.beside(output, "column")
    constants = {column: index.constant(vector).reshape(-1, 1), last: np.array([-1])}
    squeeze = helper.make_node("Squeeze", [product, last], [output], name=names.node(f"{output}_Squeeze"))
    return Rewrite({node.name: (instead(node, "MatMul", [node.input[0], column], product), squeeze)}, constants)


def _turned(index: Index, names: Names, node: onnx.NodeProto, rank: int) -> Rewrite:
    weight, data, output = str(node.input[0]), str(node.input[1]), str(node.output[0])
    turned, matrix = names.beside(output, "turned"), names.beside(weight, "transposed")
    before = _transpose(names, data, names.beside(data, "turned"), rank)
    nodes = [
        before,
        instead(node, "MatMul", [before.output[0], matrix], turned),
        _transpose(names, turned, output, rank),
    ]
    changed: dict[str, tuple[onnx.NodeProto, ...]] = {node.name: tuple(nodes)}
    producer = index.producer.get(data)
    if producer is not None and producer.op_type == "Transpose" and is_standard(producer):
        perm = attribute(producer, "perm", None) or list(reversed(range(rank)))
        if list(perm) == _swapped(rank):  # what is turned twice is not turned
            nodes[1].input[0] = producer.input[0]
            changed[node.name] = tuple(nodes[1:])
            if index.only_reader(data) is not None:
                changed[producer.name] = ()
    return Rewrite(changed, {matrix: np.ascontiguousarray(index.constant(weight).T)})


def _transpose(names: Names, data: str, output: str, rank: int) -> onnx.NodeProto:
    return helper.make_node("Transpose", [data], [output], name=names.node(f"{output}_Transpose"), perm=_swapped(rank))


def _swapped(rank: int) -> list[int]:
    """Return the order of axes in which the last two have changed places."""
    return [*range(rank - 2), rank - 1, rank - 2]
