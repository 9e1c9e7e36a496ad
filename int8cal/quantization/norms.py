"""Residual Adds in front of a LayerNormalization, as Sums: so the runtime does not join the two.

onnxruntime makes both one SkipLayerNormalization, which takes seven times as long as they do (1.32, CPU), and knows the
Add alone. A Sum of two has the same bits. The figures: docs/decisions/what-is-quantized.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.ops import is_standard

if TYPE_CHECKING:
    from int8cal.graph.index import Index
    from int8cal.graph.plan import Plan

# What reads the sum: the norm, or the mean that it begins with where it is written as many nodes.
_NORMS = frozenset({"LayerNormalization", "ReduceMean"})


def adds_before_norms(index: Index, plan: Plan) -> frozenset[str]:
    """Name the float Adds of two tensors that a norm reads."""
    return frozenset(
        node.name
        for node in index.graph.node
        if node.op_type == "Add"
        and is_standard(node)
        and node.name not in plan.integer_nodes
        and not any(index.is_constant(name) for name in node.input)
        and any(use.node.op_type in _NORMS for use in index.uses.get(node.output[0], ()))
    )
