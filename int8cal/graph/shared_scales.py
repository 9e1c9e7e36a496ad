"""Which tensors share one scale: sets that are united while the Plan is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.ops import CLIPPING

if TYPE_CHECKING:
    from int8cal.graph.index import Index


class SharedScales:
    """Sets of tensors, each under the name of one of them, its root.

    Args:
        index: Of the graph.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._parents: dict[str, str] = {}
        self._clipped: set[str] = set()  # roots of sets with a tensor that a Relu or Clip ends at

    def root(self, tensor: str) -> str:
        """Name the set of a tensor."""
        root = tensor
        while (parent := self._parents.get(root, root)) != root:
            root = parent
        while tensor != root:  # the next way is short
            above = self._parents[tensor]
            self._parents[tensor] = root
            tensor = above
        return root

    def unite(self, first: str, second: str) -> None:
        """Let the sets of two tensors be one, under the first one's root."""
        clipped = self.is_clipped(first) or self.is_clipped(second)
        root = self.root(first)
        self._parents[self.root(second)] = root
        if clipped:
            self._clipped.add(root)

    def is_clipped(self, tensor: str) -> bool:
        """Whether a Relu or Clip ends at the tensor or at one that shares its scale."""
        root = self.root(tensor)
        return root in self._clipped or any(self._ends_clip(name) for name in (tensor, root))

    def _ends_clip(self, tensor: str) -> bool:
        producer = self._index.producer.get(tensor)
        return producer is not None and producer.op_type in CLIPPING
