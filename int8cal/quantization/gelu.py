"""GELUs as one node where the runtime would not join them, which takes one pass over its values and not five.

It joins the nodes of one only where all of them read the same tensor, and behind a DQ every reader has a DQ of its own.
It joins none that multiplies x by half of the sum, x * (0.5 * (1 + erf)), as PyTorch's newer exporter writes them, and
on CPUs none that is computed by tanh, of eight nodes or nine.
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

EXACT, BY_TANH = "Gelu", "FastGelu"  # FastGelu is in DOMAIN alone: opset 20 has an attribute
DOMAIN, SINCE = "com.microsoft", 20  # where opsets before this one have it
_CLOSE = 1e-3  # exporters write 1.4142 too
_CUBIC = 0.044715


@dataclass(frozen=True)
class Gelus:
    """The GELUs of a model that become one node each.

    Attributes:
        inputs: By the name of the last node of each: what it reads.
        others: The names of all other nodes of theirs.
        domain: Of the op; "" for ONNX's own.
        by_tanh: The names of the last nodes of those that are computed by tanh.
    """

    inputs: dict[str, str]
    others: frozenset[str]
    domain: str
    by_tanh: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Inside:
    """What a GELU takes the erf or tanh of: of which tensor, the nodes, and the one that gives it."""

    data: str
    nodes: list[onnx.NodeProto]


def find_gelus(index: Index, plan: Plan) -> Gelus:
    """Find x / 2 * (1 + erf(x / sqrt(2))), or tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)), in whichever order.

    Must not take one of which a tensor in between gets codes, is given out or read elsewhere, nor one of floats that
    the runtime joins by itself.
    """
    opset = opset_of(index.model, 0)
    inputs: dict[str, str] = {}
    others: set[str] = set()
    by_tanh: set[str] = set()
    for node in index.graph.node:
        if node.op_type not in {"Erf", "Tanh"} or not is_standard(node):
            continue
        inside = _of_erf(index, node) if node.op_type == "Erf" else _of_tanh(index, node)
        nodes = [] if inside is None else _gelu(index, plan, node, inside)
        if inside is not None and nodes:
            inputs[nodes[-1].name] = inside.data
            others |= {each.name for each in nodes[:-1]}
            by_tanh |= {nodes[-1].name} if node.op_type == "Tanh" else set()
    return Gelus(inputs, frozenset(others), "" if opset >= SINCE else DOMAIN, frozenset(by_tanh))


def _of_erf(index: Index, erf: onnx.NodeProto) -> _Inside | None:
    root = _scalar_step(index, index.producer.get(erf.input[0]), factor=math.sqrt(0.5))
    return None if root is None else _Inside(root.data, [root.node])


def _of_tanh(index: Index, tanh: onnx.NodeProto) -> _Inside | None:
    outer = _scalar_step(index, index.producer.get(tanh.input[0]), factor=math.sqrt(2 / math.pi))
    total = None if outer is None else index.producer.get(outer.data)
    if outer is None or total is None or total.op_type != "Add" or not is_standard(total):
        return None
    for data, term in (total.input, reversed(total.input)):
        inner = _scalar_step(index, index.producer.get(term), factor=_CUBIC)
        cube = [] if inner is None else _cube(index, inner.data, data)
        if inner is not None and cube:
            return _Inside(data, [*cube, inner.node, total, outer.node])
    return None


def _cube(index: Index, name: str, data: str) -> list[onnx.NodeProto]:
    """Return the nodes that compute name as the third power of data, as a Pow or two Muls."""
    node = index.producer.get(name)
    if node is None or not is_standard(node):
        return []
    if node.op_type == "Pow" and node.input[0] == data and index.is_constant(node.input[1]):
        power = index.constant(node.input[1])
        return [node] if power.size == 1 and power.item() == 3 else []
    square = {str(each) for each in node.input} - {data}
    if node.op_type != "Mul" or data not in node.input or len(square) != 1:
        return []
    before = index.producer.get(square.pop())
    alike = before is not None and before.op_type == "Mul" and is_standard(before) and set(before.input) == {data}
    return [before, node] if before is not None and alike else []


def _gelu(index: Index, plan: Plan, curve: onnx.NodeProto, inside: _Inside) -> list[onnx.NodeProto]:
    """Return the nodes of the GELU that an Erf or Tanh is in, the one that gives it last."""
    data, head = inside.data, [*inside.nodes, curve]
    add = _scalar_step(index, index.only_reader(curve.output[0]), shift=1.0)
    product = None if add is None else index.only_reader(add.output)
    if add is None or product is None or product.op_type != "Mul" or not is_standard(product):
        return []
    half = _scalar_step(index, product, factor=0.5)
    if half is not None:
        last = index.only_reader(half.output)
        if last is None or last.op_type != "Mul" or not is_standard(last) or data not in last.input:
            return []
        nodes = [*head, add.node, half.node, last]
    elif data in product.input:
        half = _scalar_step(index, index.only_reader(product.output[0]), factor=0.5)
        nodes = [*head, add.node, product, *([half.node] if half is not None else [])]
    else:
        side = str(product.input[1] if product.input[0] == add.output else product.input[0])
        half = _scalar_step(index, index.producer.get(side), factor=0.5)
        if half is not None and half.data != data:
            half = None
        nodes = [*head, *([half.node] if half is not None else []), add.node, product]
    if half is None:
        return []
    inner = [each.output[0] for each in nodes[:-1]]
    reading = [(each, slot) for each in nodes for slot, name in enumerate(each.input) if name == data]
    held = all(plan.tensor(name) is None and index.only_reader(name) is not None for name in inner)
    floats = all(each.name not in plan.integer_nodes for each in nodes)
    apart = curve.op_type == "Tanh" or half.data == add.output  # what the runtime never joins
    apart = apart or all(reads_codes(plan, *each, data) for each in reading)
    return nodes if held and floats and apart else []


def _scalar_step(
    index: Index, node: onnx.NodeProto | None, *, factor: float = 1.0, shift: float = 0.0
) -> AffineStep | None:
    """Return a node as the step x * factor + shift if that is about what it computes."""
    step = None if node is None else step_of(index, node)
    if step is None or not step.scalar:
        return None
    near = math.isclose(step.factor.item(), factor, rel_tol=_CLOSE)
    return step if near and math.isclose(step.shift.item(), shift, rel_tol=_CLOSE) else None
