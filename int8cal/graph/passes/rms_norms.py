"""An RMS norm that multiplies by a reciprocal divides instead, as the runtime has to see it to make one node of it.

x * (1 / sqrt(mean(x**2) + e)) * w = x / sqrt(mean(x**2) + e) * w

PyTorch's newer exporter writes rsqrt as Sqrt and Reciprocal. onnxruntime joins the norm with a Div alone, so that it
took seven passes over its values in place of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from int8cal.graph.edit import Rewrite, instead
from int8cal.graph.ops import is_standard
from int8cal.graph.passes.steps import step_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from int8cal.graph.edit import Names
    from int8cal.graph.index import Index


def divided_norms(index: Index, _names: Names) -> Iterator[Rewrite]:
    """Find Reciprocals of the root of a mean of squares that multiply what was squared, in front of constant factors.

    Must not touch one of which a tensor in between is read elsewhere or given out, nor one of another power.
    """
    for node in index.graph.node:
        if node.op_type != "Reciprocal" or not is_standard(node):
            continue
        product, data = index.only_reader(node.output[0]), _squared(index, str(node.input[0]))
        if product is None or product.op_type != "Mul" or not is_standard(product) or not data:
            continue
        if {str(name) for name in product.input} == {data, str(node.output[0])} and _weighted(index, product):
            yield Rewrite({node.name: (), product.name: (instead(product, "Div", [data, str(node.input[0])]),)})


def _squared(index: Index, root: str) -> str:
    """Return the tensor of whose mean square, and a constant, another is the root; "" where there is none."""
    name = root
    for op_type in ("Sqrt", "Add", "ReduceMean", "Pow"):
        node = index.producer.get(name)
        if node is None or node.op_type != op_type or not is_standard(node) or index.only_reader(name) is None:
            return ""
        step = step_of(index, node) if op_type == "Add" else None
        if op_type == "Add" and (step is None or not step.scalar):
            return ""
        name = str(node.input[0]) if step is None else step.data
        if op_type == "Pow" and not _is_two(index, node):
            return ""
    return name if index.elem_type(name) == onnx.TensorProto.FLOAT else ""


def _is_two(index: Index, power: onnx.NodeProto) -> bool:
    if not index.is_constant(power.input[1]):
        return False
    exponent = index.constant(power.input[1])
    return bool(exponent.size == 1 and exponent.item() == 2)


def _weighted(index: Index, product: onnx.NodeProto) -> bool:
    """Whether one Mul by a constant reads the product."""
    reader = index.only_reader(product.output[0])
    return reader is not None and reader.op_type == "Mul" and any(index.is_constant(name) for name in reader.input)
