"""Which tensors of a plan share one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.ops import op_of

if TYPE_CHECKING:
    from int8cal.graph.index import Index


class SharedScales:
    """Sets of tensors, each under the name of one of them, its root.

    Args:
        index: Of the graph; at first each tensor is alone.
    """

    def __init__(self, index: Index) -> None:
        self._parents: dict[str, str] = {}
        # roots of sets with a tensor that a Relu or Clip ends at; at first each tensor is its own
        self._clipped = {node.output[0] for node in index.graph.node if op_of(node).clips}

    def root(self, tensor: str) -> str:
        """Name the set of a tensor."""
        while (parent := self._parents.get(tensor, tensor)) != tensor:
            self._parents[tensor] = self._parents.get(parent, parent)  # the next way is short
            tensor = self._parents[tensor]
        return tensor

    def unite(self, first: str, second: str) -> None:
        """Let the sets of two tensors be one, under the first one's root."""
        first, second = self.root(first), self.root(second)
        if second in self._clipped:
            self._clipped.add(first)
        self._parents[second] = first

    def is_clipped(self, tensor: str) -> bool:
        """Whether a Relu or Clip ends at the tensor or at one that shares its scale."""
        return self.root(tensor) in self._clipped
