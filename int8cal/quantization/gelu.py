"""GELUs behind a DQ as one node: the runtime joins the nodes of one only where all of them read the same tensor.

Behind a DQ every reader has a DQ of its own, so that a GELU behind a convolution took five passes over its values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from int8cal.graph.ops import STANDARD, is_standard
from int8cal.quantization.products import reads_codes

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.index import Index
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
    opset = max((item.version for item in index.model.opset_import if item.domain in STANDARD), default=0)
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
    root = _scaled(index, index.producer.get(erf.input[0]), math.sqrt(0.5))
    add = index.only_reader(erf.output[0])
    product = None if add is None else index.only_reader(add.output[0])
    if root is None or add is None or product is None or product.op_type != "Mul" or not is_standard(product):
        return []
    if add.op_type != "Add" or not is_standard(add) or not _is(index, _other(add, erf.output[0]), 1.0):
        return []
    x, side = _other(root, next(name for name in root.input if index.is_constant(name))), _other(product, add.output[0])
    if side == x:
        half = _scaled(index, index.only_reader(product.output[0]), 0.5)
        nodes = [root, erf, add, product, *([half] if half is not None else [])]
    else:
        half = _scaled(index, index.producer.get(side), 0.5)
        if half is not None and x not in half.input:
            half = None
        nodes = [root, *([half] if half is not None else []), erf, add, product]
    if half is None:
        return []
    inner = [each.output[0] for each in nodes[:-1]]
    reading = [(each, slot) for each in nodes for slot, name in enumerate(each.input) if name == x]
    held = all(plan.tensor(name) is None and index.only_reader(name) is not None for name in inner)
    floats = all(each.name not in plan.integer_nodes for each in nodes)
    return nodes if held and floats and all(reads_codes(plan, each, slot, x) for each, slot in reading) else []


def _scaled(index: Index, node: onnx.NodeProto | None, factor: float) -> onnx.NodeProto | None:
    """Return a node if all it does is to multiply by a constant."""
    if node is None or not is_standard(node) or node.op_type not in ("Mul", "Div"):
        return None
    constants = [slot for slot, name in enumerate(node.input) if index.is_constant(name)]
    if len(constants) != 1 or (node.op_type == "Div" and constants != [1]):
        return None
    return node if _is(index, node.input[constants[0]], factor if node.op_type == "Mul" else 1 / factor) else None


def _is(index: Index, name: str, value: float) -> bool:
    """Whether a tensor is a constant of one float, about this one, that adds no axis to what it meets."""
    if not index.is_float_constant(name):
        return False
    found = index.constant(name)
    return found.size == 1 and found.ndim <= 1 and abs(float(found.reshape(-1)[0]) / value - 1) < _CLOSE


def _other(node: onnx.NodeProto, name: str) -> str:
    """Return the input of two that is not this one; the same where both are."""
    return str(node.input[1] if node.input[0] == name else node.input[0])
