"""Who produces and who reads each tensor of a graph: built once, read-only."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
from onnx import helper

from int8cal.errors import ModelError
from int8cal.protos import subgraphs
from int8cal.stored import values_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    import numpy.typing as npt

Dims = tuple[int | None, ...]

_WITH_GRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})  # ONNX's own ops that have some


class Use(NamedTuple):
    """One edge: input number `slot` of `node`; slot -1 means the node's subgraphs read the tensor."""

    node: onnx.NodeProto
    slot: int


class Index:
    """Producers, uses and constants of a model's main graph.

    It takes as long to make as a copy of the graph: who has one hands it on in place of the model.

    Args:
        model: A model whose node names are unique (see `prepare`); not changed while there is an index of it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.producer: dict[str, onnx.NodeProto] = {
            name: node for node in self.graph.node for name in node.output if name
        }
        uses = defaultdict[str, list[Use]](list)
        for node in self.graph.node:
            for slot, name in enumerate(node.input):
                if name:
                    uses[name].append(Use(node, slot))
            for name in outer_references(node):
                uses[name].append(Use(node, -1))
        self.uses: dict[str, list[Use]] = dict(uses)
        self.initializers: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in self.graph.initializer}
        self.inputs: frozenset[str] = frozenset(value.name for value in self.graph.input) - self.initializers.keys()
        self.outputs: frozenset[str] = frozenset(value.name for value in self.graph.output)
        self.types: dict[str, onnx.TypeProto] = {
            # of an output inference may know more than is declared
            value.name: value.type
            for value in (*self.graph.input, *self.graph.output, *self.graph.value_info)
        }

    @classmethod
    def of(cls, model: onnx.ModelProto | Index) -> Index:
        """Return the index of a model, or the one that is handed on instead of the model."""
        return model if isinstance(model, Index) else cls(model)

    @cached_property
    def derived(self) -> frozenset[str]:
        """The tensors that no input decides, see `derived_constants`."""
        return derived_constants(self)

    @cached_property
    def nodes(self) -> dict[str, onnx.NodeProto]:
        """The nodes by name."""
        return {node.name: node for node in self.graph.node}

    def is_constant(self, name: str) -> bool:
        """Whether the tensor is an initializer."""
        return name in self.initializers

    def constant(self, name: str) -> npt.NDArray[np.generic]:
        """Return the value of an initializer."""
        return values_of(self.initializers[name])

    def is_float_constant(self, name: str) -> bool:
        """Whether the tensor is a float32 initializer."""
        return name in self.initializers and self.initializers[name].data_type == onnx.TensorProto.FLOAT

    def may_be_float(self, name: str) -> bool:
        """Whether the tensor is float32, as far as is known."""
        return self.elem_type(name) in (onnx.TensorProto.FLOAT, 0)

    def elem_type(self, name: str) -> int:
        """Return the TensorProto element type, 0 where unknown."""
        if name in self.initializers:
            return self.initializers[name].data_type
        kind = self.types.get(name)
        return kind.tensor_type.elem_type if kind is not None else 0

    def may_be_tensor(self, name: str) -> bool:
        """Whether the value is a tensor, as far as is known, and no sequence, optional or map of them."""
        kind = self.types.get(name)
        return kind is None or kind.WhichOneof("value") in (None, "tensor_type")

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
        # some exporters write -1 for a size that they do not know
        return tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
            for dim in kind.tensor_type.shape.dim
        )

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
    """Return a node's attribute value, or the default.

    Raises:
        ModelError: The value is that of a function's attribute, and the node is in no function.
    """
    for item in node.attribute:
        if item.name == name:
            if item.ref_attr_name:
                what = f"attribute {name!r} of node {node.name!r} refers to a function, and the node is in none"
                raise ModelError(what, do="export the model again")
            return helper.get_attribute_value(item)
    return default


def walk(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Iterate over the nodes of a graph or function and of the graphs inside them, a node before those inside of it."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from walk(inner)


def outer_references(node: onnx.NodeProto) -> set[str]:
    """Return the tensors of the enclosing graph that a node's subgraphs read."""
    if node.op_type not in _WITH_GRAPHS and not node.domain:
        return set()
    return {name for graph in subgraphs(node) for name in references_of(graph)}


def nodes_behind(names: Iterable[str], producer: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes that tensors are computed by, what bodies read of the graph around them among it.

    Args:
        names: Of the tensors.
        producer: The node that writes each tensor of the graph.
    """
    found: dict[int, onnx.NodeProto] = {}
    waiting = [*names]
    while waiting:
        node = producer.get(waiting.pop())
        if node is not None and id(node) not in found:
            found[id(node)] = node
            waiting += (*node.input, *outer_references(node))
    return [*found.values()]


def references_of(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors of the graphs around it that a subgraph reads."""
    names: set[str] = set()
    known = {"", *(value.name for value in (*graph.input, *graph.initializer))}
    for inner in graph.node:
        names.update({*inner.input, *outer_references(inner)} - known)
        known.update(inner.output)
    names.update({value.name for value in graph.output} - known)
    return names


def tensors_read(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node reads: its inputs, then what its subgraphs read of the enclosing graph."""
    read = [name for name in node.input if name]
    inside = outer_references(node)
    return [*read, *sorted(inside)] if inside else read


def derived_constants(index: Index) -> frozenset[str]:
    """Name the tensors that depend on initializers alone: themselves, and what nodes make of them or of nothing.

    Args:
        index: The graph; its nodes may stand in any order.
    """
    known = set(index.initializers)
    nodes = list(index.graph.node)
    missing = {id(node): 0 for node in nodes}
    readers = {name: {id(use.node): use.node for use in uses} for name, uses in index.uses.items()}
    for name in readers.keys() - known:
        for number in readers[name]:
            missing[number] += 1
    ready = [node for node in nodes if not missing[id(node)]]
    while ready:
        for name in ready.pop().output:
            if not name or name in known:
                continue
            known.add(name)
            for number, node in readers.get(name, {}).items():
                missing[number] -= 1
                if not missing[number]:
                    ready.append(node)
    return frozenset(known)


def connected(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return the names in sets that pairs connect, in order; a pair with another name connects nothing."""
    parents = {name: name for name in names}

    def root(name: str) -> str:
        while parents[name] != name:
            parents[name] = parents[parents[name]]  # half the way, for those who come after
            name = parents[name]
        return name

    for first, second in pairs:
        if first in parents and second in parents:
            parents[root(second)] = root(first)
    found: dict[str, list[str]] = {}
    for name in parents:
        found.setdefault(root(name), []).append(name)
    return list(found.values())
