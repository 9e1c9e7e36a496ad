"""GELUs behind a DQ as one node: the runtime joins the nodes of one only where all of them read the same tensor.

Behind a DQ every reader has a DQ of its own, so that a GELU behind a convolution took five passes over its values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.graph.ops import is_standard, opset_of
from int8cal.graph.passes.steps import step_of
from int8cal.quantization.products import reads_codes

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.index import Index
    from int8cal.graph.passes.steps import AffineStep
    from int8cal.graph.plan import Plan

DOMAIN, SINCE = "com.microsoft", 20  # where opsets before this one have it
_CLOSE = 1e-3  # exporters write 1.4142 too


@dataclass(frozen=True)
class Gelus:
    """The GELUs of a model that become one node each.

    Attributes:
        inputs: By the name of the last node of each: what it reads.
        others: The names of all other nodes of theirs.
        domain: Of the op; "" for ONNX's own.
    """

    inputs: dict[str, str]
    others: frozenset[str]
    domain: str


def find_gelus(index: Index, plan: Plan) -> Gelus:
    """Find x / 2 * (1 + erf(x / sqrt(2))) of codes, in whichever order it is multiplied.

    Must not take one of which a tensor in between gets codes, is given out or read elsewhere.

    Args:
        index: Of the float model.
        plan: Its plan.
    """
    opset = opset_of(index.model, 0)
    inputs: dict[str, str] = {}
    others: set[str] = set()
    for node in index.graph.node:
        if node.op_type != "Erf" or not is_standard(node):
            continue
        nodes = _gelu(index, plan, node)
        if nodes:
            inputs[nodes[-1].name] = next(name for name in nodes[0].input if not index.is_constant(name))
            others |= {each.name for each in nodes[:-1]}
    return Gelus(inputs, frozenset(others), "" if opset >= SINCE else DOMAIN)


def _gelu(index: Index, plan: Plan, erf: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes of the GELU that an Erf is in, the one that reads x first and the one that gives it last."""
    root = _scalar_step(index, index.producer.get(erf.input[0]), factor=math.sqrt(0.5))
    add = _scalar_step(index, index.only_reader(erf.output[0]), shift=1.0)
    product = None if add is None else index.only_reader(add.output)
    if root is None or add is None or product is None or product.op_type != "Mul" or not is_standard(product):
        return []
    side = str(product.input[1] if product.input[0] == add.output else product.input[0])
    if side == root.data:
        half = _scalar_step(index, index.only_reader(product.output[0]), factor=0.5)
        nodes = [root.node, erf, add.node, product, *([half.node] if half is not None else [])]
    else:
        half = _scalar_step(index, index.producer.get(side), factor=0.5)
        if half is not None and half.data != root.data:
            half = None
        nodes = [root.node, *([half.node] if half is not None else []), erf, add.node, product]
    if half is None:
        return []
    inner = [each.output[0] for each in nodes[:-1]]
    reading = [(each, slot) for each in nodes for slot, name in enumerate(each.input) if name == root.data]
    held = all(plan.tensor(name) is None and index.only_reader(name) is not None for name in inner)
    floats = all(each.name not in plan.integer_nodes for each in nodes)
    return nodes if held and floats and all(reads_codes(plan, *each, root.data) for each in reading) else []


def _scalar_step(
    index: Index, node: onnx.NodeProto | None, *, factor: float = 1.0, shift: float = 0.0
) -> AffineStep | None:
    """Return a node as the step x * factor + shift if that is about what it computes."""
    step = None if node is None else step_of(index, node)
    if step is None or not step.scalar:
        return None
    near = math.isclose(step.factor.item(), factor, rel_tol=_CLOSE)
    return step if near and math.isclose(step.shift.item(), shift, rel_tol=_CLOSE) else None
