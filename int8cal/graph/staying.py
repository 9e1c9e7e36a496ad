"""Which nodes would compute real numbers in float, before any data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from int8cal.graph.index import Index
from int8cal.graph.ops import ONNXRUNTIME_CPU, op_of

if TYPE_CHECKING:
    from int8cal.graph.plan import Plan

_REAL = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.UNDEFINED})


def float_nodes(model: onnx.ModelProto, plan: Plan) -> list[onnx.NodeProto]:
    """Return the nodes that a plan leaves in float, in graph order.

    Left out are those that pass shapes and indices, or move values that nothing else computes on, and activations that
    the Q behind them makes needless.

    Args:
        model: The prepared model that the plan is of.
        plan: Its plan; bodies of If, Loop and Scan are not looked into.
    """
    index = Index(model)
    integer = plan.integer_nodes | {layer.node for layer in plan.weighted}
    integer |= {each.node for each in plan.recurrent} | {each.node for each in plan.embeddings}
    # a Q does what the activation in front of it did
    taken_in = {layer.output for layer in plan.layers} | {each.tensor for each in plan.tensors}
    wanted = {each.node for each in plan.unquantized}
    moves = {op for op, rule in ONNXRUNTIME_CPU.items() if rule.kind == "pass"} - {"MaxPool"}
    return [
        node
        for node in model.graph.node
        if node.name not in integer
        and not (op_of(node).clips and taken_in.intersection(node.output))
        and not (node.op_type in moves and node.name not in wanted)
        and any(index.elem_type(name) in _REAL for name in node.output if name)
    ]
