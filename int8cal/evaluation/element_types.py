"""Element types of an optimized graph: the runtime writes none where it fused, so they are followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto

from int8cal.evaluation.optimized_ops import trait
from int8cal.graph.index import attribute
from int8cal.protos import subgraphs

if TYPE_CHECKING:
    import onnx

    from int8cal.graph.index import Index

_REAL = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


class ElementTypes:
    """Which tensors of a graph hold real numbers.

    Args:
        index: The graph; nodes in topological order.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._followed: dict[str, int] = {}
        for node in index.graph.node:
            for slot, name in enumerate(node.output):
                if name:
                    self._followed[name] = index.elem_type(name) or self._of_output(node, slot)

    def any_real(self, names: list[str]) -> bool:
        """Whether one of the tensors is real; one of unknown type counts as real, so that none goes uncounted."""
        return any(self._of(name) in _REAL | {TensorProto.UNDEFINED} for name in names if name)

    def _of(self, name: str) -> int:
        return self._followed.get(name) or self._index.elem_type(name)

    def _of_output(self, node: onnx.NodeProto, slot: int) -> int:
        known = trait(node.op_type)
        if known.role == "control":
            return _of_branch(node, slot)
        if node.op_type == "Cast":
            return int(attribute(node, "to", 0))
        if node.op_type in {"Constant", "ConstantOfShape"}:
            value = attribute(node, "value", None)
            return TensorProto.FLOAT if value is None else int(value.data_type)
        fixed = known.results[min(slot, len(known.results) - 1)] if known.results else 0
        if fixed:
            return fixed
        inputs = [*node.input[known.typed_by :], *node.input[: known.typed_by]]
        return next((kind for kind in map(self._of, filter(None, inputs)) if kind), 0)


def _of_branch(node: onnx.NodeProto, slot: int) -> int:
    # the first output of a Loop's body is its condition
    shift = 1 if node.op_type == "Loop" else 0
    for graph in subgraphs(node):
        if slot + shift < len(graph.output):
            return int(graph.output[slot + shift].type.tensor_type.elem_type)
    return 0
