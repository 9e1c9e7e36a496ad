"""Tensors of graphs inside of nodes get names of their own where a graph around them has the same one.

onnxruntime puts a model's functions in place of their calls, in each graph under the same names; where a function is
called in a body of If, Loop or Scan and around it, it refuses to load what it has written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.graph.edit import Names, refill
from int8cal.protos import subgraphs

if TYPE_CHECKING:
    import onnx


def own_names(model: onnx.ModelProto) -> None:
    """Rename, in place, tensors of inner graphs that hide one of a graph around them; not those of the main graph."""
    # a graph, the names in each graph around it, and what became of those
    left: list[tuple[onnx.GraphProto, tuple[frozenset[str], ...], dict[str, str]]] = [(model.graph, (), {})]
    names: Names | None = None
    while left:
        graph, around, renamed = left.pop()
        made = dict.fromkeys(_made(graph))
        clashes = [name for name in made if any(name in each for each in around)]
        if clashes:
            names = names or Names(model.graph)
            renamed = renamed | {name: names.tensor(name) for name in clashes}
        if renamed:
            _rename(graph, renamed)
        within = (*around, frozenset(made))
        left += [(inner, within, renamed) for node in graph.node for inner in subgraphs(node)]


def _made(graph: onnx.GraphProto) -> list[str]:
    given = [value.name for value in (*graph.input, *graph.initializer)]
    return [*given, *(name for node in graph.node for name in node.output if name)]


def _rename(graph: onnx.GraphProto, renamed: dict[str, str]) -> None:
    for node in graph.node:
        refill(node.input, [renamed.get(name, name) for name in node.input])
        refill(node.output, [renamed.get(name, name) for name in node.output])
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = renamed.get(value.name, value.name)
