"""Factors that go into the scale of a DQ in front of them, and take no pass over the values any more.

Behind a DQ the runtime does not join the nodes of a GELU, since each of its readers has a DQ of its own. Two of its
five nodes are such factors: 1/sqrt(2) in front of the Erf, and the half of the product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from int8cal.graph.ops import is_standard
from int8cal.quantization.products import reads_codes

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.index import Index
    from int8cal.graph.plan import Plan


@dataclass(frozen=True)
class Factors:
    """Which factors of a model go into the scale of a DQ.

    Attributes:
        dequantized: By node that is nothing but a factor of what a DQ gives: the factor. The DQ takes its place.
        inputs: By product, the input whose DQ takes a factor that was behind the product, and that factor.
        outputs: By such a product, what the node with the factor gave.
        gone: The nodes with these factors.
    """

    dequantized: dict[str, float] = field(default_factory=dict)
    inputs: dict[str, tuple[int, float]] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


def absorbed_factors(index: Index, plan: Plan) -> Factors:
    """Find the factors that go into the scale of a DQ.

    Must not touch a node on integers, a factor that is no positive scalar, one whose result gets codes of its own right
    behind the DQ, or a product that something else reads.

    Args:
        index: Of the float model.
        plan: Its plan.
    """
    found = Factors()
    for node in index.graph.node:
        scaled = _factor(index, node)
        if scaled is None or node.name in plan.integer_nodes:
            continue
        slot, factor = scaled
        data, product = str(node.input[slot]), index.producer.get(node.input[slot])
        if reads_codes(plan, node, slot, data):
            if plan.tensor(node.output[0]) is None:
                found.dequantized[node.name] = factor
            continue
        if product is None or product.op_type != "Mul" or not is_standard(product):
            continue
        if product.name in plan.integer_nodes or plan.tensor(data) is not None or index.only_reader(data) is None:
            continue
        sides = [each for each in (0, 1) if reads_codes(plan, product, each, str(product.input[each]))]
        if sides:
            found.inputs[product.name] = sides[0], factor
            found.outputs[product.name] = str(node.output[0])
            found.gone.add(node.name)
    return found


def _factor(index: Index, node: onnx.NodeProto) -> tuple[int, float] | None:
    """Return the input of a Mul or Div that is multiplied by a positive constant, and that constant."""
    if node.op_type not in ("Mul", "Div") or not is_standard(node):
        return None
    for slot in (0, 1) if node.op_type == "Mul" else (0,):
        name = str(node.input[1 - slot])
        if not index.is_float_constant(name) or index.constant(name).size != 1 or index.is_constant(node.input[slot]):
            continue
        if len(index.initializers[name].dims) > (index.rank(node.input[slot]) or 0):
            continue
        value = float(index.constant(name).reshape(-1)[0])
        factor = value if node.op_type == "Mul" else 1.0 / value if value else 0.0
        if 2.0**-24 < factor < 2.0**24:
            return slot, factor
    return None
