"""Names for what folding makes: none that the model has anywhere, its subgraphs included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.index import free_number
from int8cal.protos import graphs_within

if TYPE_CHECKING:
    import onnx


class Names:
    """The names of a model's tensors.

    Args:
        graph: The main graph before any folding: the names of these tensors stay with their values.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._given = _names_in(graph)
        self._taken = set(self._given)

    def changed(self, tensor: str) -> str:
        """Name what takes a tensor's place with other values; a tensor that folding made keeps its name."""
        return tensor if tensor not in self._given else self.fresh(tensor, "folded")

    def fresh(self, tensor: str, what: str) -> str:
        """Return a name beside a tensor's that nobody has."""
        name = f"{tensor}_{what}"
        if name in self._taken:
            name += str(free_number(name, self._taken, 2))
        self._taken.add(name)
        return name


def _names_in(graph: onnx.GraphProto) -> frozenset[str]:
    names: set[str] = set()
    for each in graphs_within(graph):
        names.update(value.name for value in (*each.input, *each.output, *each.value_info, *each.initializer))
        for node in each.node:
            names.update(node.input, node.output)
    return frozenset(names)
