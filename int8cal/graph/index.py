"""Who produces and who reads each tensor of a graph: built once, read-only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class Use:
    """One edge: input number `slot` of `node`; slot -1 means the node's subgraphs read the tensor."""

    node: onnx.NodeProto
    slot: int


class Index:
    """Producers, uses and constants of a model's main graph.

    Args:
        model: A model whose node names are unique (see `prepare`).
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.producer: dict[str, onnx.NodeProto] = {
            name: node for node in self.graph.node for name in node.output if name
        }
        self.uses: dict[str, list[Use]] = {}
        for node in self.graph.node:
            for slot, name in enumerate(node.input):
                if name:
                    self.uses.setdefault(name, []).append(Use(node, slot))
            for name in outer_references(node):
                self.uses.setdefault(name, []).append(Use(node, -1))
        self.initializers: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in self.graph.initializer}
        self.inputs: frozenset[str] = frozenset(value.name for value in self.graph.input) - self.initializers.keys()
        self.outputs: frozenset[str] = frozenset(value.name for value in self.graph.output)
        self.types: dict[str, onnx.TypeProto] = {
            value.name: value.type for value in (*self.graph.value_info, *self.graph.input, *self.graph.output)
        }

    @cached_property
    def nodes(self) -> dict[str, onnx.NodeProto]:
        """The nodes by name."""
        return {node.name: node for node in self.graph.node}

    def is_constant(self, name: str) -> bool:
        """Whether the tensor is an initializer."""
        return name in self.initializers

    def constant(self, name: str) -> npt.NDArray[np.generic]:
        """Return the value of an initializer."""
        return numpy_helper.to_array(self.initializers[name])

    def elem_type(self, name: str) -> int:
        """Return the TensorProto element type, 0 where unknown."""
        if name in self.initializers:
            return self.initializers[name].data_type
        kind = self.types.get(name)
        return kind.tensor_type.elem_type if kind is not None else 0

    def rank(self, name: str) -> int | None:
        """Return the number of dimensions, None where unknown."""
        dims = self.dims(name)
        return None if dims is None else len(dims)

    def dims(self, name: str) -> Dims | None:
        """Return the dimensions, None for one that only the feed decides; None where the rank is unknown."""
        if name in self.initializers:
            return tuple(self.initializers[name].dims)
        kind = self.types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim)

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """Return the node that alone reads the tensor, or None (several readers, a graph output, a subgraph)."""
        uses = self.uses.get(name, [])
        if len(uses) != 1 or uses[0].slot < 0 or name in self.outputs:
            return None
        return uses[0].node

    def read_inside(self, name: str) -> bool:
        """Whether the subgraph of some node reads the tensor."""
        return any(use.slot < 0 for use in self.uses.get(name, []))


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return a node's attribute value, or the default."""
    for item in node.attribute:
        if item.name == name:
            return helper.get_attribute_value(item)
    return default


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Iterate over the graphs in a node's attributes (If, Loop, Scan)."""
    for item in node.attribute:
        if item.type == onnx.AttributeProto.GRAPH:
            yield item.g
        elif item.type == onnx.AttributeProto.GRAPHS:
            yield from item.graphs


def walk(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Iterate over the nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from walk(inner)


def outer_references(node: onnx.NodeProto) -> set[str]:
    """Return the tensors of the enclosing graph that a node's subgraphs read."""
    names: set[str] = set()
    for graph in subgraphs(node):
        local = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        for inner in graph.node:
            names |= {name for name in inner.input if name} - local
            names |= outer_references(inner) - local
            local |= set(inner.output)
        names |= {value.name for value in graph.output} - local
    return names
