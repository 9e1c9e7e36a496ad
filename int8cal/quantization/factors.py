"""Factors behind a product of dequantized values go into the scale of a DQ, and take no pass over the values any more.

The blocks of PP-LCNetV3 multiply by one learned number behind each swish, which is such a product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.graph.ops import is_standard
from int8cal.graph.passes.steps import step_of
from int8cal.quantization.products import reads_codes

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx

    from int8cal.graph.index import Index
    from int8cal.graph.plan import Plan


@dataclass(frozen=True)
class Factor:
    """What was behind a product.

    Attributes:
        node: The Mul or Div that multiplied.
        slot: The input of the product whose DQ takes the factor.
        value: The factor.
        output: What the node gave, and the product gives now.
    """

    node: str
    slot: int
    value: float
    output: str


def absorbed_factors(index: Index, plan: Plan, others: Collection[str]) -> dict[str, Factor]:
    """Find the factors that go into the scale of a DQ, by the name of the product.

    Must not touch a node on integers, a factor that is no positive scalar, or a product that anything else reads.

    Args:
        index: Of the float model.
        plan: Its plan.
        others: Names of nodes that are written otherwise.
    """
    found: dict[str, Factor] = {}
    for node in index.graph.node:
        scaled = _factor(index, node)
        if scaled is None or node.name in plan.integer_nodes or node.name in others:
            continue
        data, value = scaled
        product = index.producer.get(data)
        if product is None or product.op_type != "Mul" or not is_standard(product) or product.name in others:
            continue
        if product.name in plan.integer_nodes or plan.tensor(data) is not None or index.only_reader(data) is None:
            continue
        for slot in (0, 1):
            if reads_codes(plan, product, slot, str(product.input[slot])):
                found[product.name] = Factor(node.name, slot, value, str(node.output[0]))
                break
    return found


def _factor(index: Index, node: onnx.NodeProto) -> tuple[str, float] | None:
    """Return what a Mul or Div multiplies by a positive constant, and that constant."""
    step = step_of(index, node) if node.op_type in ("Mul", "Div") else None
    if step is None or not step.scalar or not 2.0**-24 < step.factor.item() < 2.0**24:
        return None
    return step.data, step.factor.item()
