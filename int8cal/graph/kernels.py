"""Which nodes of an op with a rule have the integer kernel that the rule is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.index import attribute
from int8cal.graph.layers import line_of
from int8cal.graph.passes.steps import channel_step

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.index import Index
    from int8cal.graph.ops import OpRule

_VALUE, _AXES = 2, 3  # their places among the inputs of a Pad


def has_kernel(index: Index, node: onnx.NodeProto, rule: OpRule, *, of_u8: bool) -> bool:
    """Whether a node is one that its op's rule holds for.

    Args:
        index: Of the model.
        node: Of an op that the target has a rule for.
        rule: The rule.
        of_u8: Activations may have codes of uint8.
    """
    if rule.for_codes and not (of_u8 and line_of(node)):
        return False
    if rule.per_channel and channel_step(index, node) is None:
        return False
    if rule.mode and attribute(node, "mode", rule.mode.encode()) != rule.mode.encode():
        return False
    return node.op_type != "Pad" or _adds_zeros(index, node)


def _adds_zeros(index: Index, node: onnx.NodeProto) -> bool:
    """Whether a Pad, of all axes, adds what every range has a code for."""
    value, axes = (node.input[slot] if len(node.input) > slot else "" for slot in (_VALUE, _AXES))
    return not axes and (not value or (index.is_constant(value) and not index.constant(value).any()))
