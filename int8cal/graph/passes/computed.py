"""Constants that folding makes larger than what they come from: folded for planning, computed in the int8 model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import onnx

from int8cal.graph.edit import Names, refill
from int8cal.graph.index import Index, nodes_behind
from int8cal.protos import copied, subgraphs, tensor_bytes
from int8cal.stored import values_of

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "int8cal.folded"  # of the graph that computes them, among what ONNX calls the initialization of a model
_LEAST_GROWTH = 4096  # bytes


def folded(model: onnx.ModelProto, simplify: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """Fold a model's constants, and note how those that grow were computed; see `computed_again`.

    Args:
        model: What it notes already stays.
        simplify: `runtime.sessions.simplify`.

    Returns:
        The folded model; its training_info holds, as ONNX has it, a graph that computes initializers.
    """
    result = simplify(model)
    result.training_info.extend(info for info in model.training_info if info.initialization.name == _NAME)
    known = {tensor.name for tensor in model.graph.initializer}
    made = [each for each in result.graph.initializer if each.name not in known and tensor_bytes(each) > _LEAST_GROWTH]
    if not made:
        return result
    index = Index(model)
    graph = onnx.GraphProto(name=_NAME)
    nodes: dict[int, onnx.NodeProto] = {}
    bases: dict[str, onnx.TensorProto] = {}
    for tensor in made:
        behind = nodes_behind([tensor.name], index.producer)
        read = {name for node in behind for name in node.input if name and name not in index.producer}
        if not behind or not read <= index.initializers.keys() or any(True for node in behind for _ in subgraphs(node)):
            continue
        size = sum(tensor_bytes(index.initializers[name]) for name in read) + sum(node.ByteSize() for node in behind)
        if size + _LEAST_GROWTH < tensor_bytes(tensor):
            nodes |= {id(node): node for node in behind}
            bases |= {name: index.initializers[name] for name in sorted(read)}
            graph.output.add(name=tensor.name, doc_string=_digest(tensor))
    if nodes:
        graph.node.extend(node for node in model.graph.node if id(node) in nodes)
        graph.initializer.extend(bases.values())
        result.training_info.add().initialization.CopyFrom(graph)
    return result


def noted_names(model: onnx.ModelProto) -> frozenset[str]:
    """Name the constants that take less as nodes which compute them, and are written so where they stay float."""
    return frozenset(value.name for graph in _noted(model) for value in graph.output)


def computed_again(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let nodes compute the constants that folding made larger; the runtime folds them again when it loads the model.

    Must not touch a constant whose values have changed since.

    Args:
        model: The int8 model of one graph, made of one that `folded` gave; changed in place.
    """
    noted = _noted(model)
    refill(model.training_info, [info for info in model.training_info if info.initialization.name != _NAME])
    names = Names(model.graph) if noted else None
    for graph in noted:
        digests = {value.name: value.doc_string for value in graph.output}
        held = [tensor for tensor in model.graph.initializer if tensor.name in digests]
        found = {tensor.name for tensor in held if _digest(tensor) == digests[tensor.name]}
        behind = nodes_behind(sorted(found), {name: node for node in graph.node for name in node.output if name})
        if names is None or not behind:
            continue
        read = {name for node in behind for name in node.input}
        made = {name for node in behind for name in node.output}
        fresh = {name: names.tensor(name) for name in sorted((read | made) - found - {""})}
        nodes = [copied(node) for node in graph.node if any(name in made for name in node.output)]
        for node in nodes:
            node.name = names.node(node.name)
            node.input[:] = [fresh.get(name, name) for name in node.input]
            node.output[:] = [fresh.get(name, name) for name in node.output]
        bases = [tensor for tensor in graph.initializer if tensor.name in read]
        for tensor in bases:
            tensor.name = fresh[tensor.name]
        kept = [tensor for tensor in model.graph.initializer if tensor.name not in found]
        refill(model.graph.initializer, [*kept, *bases])
        refill(model.graph.node, [*nodes, *model.graph.node])
    return model


def _noted(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [info.initialization for info in model.training_info if info.initialization.name == _NAME]


def _digest(tensor: onnx.TensorProto) -> str:
    return hashlib.sha256(values_of(tensor).tobytes()).hexdigest()
