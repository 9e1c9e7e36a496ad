"""Gemms whose constant bias can be s32: without alpha and beta, made of a MatMul and the Add behind it.

A bias that cannot be s32, as it is computed or no row, is added behind the Gemm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from int8cal.graph.edit import Rewrite, constant, instead, without_attribute
from int8cal.graph.index import attribute
from int8cal.graph.layers import is_bias_row
from int8cal.graph.ops import is_standard
from int8cal.protos import copied
from int8cal.stored import values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index


def unit_gemms(graph: onnx.GraphProto) -> None:
    """Fold alpha and beta of Gemm into constant weights and bias.

    Must not touch weights and biases that are computed, or constants that another node reads: new ones stand beside.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "Gemm":
            continue
        for name, slot in (("alpha", 1), ("beta", 2)):
            factor = attribute(node, name, 1.0)
            if factor == 1.0 or len(node.input) <= slot or node.input[slot] not in constants:
                continue
            array = values_of(constants[node.input[slot]])
            scaled = f"{node.input[slot]}_{node.name}_{name}"
            graph.initializer.append(constant(scaled, (array * np.float32(factor)).astype(array.dtype)))
            node.input[slot] = scaled
            without_attribute(node, name)
            node.attribute.append(helper.make_attribute(name, 1.0))


def apart_biases(index: Index, names: Names) -> Iterator[Rewrite]:
    """Put what a Gemm with constant weights adds into an Add behind it where it is no constant row.

    Must not touch weights that are no float32 matrix, a factor (beta) that `unit_gemms` has left, or a bias that holds
    NaN or infinity.

    Args:
        index: Of the graph, after `unit_gemms`.
        names: Of the model.
    """
    for node in index.graph.node:
        if node.op_type != "Gemm" or not is_standard(node) or len(node.input) < 3 or not node.input[2]:
            continue
        weight, bias = str(node.input[1]), str(node.input[2])
        if not index.is_float_constant(weight) or index.is_constant(node.input[0]) or attribute(node, "beta", 1.0) != 1:
            continue
        if index.is_constant(bias):
            finite = index.is_float_constant(bias) and np.isfinite(index.constant(bias)).all()
            if not finite or is_bias_row(index, node):
                continue
        product = names.beside(str(node.output[0]), "product")
        gemm = copied(node)
        del gemm.input[2:]
        gemm.output[0] = product
        add = helper.make_node("Add", [product, bias], [node.output[0]], name=names.node(f"{node.name}_Add"))
        yield Rewrite({node.name: (gemm, add)}, like={product: str(node.output[0])})


def biased_products(index: Index) -> Iterator[Rewrite]:
    """Turn MatMul and the Add of a constant row behind it into one Gemm, so that the row becomes its s32 bias.

    The runtime would do so by itself, but with a float bias, for which it has no integer kernel. Must not touch
    products whose input is not known to be a matrix, or whose own output is read by anyone else.
    """
    for node in index.graph.node:
        if node.op_type != "Add" or not is_standard(node):
            continue
        for product, bias in (tuple(node.input), tuple(node.input)[::-1]):
            matmul = index.producer.get(product)
            if matmul is not None and _takes_bias(index, matmul, node, bias):
                gemm = instead(matmul, "Gemm", [*matmul.input, bias], node.output[0])
                yield Rewrite({matmul.name: (gemm,), node.name: ()})
                break


def _takes_bias(index: Index, matmul: onnx.NodeProto, add: onnx.NodeProto, bias: str) -> bool:
    reader = index.only_reader(matmul.output[0])
    if matmul.op_type != "MatMul" or not is_standard(matmul) or reader is None or reader.name != add.name:
        return False
    weight, row = index.initializers.get(matmul.input[1]), index.initializers.get(bias)
    if weight is None or row is None or len(weight.dims) != 2 or index.rank(matmul.input[0]) != 2:
        return False
    width = weight.dims[1]
    return weight.data_type == row.data_type == onnx.TensorProto.FLOAT and list(row.dims) in ([width], [1, width])
