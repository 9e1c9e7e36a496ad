"""What only moves values on its way into a body moves codes there, and the DQ comes last.

onnxruntime takes a DQ past such nodes, to whatever reads them, and aborts the process where that is the body of an If,
Loop or Scan, which reads by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.ops import is_standard

if TYPE_CHECKING:
    from int8cal.graph.index import Index
    from int8cal.graph.plan import Plan

# ops that the runtime takes a Q and a DQ past
MOVES = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def moves_into_bodies(index: Index, plan: Plan) -> frozenset[str]:
    """Name the float nodes that move values which a body reads, at once or behind other such nodes."""
    found: set[str] = set()
    moved: set[str] = set()
    for node in reversed(index.graph.node):
        if node.op_type not in MOVES or not is_standard(node) or node.name in plan.integer_nodes:
            continue
        output = str(node.output[0])
        if any(node.output[1:]) or plan.tensor(output) is not None:
            continue
        if output in moved or index.read_inside(output):
            found.add(node.name)
            moved.add(str(node.input[0]))
    return frozenset(found)
