"""Names for what folding makes: none that the model has anywhere, its subgraphs included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.index import subgraphs

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
        name, number = f"{tensor}_{what}", 2
        while name in self._taken:
            name, number = f"{tensor}_{what}{number}", number + 1
        self._taken.add(name)
        return name


def _names_in(graph: onnx.GraphProto) -> frozenset[str]:
    names = {value.name for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer)}
    for node in graph.node:
        names |= {*node.input, *node.output}
        for inner in subgraphs(node):
            names |= _names_in(inner)
    return frozenset(names)
