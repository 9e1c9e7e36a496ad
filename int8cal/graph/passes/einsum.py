"""An Einsum of an activation and a constant that is one matrix product becomes a MatMul between changes of layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from int8cal.graph.edit import Rewrite, instead
from int8cal.graph.index import attribute
from int8cal.graph.ops import is_standard

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index

_ELLIPSIS = "..."


@dataclass(frozen=True)
class _Product:
    """An equation of one matrix product.

    Attributes:
        data, weight, output: A label per axis; those of an ellipsis are numbers.
        rows, summed, columns: Labels of the data alone, of both operands but not of the output, of the weight alone.
    """

    data: tuple[str, ...]
    weight: tuple[str, ...]
    output: tuple[str, ...]
    rows: tuple[str, ...]
    summed: tuple[str, ...]
    columns: tuple[str, ...]


def einsum_products(index: Index, names: Names) -> Iterator[Rewrite]:
    """Turn each such Einsum into Transpose, Reshape, MatMul, Reshape and Transpose, those that it needs.

    Must not touch equations that repeat a label within an operand, sum over a label of one operand alone, or have one
    in both operands and in the output (several products); operands that broadcast, or whose summed dimensions are not
    known; an activation of which nothing is left beside what is summed.

    Args:
        index: Of the graph, shapes inferred.
        names: Of the model.
    """
    for node in index.graph.node:
        if node.op_type != "Einsum" or not is_standard(node) or len(node.input) != 2:
            continue
        constant = [index.is_float_constant(name) for name in node.input]
        if constant.count(True) != 1:
            continue
        slot = constant.index(True)
        product = _read(index, node, slot)
        if product is not None:
            yield _rewritten(index, names, node, slot, product)


def _read(index: Index, node: onnx.NodeProto, slot: int) -> _Product | None:
    """Read the equation; slot is the constant's position. None where it is not one matrix product."""
    equation = attribute(node, "equation", b"").decode().replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    dims = index.dims(node.input[1 - slot])
    sizes = tuple(index.initializers[node.input[slot]].dims)
    if len(terms) != 2 or dims is None or _ELLIPSIS in terms[slot]:
        return None
    spread = tuple(str(number) for number in range(len(dims) - len(terms[1 - slot].replace(_ELLIPSIS, ""))))
    if not arrow:
        once = sorted(label for label in set(left) - set(".,") if left.count(label) == 1)
        right = _ELLIPSIS * (_ELLIPSIS in left) + "".join(once)
    data, weight, output = (_labels(term, spread) for term in (terms[1 - slot], terms[slot], right))
    if len(data) != len(dims) or len(weight) != len(sizes):
        return None
    if any(len(set(each)) != len(each) for each in (data, weight, output)):
        return None
    rows = tuple(label for label in output if label in data)
    columns = tuple(label for label in output if label in weight)
    summed = tuple(label for label in data if label not in output)
    known = dict(zip(data, dims, strict=True)), dict(zip(weight, sizes, strict=True))
    one = len(rows) + len(columns) == len(output) and {*columns, *summed} == set(weight)
    if not one or not rows or not summed or any(known[0][label] != known[1][label] for label in summed):
        return None
    return _Product(data, weight, output, rows, summed, columns)


def _labels(term: str, spread: tuple[str, ...]) -> tuple[str, ...]:
    before, dots, behind = term.partition(_ELLIPSIS)
    return (*before, *(spread if dots else ()), *behind)


def _rewritten(index: Index, names: Names, node: onnx.NodeProto, slot: int, product: _Product) -> Rewrite:
    data, weight = str(node.input[1 - slot]), str(node.input[slot])
    sizes = dict(zip(product.weight, index.initializers[weight].dims, strict=True))
    nodes: list[onnx.NodeProto] = []
    constants = {}

    def step(op_type: str, value: str, given: list[int] | None = None, perm: list[int] | None = None) -> str:
        output = names.beside(str(node.output[0]), op_type.lower())
        inputs = [value]
        if given is not None:
            inputs.append(names.beside(output, "sizes"))
            constants[inputs[1]] = np.array(given, np.int64)
        nodes.append(helper.make_node(op_type, inputs, [output], name=names.node(f"{output}_{op_type}"), perm=perm))
        return output

    def moved(value: str, before: tuple[str, ...], after: tuple[str, ...]) -> str:
        return value if before == after else step("Transpose", value, perm=[before.index(label) for label in after])

    kept = [0] * len(product.rows)  # sizes as they are
    value = moved(data, product.data, (*product.rows, *product.summed))
    inner, outer = (math.prod(sizes[label] for label in part) for part in (product.summed, product.columns))
    if len(product.summed) > 1:
        value = step("Reshape", value, [*kept, inner])
    matrix = names.beside(weight, "matrix")
    order = [product.weight.index(label) for label in (*product.summed, *product.columns)]
    constants[matrix] = np.ascontiguousarray(index.constant(weight).transpose(order).reshape(inner, outer))
    output = names.beside(str(node.output[0]), "product")
    nodes.append(instead(node, "MatMul", [value, matrix], output))
    if not product.columns:
        output = step("Squeeze", output, [len(kept)])
    elif len(product.columns) > 1:
        output = step("Reshape", output, [*kept, *(sizes[label] for label in product.columns)])
    moved(output, (*product.rows, *product.columns), product.output)
    nodes[-1].output[0] = node.output[0]
    return Rewrite({node.name: tuple(nodes)}, constants)
