"""Bodies of If, Loop and Scan as models of their own, and the way back: flat graphs, as everything else takes them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from int8cal.graph.edit import Names, refill, tensor_names
from int8cal.graph.index import Index, references_of, tensors_read, walk
from int8cal.graph.layers import GATES
from int8cal.graph.ops import STANDARD, op_of
from int8cal.graph.signature import Signature
from int8cal.protos import emptied, graphs_within, view_of
from int8cal.stored import content_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from int8cal.protos import ModelView

CONTROL = ("If", "Loop", "Scan")
_WORTH_SHARING = 1024  # bytes of a constant that several scopes hold


@dataclass(frozen=True, eq=False)
class Body:
    """One body, as a model whose inputs are its own and what it reads of the graph around it.

    Attributes:
        path: The nodes and attributes on the way to it: "/decoder/If/then_branch", "If_0/then_branch/If_1/else_branch".
        parent: Path of the body that its node is in; "" for the main graph.
        node: Name of its If, Loop or Scan in the parent's prepared model.
        slot: The node's attribute: "then_branch", "else_branch" or "body".
        formals: Its own inputs, which the node hands over by position; an If has none.
        outer: Tensors that it reads of the graphs around it; constants among them were copied and do not count.
        model: Prepared like any other model; empty where `reason` says why there is none.
        signature: Its inputs and outputs, none with a known shape: what a body is fed is one sample, whatever its axes.
        reason: Why it stays float; "" where nothing speaks against int8.
    """

    path: str
    parent: str
    node: str
    slot: str
    formals: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()
    model: onnx.ModelProto = field(default_factory=onnx.ModelProto)
    signature: Signature = field(default_factory=lambda: Signature((), ()))
    reason: str = ""


def full_name(path: str, name: str) -> str:
    """Name a node or tensor of a body as reports do: its path in front, which is "" for the main graph."""
    return f"{path}/{name}" if path else name


def extracted(parent: onnx.ModelProto, path: str) -> Iterator[Body]:
    """Take the bodies of a model's control flow out, as they are; those inside them stay in them.

    Args:
        parent: A prepared model; not changed.
        path: Of the parent, "" for the main graph.

    Yields:
        In graph order, bodies that hold a layer at any depth. They are not prepared yet; `reason` is set where a type
        is unknown.
    """
    if not any(node.op_type in CONTROL for node in parent.graph.node):
        return
    index, empty = Index(parent), emptied(parent)
    tables = {
        tensor.name
        for graph in graphs_within(parent.graph)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) >= 2
    }
    for node in parent.graph.node:
        if node.op_type not in CONTROL or node.domain not in STANDARD:
            continue
        for item in node.attribute:
            if item.type == onnx.AttributeProto.GRAPH and any(_may_be_layer(each, tables) for each in walk(item.g)):
                yield _extracted(empty, index, node, item, path)


def _may_be_layer(node: onnx.NodeProto, tables: Collection[str]) -> bool:
    """Whether a node can have int8 weights: a layer, or the lookup in a table, of which these are the names."""
    if node.op_type == "Gather":
        return node.input[0] in tables
    return op_of(node).channel_axis != 0 or node.op_type in GATES


def _extracted(
    empty: onnx.ModelProto, index: Index, node: onnx.NodeProto, item: onnx.AttributeProto, path: str
) -> Body:
    own = full_name(path, f"{node.name}/{item.name}")
    read = sorted(references_of(item.g))
    outer = tuple(name for name in read if not index.is_constant(name))
    formals = tuple(value.name for value in item.g.input)
    model = onnx.ModelProto()
    model.CopyFrom(empty)
    model.graph.CopyFrom(item.g)
    model.graph.name = own
    refill(model.graph.input, [*_formals(index, node, item.g), *(_outer(index, name) for name in outer)])
    model.graph.initializer.extend(index.initializers[name] for name in read if index.is_constant(name))
    unknown = next((each.name for each in model.graph.input if not each.type.WhichOneof("value")), "")
    reason = f"the type of {unknown!r}, which it reads, is unknown" if unknown else ""
    return Body(own, path, node.name, item.name, formals, outer, model, reason=reason)


def _outer(index: Index, name: str) -> onnx.ValueInfoProto:
    kind = index.types.get(name)
    known = kind is not None and (kind.WhichOneof("value") != "tensor_type" or kind.tensor_type.elem_type)
    return onnx.ValueInfoProto(name=name, type=kind if known else None)


def _formals(index: Index, node: onnx.NodeProto, body: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Give a body's own inputs a type.

    Of a tensor that a Loop or Scan carries only the rank that the body declares counts: the sizes that it declares are
    often those of the first round. Where what is carried starts with another rank, not even that is known.
    """
    for position, value in enumerate(body.input):
        if node.op_type == "Loop" and position < 2:
            scalar = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)[position]
            yield helper.make_tensor_value_info(value.name, scalar, [])
            continue
        declared = value.type.tensor_type
        given = node.input[position] if position < len(node.input) else ""
        kind = declared.elem_type or index.elem_type(given)
        if not kind:
            yield onnx.ValueInfoProto(name=value.name)
            continue
        rank = len(declared.shape.dim) if declared.HasField("shape") and declared.shape.dim else None
        if node.op_type == "Loop" and index.rank(given) not in (None, rank):
            rank = None
        yield helper.make_tensor_value_info(value.name, kind, None if rank is None else [None] * rank)


def with_full_names(model: onnx.ModelProto) -> ModelView:
    """Return a model whose nodes in bodies have their full names, so that no two are called alike.

    Args:
        model: Any model; its nodes are named, in each graph apart.
    """
    view = view_of(model)
    graphs = [("", view.shell.graph)]
    for path, graph in graphs:  # which grows
        for node in graph.node:
            node.name = f"{path}{node.name}"
            graphs += (
                (f"{node.name}/{item.name}/", item.g)
                for item in node.attribute
                if item.type == onnx.AttributeProto.GRAPH
            )
    return view


def put_back(model: onnx.ModelProto, bodies: Sequence[tuple[Body, onnx.ModelProto]]) -> None:
    """Put bodies in the place of those that a model has.

    Args:
        model: Made of the prepared model that the bodies were taken out of; changed in place. Its names stay.
        bodies: With the models that stand for them, a body behind the one that it is in. Of what they name, another
            name gets only what a graph around them has under that name too.
    """
    replaced = {(body.parent, body.node, body.slot) for body, _ in bodies}
    _clear(model.graph, "", replaced)
    free = Names(model.graph, *(built.graph for _, built in bodies))
    places = {"": _Place(model.graph, {}, (frozenset(tensor_names(model.graph)),))}
    for body, built in bodies:
        outside = places[body.parent]
        graph = onnx.GraphProto()
        graph.CopyFrom(built.graph)
        _clear(graph, body.path, replaced)
        refill(graph.input, [value for value in graph.input if value.name in body.formals])
        own = set(tensor_names(graph)) - set(body.outer) - {""}
        names = {name: outside.renamed.get(name, name) for name in body.outer}
        names |= {name: free.tensor(name) for name in sorted(own) if any(name in each for each in outside.taken)}
        _rename(graph, names)
        held = next(each.g for each in outside.nodes[body.node].attribute if each.name == body.slot)
        held.CopyFrom(graph)
        places[body.path] = _Place(held, names, (frozenset(tensor_names(held)), *outside.taken))
        known = {item.domain for item in model.opset_import}
        model.opset_import.extend(item for item in built.opset_import if item.domain not in known)
    _share_constants(model.graph, free)
    for place in reversed([*places.values()]):  # inside first: what only a dropped weight's reader read goes too
        graph = place.graph
        read = {name for node in graph.node for name in tensors_read(node)} | {value.name for value in graph.output}
        refill(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in read])


@dataclass(frozen=True, eq=False)
class _Place:
    """A graph that bodies are put into: what was renamed in it, and the names that it and those around it have."""

    graph: onnx.GraphProto
    renamed: dict[str, str]
    taken: tuple[frozenset[str], ...]

    @cached_property
    def nodes(self) -> dict[str, onnx.NodeProto]:
        return {node.name: node for node in self.graph.node if node.op_type in CONTROL}


def _share_constants(graph: onnx.GraphProto, free: Names) -> None:
    """Move constants that several scopes hold alike to the main graph; onnxruntime's integer kernels take them there.

    What was computed of one weight in two branches, or copied into both, would otherwise be there twice.
    """
    scopes = [*graphs_within(graph)]
    held: dict[tuple[int, tuple[int, ...], bytes], dict[int, list[onnx.TensorProto]]] = {}
    for number, each in enumerate(scopes):
        given = {value.name for value in each.output}  # what a body gives out must be its own
        for tensor in each.initializer:
            content = content_of(tensor)
            if len(content) >= _WORTH_SHARING and (not number or tensor.name not in given):
                key = tensor.data_type, tuple(tensor.dims), hashlib.sha256(content).digest()
                held.setdefault(key, {}).setdefault(number, []).append(tensor)
    gone: dict[int, dict[str, str]] = {}
    for copies in held.values():
        if len(copies) == 1:
            continue
        first = next(iter(copies.values()))[0]
        shared = first.name if 0 in copies else free.tensor(f"{first.name}_shared")
        if 0 not in copies:
            graph.initializer.add().CopyFrom(first)
            graph.initializer[-1].name = shared
        for number in copies.keys() - {0}:
            gone.setdefault(number, {}).update((tensor.name, shared) for tensor in copies[number])
    for number, names in gone.items():
        refill(scopes[number].initializer, [each for each in scopes[number].initializer if each.name not in names])
        _rename(scopes[number], names)


def _clear(graph: onnx.GraphProto, path: str, replaced: set[tuple[str, str, str]]) -> None:
    """Empty the bodies that will be replaced, so that their names are free."""
    for node in graph.node:
        for item in node.attribute:
            if (path, node.name, item.name) in replaced:
                item.g.Clear()


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors in a graph and the graphs inside it."""
    if all(old == new for old, new in names.items()):
        return
    for each in graphs_within(graph):
        for value in (*each.input, *each.output, *each.value_info, *each.initializer):
            value.name = names.get(value.name, value.name)
        for node in each.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
